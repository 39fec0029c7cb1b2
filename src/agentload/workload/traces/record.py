"""The session file: one call a line, as JSON Lines behind a header."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, get_args

import orjson

from agentload.workload.traces.fields import LineError, integer, number, word
from agentload.workload.turn import TurnClass, WaitKind

FORMAT = "agentload-sessions"
VERSION = 1


class TraceError(ValueError):
    """A trace or session file cannot be used; the text says where and what is allowed."""


@dataclass(frozen=True, slots=True)
class TraceCall:
    """One request of a recorded session.

    Its prompt has `keep_tokens` + `append_tokens`. `keep_tokens` are those it has in common with
    the prompt of the call before and the answer to it, from the start on. `wait_s` counts from
    that answer's end, None = not recorded. `start_s` is the instant since the trace began, None =
    not recorded. A session with a `parent` starts when the parent's call `parent_call` is done,
    and the parent's next call waits for it.
    """

    session: str
    call: int
    turn_class: TurnClass
    wait_kind: WaitKind
    wait_s: float | None
    start_s: float | None
    keep_tokens: int
    append_tokens: int
    output_tokens: int
    parent: str | None = None
    parent_call: int | None = None

    @property
    def prompt_tokens(self) -> int:
        return self.keep_tokens + self.append_tokens


def header(source: str) -> bytes:
    """The first line of a session file."""
    return orjson.dumps({"format": FORMAT, "version": VERSION, "source": source}) + b"\n"


def line_of(call: TraceCall) -> bytes:
    return orjson.dumps(asdict(call)) + b"\n"


def parse_call(row: dict[str, Any]) -> TraceCall:
    """The call in a row of a session file; LineError with the key and what is allowed."""
    unknown = set(row) - set(TraceCall.__slots__)
    if unknown:
        raise LineError(f"unknown key {sorted(unknown)[0]!r}")
    child = row.get("parent") is not None
    return TraceCall(
        session=word(row, "session"),
        call=integer(row, "call"),
        turn_class=_one_of(row, "turn_class", get_args(TurnClass)),
        wait_kind=_one_of(row, "wait_kind", get_args(WaitKind)),
        wait_s=None if row.get("wait_s") is None else number(row, "wait_s"),
        start_s=None if row.get("start_s") is None else number(row, "start_s"),
        keep_tokens=integer(row, "keep_tokens"),
        append_tokens=integer(row, "append_tokens"),
        output_tokens=integer(row, "output_tokens", low=1),
        parent=word(row, "parent") if child else None,
        parent_call=integer(row, "parent_call") if child else None,
    )


def _one_of(row: dict[str, Any], key: str, allowed: tuple[str, ...]) -> Any:
    value = row.get(key)
    if value not in allowed:
        raise LineError(f"{key}: {value!r} is none of {', '.join(allowed)}")
    return value


class SessionFile:
    """A session file with an index in memory: eight bytes a call.

    Sessions may interleave in the file; the calls of one stand in their order. Raises TraceError
    for the first line that is not as it should be.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offsets: dict[str, array[int]] = {}
        self._children: dict[tuple[str, int], list[str]] = {}
        self.roots: list[str] = []
        self.starts_s: list[float | None] = []
        try:
            with path.open("rb") as file:
                self.fingerprint = hashlib.file_digest(file, "sha256").hexdigest()[:16]
                file.seek(0)
                self._index(file)
        except OSError as error:
            raise TraceError(f"{path}: {error.strerror}") from None
        if not self.roots:
            raise TraceError(f"{path}: no sessions in it")
        for parent, call in self._children:
            if call >= len(self._offsets.get(parent, ())):
                raise TraceError(f"{path}: a session hangs on call {call} of {parent!r}: none")

    def _index(self, file: BinaryIO) -> None:
        first = self._row(file.readline(), 1)
        if first.get("format") != FORMAT or first.get("version") != VERSION:
            raise TraceError(f"{self.path}: line 1 is not the header of {FORMAT} {VERSION}")
        offset, number = file.tell(), 1
        for raw in file:
            number += 1
            call = self._parse(raw, number)
            offsets = self._offsets.setdefault(call.session, array("Q"))
            if call.call != len(offsets):
                raise TraceError(
                    f"{self.path}: line {number}: call {call.call} of {call.session!r}; the next"
                    f" is {len(offsets)}"
                )
            if call.call == 0:
                self._enter(call)
            offsets.append(offset)
            offset += len(raw)

    def _enter(self, call: TraceCall) -> None:
        if call.parent is None or call.parent_call is None:
            self.roots.append(call.session)
            self.starts_s.append(call.start_s)
        else:
            self._children.setdefault((call.parent, call.parent_call), []).append(call.session)

    def _row(self, raw: bytes, number: int) -> dict[str, Any]:
        try:
            row = orjson.loads(raw)
        except orjson.JSONDecodeError:
            row = None
        if not isinstance(row, dict):
            raise TraceError(f"{self.path}: line {number} is not a JSON object")
        return row

    def _parse(self, raw: bytes, number: int) -> TraceCall:
        try:
            return parse_call(self._row(raw, number))
        except LineError as error:
            raise TraceError(f"{self.path}: line {number}: {error}") from None

    def calls(self, session: str) -> Iterator[TraceCall]:
        """The calls of one session; KeyError for an unknown one."""
        offsets = self._offsets[session]
        with self.path.open("rb") as file:
            for offset in offsets:
                file.seek(offset)
                yield self._parse(file.readline(), 0)

    def children(self, session: str, call: int) -> list[str]:
        """The sessions that start when this call is done."""
        return self._children.get((session, call), [])
