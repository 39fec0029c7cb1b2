"""The live figures on the terminal of a headless run."""

from __future__ import annotations

import logging
import select
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast

import gevent
from rich.console import Console
from rich.live import Live
from rich.text import Text

from agentload.live.snapshot import Snapshot
from agentload.swarm.live import current
from agentload.swarm.live.console import WIDTH, block, plain_line

logger = logging.getLogger("agentload")  # short: these lines are long enough

EVERY_S = 1.0
PLAIN_EVERY_S = 10.0
_OVER = ("complete", "interrupted")


class PlainLines:
    """One line of Locust's log every ten seconds, and one when a run is over."""

    def __init__(self) -> None:
        self._said: tuple[str, int, bool] | None = None

    def show(self, snapshot: Snapshot) -> None:
        over = snapshot.state in _OVER
        moment = (snapshot.run_id, int(snapshot.now_s // PLAIN_EVERY_S), over)
        if moment != self._said:
            self._said = moment
            logger.info("%s", plain_line(snapshot))

    def close(self) -> None:
        """Nothing is left behind."""


class LiveBlock:
    """A block at the foot of the terminal; lines of the log appear above it.

    Its text is made here and only drawn by rich: a table of rich takes twenty times as long, in
    which no other greenlet could run.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._live: Live | None = None
        self._handlers: list[logging.StreamHandler[Any]] = []

    def show(self, snapshot: Snapshot) -> None:
        """Draw the figures, unless the terminal takes nothing now; after a run's end they stay."""
        over = snapshot.state in _OVER
        if (self._live is None and over) or not self._takes_more():
            return
        live = self._live or self._begin()
        live.update(block_text(snapshot, live.console.width - 1), refresh=True)
        if over:
            self.close()

    def close(self) -> None:
        """Leave the last figures where they are and the terminal as it was."""
        if self._live is None:
            return
        self._live.stop()
        self._live = None
        for handler in self._handlers:
            handler.setStream(self._stream)
        self._handlers = []

    def _begin(self) -> Live:
        console = Console(file=self._stream, highlight=False)
        self._live = Live(console=console, auto_refresh=False, redirect_stderr=False)
        self._live.start()
        self._handlers = [h for h in _handlers() if h.stream is self._stream]
        above = cast(TextIO, _AboveBlock(console))
        for handler in self._handlers:
            handler.setStream(above)
        return self._live

    def _takes_more(self) -> bool:
        """A terminal that is held (Ctrl-S) would hold the whole process."""
        try:
            return bool(select.select([], [self._stream.fileno()], [], 0)[1])
        except (OSError, ValueError):
            return False


class _AboveBlock:
    """What a log handler writes to: whole lines as they are, neither wrapped nor coloured."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def write(self, text: str) -> int:
        if text.strip("\n"):
            line = Text.from_ansi(text.rstrip("\n"))
            self._console.print(line, soft_wrap=True, highlight=False)
        return len(text)

    def flush(self) -> None:
        """Each line is written at once."""


def block_text(snapshot: Snapshot, width: int) -> Text:
    """The block for a terminal of `width` columns."""
    lines = block(snapshot, min(WIDTH, width) if width > 0 else WIDTH)
    parts = [(f"{text}\n" if i < len(lines) - 1 else text, style)
             for i, (text, style) in enumerate(lines)]  # fmt: skip
    return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def _handlers() -> Iterator[logging.StreamHandler[Any]]:
    loggers = [logging.getLogger(), *map(logging.getLogger, ("locust", "locust.stats_logger"))]
    seen: set[int] = set()
    for each in loggers:
        for handler in each.handlers:
            if isinstance(handler, logging.StreamHandler) and id(handler) not in seen:
                seen.add(id(handler))
                yield handler


class Terminal:
    """Shows whichever run goes on, once a second.

    `shared`: other processes write to the same terminal. A block would wipe out their lines.
    """

    def __init__(self, *, shared: bool) -> None:
        dumb = Console(file=sys.stderr).is_dumb_terminal
        has_block = sys.stderr.isatty() and not dumb and not shared
        self._view: LiveBlock | PlainLines = LiveBlock(sys.stderr) if has_block else PlainLines()
        self._shower = gevent.spawn(self._forever)

    def close(self, **_: Any) -> None:
        """The process ends: the last figures, then the terminal as it was."""
        self._shower.kill()
        self._show()
        self._view.close()

    def _forever(self) -> None:
        while True:
            gevent.sleep(EVERY_S)
            self._show()

    def _show(self) -> None:
        """A fault of a view must not end a run."""
        snapshot = current.snapshot()
        if snapshot is None:
            return
        try:
            self._view.show(snapshot)
        except Exception:
            logger.exception("the live figures could not be shown")
