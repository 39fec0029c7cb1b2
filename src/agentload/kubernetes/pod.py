"""The first process of a load pod: it runs Locust until the results were collected.

    python -m agentload.kubernetes.pod --folder /results --run-id ID -- locust ...

`kubectl cp` cannot read a container that has ended. So when Locust is over this process writes
`done.json` into the folder, waits until somebody puts a file `collected` beside it or the limit is
over, then exits with Locust's own code. SIGTERM and SIGINT go to Locust as SIGTERM, which closes
the run in order; it is waited for the collection then as well, since what was recorded goes with
the pod: Kubernetes ends that wait with the grace period. A signal during the wait ends it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from agentload.atomic_file import replace_json
from agentload.clock import NS_PER_S, MonotonicClock
from agentload.recording.record import MANIFEST_JSON

DONE_JSON = "done.json"
COLLECTED = "collected"
EXIT_USAGE = 2
EXIT_NOT_STARTED = 127
LOOK_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Done:
    """The content of `done.json`; None where the pod owns no run, or none was begun."""

    exit_code: int
    run_id: str | None = None
    state: str | None = None
    verdict: str | None = None
    reasons: tuple[str, ...] = ()


def outcome(folder: Path, run_id: str | None, exit_code: int) -> Done:
    """What became of the run, from its manifest; a manifest that cannot be read is a reason."""
    if run_id is None:
        return Done(exit_code)
    path = folder / run_id / MANIFEST_JSON
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        verdict = manifest.get("verdict") or {}
        reasons = tuple(map(str, verdict.get("reasons", ())))
        return Done(exit_code, run_id, manifest.get("state"), verdict.get("level"), reasons)
    except FileNotFoundError:
        return Done(exit_code, run_id, reasons=("no run was begun: there is no manifest",))
    except (OSError, ValueError, AttributeError) as error:
        return Done(exit_code, run_id, reasons=(f"the manifest cannot be read: {error}",))


class Child:
    """The process that does the work; signals of this process are passed on to it."""

    def __init__(self) -> None:
        self.told_to_end = False
        self._pid: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def run(self, command: list[str]) -> int:
        """Start it, wait for it; its exit code, 128 + N after signal N, as a shell has it."""
        if self.told_to_end:
            return 128 + signal.SIGTERM
        try:
            self._pid = os.posix_spawnp(
                command[0], command, os.environ, setsigdef=(signal.SIGTERM, signal.SIGINT)
            )
        except OSError as error:
            _say(f"{command[0]} cannot be started: {error.strerror}")
            return EXIT_NOT_STARTED
        if self.told_to_end:  # between the look above and the start
            os.kill(self._pid, signal.SIGTERM)
        while True:
            pid, status = os.waitpid(-1, 0)  # as first process it inherits orphans as well
            if pid == self._pid:
                self._pid = None
                self.told_to_end = False  # the work was; what it left can still be collected
                code = os.waitstatus_to_exitcode(status)
                return code if code >= 0 else 128 - code

    def _on_signal(self, *_: object) -> None:
        self.told_to_end = True
        if self._pid is not None:
            os.kill(self._pid, signal.SIGTERM)


def wait_collected(folder: Path, limit_s: float, child: Child) -> bool:
    """Wait for the file `collected`; False when the limit or a signal came first."""
    clock = MonotonicClock()
    end_ns = clock.now_ns() + round(limit_s * NS_PER_S)
    while not (folder / COLLECTED).exists():
        if child.told_to_end or clock.now_ns() >= end_ns:
            return False
        time.sleep(LOOK_EVERY_S)
    return True


def main(argv: Sequence[str]) -> int:
    """Run the command behind `--`; returns its exit code."""
    given = _parser().parse_args(argv)
    command = given.command[1:] if given.command[:1] == ["--"] else given.command
    if not command:
        _say("no command was given behind --")
        return EXIT_USAGE
    folder: Path = given.folder
    if (folder / DONE_JSON).exists():
        _say(f"{folder} holds a finished run: give the run an id of its own, or remove the folder")
        return EXIT_USAGE
    child = Child()
    code = child.run(command)
    done = outcome(folder, given.run_id, code)
    try:
        replace_json(folder / DONE_JSON, asdict(done))
    except OSError as error:
        _say(f"{folder / DONE_JSON} cannot be written: {error.strerror}")
        return code or EXIT_USAGE
    _say(f"exit code {code}, run {done.state or 'unknown'}, verdict {done.verdict or 'none'}")
    if given.collect_wait_s > 0 and not child.told_to_end:
        _say(f"waiting up to {given.collect_wait_s:.0f} s for {folder / COLLECTED}")
        _say(
            "collected" if wait_collected(folder, given.collect_wait_s, child) else "not collected"
        )
    return code


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="agentload.kubernetes.pod", allow_abbrev=False)
    add = made.add_argument
    add("--folder", type=Path, required=True, help="where the results are, and done.json will be")
    add("--run-id", help="name of the run folder in it, whose manifest is asked for the verdict")
    add("--collect-wait-s", type=float, default=0.0, help="how long to wait for `collected`")
    add("command", nargs=argparse.REMAINDER, help="-- and what is to be run")
    return made


def _say(text: str) -> None:
    print(f"agentload pod: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
