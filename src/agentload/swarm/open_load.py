"""Load that does not wait for answers: arriving sessions, and prompts that interfere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gevent
from gevent.pool import Group
from gevent.queue import Empty, Queue

from agentload.client.transport import Client
from agentload.clock import NS_PER_S
from agentload.swarm.conversation import Conversation, Report
from agentload.swarm.load_run import LoadRun
from agentload.workload.arrival import Start, interference_starts
from agentload.workload.session import Session

LOOK_EVERY_S = 0.5


class ArrivingSessions:
    """Hands sessions that start by themselves to whichever user of this process is free.

    A start that finds no free user waits, and its lateness is in the lag of the session's first
    turn; one that is still waiting at the end is counted as dropped.
    """

    def __init__(self, run: LoadRun) -> None:
        self._run = run
        self._due: Any = Queue()
        self._feeder = gevent.spawn(_at_their_time, run, run.starts(), self._due.put)

    def take(self, stopping: Callable[[], bool]) -> tuple[Session, int] | None:
        """The next session with the instant it was due; None when the run stops."""
        while not stopping():
            try:
                start, at_ns = self._due.get(timeout=LOOK_EVERY_S)
            except Empty:
                continue
            return self._run.session_at(start.index), at_ns
        return None

    def close(self) -> None:
        """No more starts; those that waited were never sent."""
        self._feeder.kill()
        dropped = self._due.qsize()
        self._run.counters.planned += dropped
        self._run.counters.dropped += dropped


class InterferingPrompts:
    """Sends the one-turn sessions of `interference` beside the users, each when it is due."""

    def __init__(self, run: LoadRun, report: Report) -> None:
        self._run = run
        self._report = report
        self._sending: Group[Any] = Group()
        starts = interference_starts(run.scenario)
        self._feeder = gevent.spawn(_at_their_time, run, starts, self._send)

    def close(self) -> None:
        """End those that still stream; they are recorded as aborted."""
        self._feeder.kill()
        self._sending.kill()

    def _send(self, due: tuple[Start, int]) -> None:
        self._sending.spawn(self._send_one, *due)

    def _send_one(self, start: Start, at_ns: int) -> None:
        client = Client(self._run.settings)
        try:
            talk = Conversation(self._run, self._run.one_shot(start.index), client, at_ns)
            talk.send(self._report)
        finally:
            client.close()


def _at_their_time(
    run: LoadRun, starts: Iterator[Start], act: Callable[[tuple[Start, int]], None]
) -> None:
    """Call `act` for each start of this process when it is due, counted from the first stage."""
    run.gate.wait()
    for start in starts:
        if run.stopping:
            return
        if not run.seats.owns(start.index):
            continue
        at_ns = run.stage_instant_ns(start.at_s)
        gevent.sleep(max(0.0, (at_ns - run.clock.now_ns()) / NS_PER_S))
        act((start, at_ns))
