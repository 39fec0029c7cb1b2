"""The processes that load in a run, as its owner deals with them: workers, or itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any, Protocol

from agentload.live.wire import LiveReceiver
from agentload.recording.manifest import WorkerEntry
from agentload.swarm import tally
from agentload.swarm.load_side import LoadSide
from agentload.swarm.numbering import rank_of
from agentload.swarm.owner import OwnedRun


class Workers(Protocol):
    """What the owner of a run wants of those that load."""

    def check(self) -> None:
        """Raise InputError when nobody is there to load."""

    def client_ids(self) -> list[str]: ...

    def begin(self, run: OwnedRun) -> None:
        """A run begins; its folder is there."""

    def load(self) -> None:
        """The run can be told to those that load."""

    def begin_stages(self, run: OwnedRun) -> None: ...

    def live(self) -> LiveReceiver:
        """The live totals of the run, with what came by now."""

    def end_measuring(self, run: OwnedRun) -> None:
        """Turns that start from now on are not measured."""

    def stopping(self) -> None: ...

    def states(self) -> Mapping[str, str]:
        """Locust's state of each worker."""

    def refusal(self) -> str | None:
        """Why a worker cannot load at all."""

    def at_gate(self) -> int:
        """Users that are warm."""

    def collect(self, run: OwnedRun) -> tuple[str, ...]:
        """Wait for the last rows; the workers whose rows did not all come."""

    def statuses(self) -> Mapping[str, tally.Status]: ...

    def entries(self, run: OwnedRun) -> list[WorkerEntry]: ...

    def kept_turns(self) -> int:
        """Turns whose rows are on the workers' disks and nowhere else."""


class OwnProcess:
    """A run without workers: this process loads and writes its rows straight into the folder."""

    def __init__(self, runner: Any, load: LoadSide) -> None:
        self._id: str = runner.client_id
        self._load = load
        self._begun: OwnedRun | None = None
        self._live = LiveReceiver()

    def check(self) -> None:
        """There is always this process."""

    def client_ids(self) -> list[str]:
        return [self._id]

    def begin(self, run: OwnedRun) -> None:
        self._begun = run
        self._live = LiveReceiver()

    def load(self) -> None:
        run = self._begun
        if run is not None:
            self._load.start(run.spec, run.recorder, os.environ, self._id, lambda: 0, lambda: 0)

    def begin_stages(self, run: OwnedRun) -> None:
        if self._load.run is not None and run.spec.stages_from_s is not None:
            self._load.run.begin_stages(run.spec.stages_from_s)

    def live(self) -> LiveReceiver:
        begun, run = self._begun, self._load.run
        if begun is not None and run is not None and run.spec.run_id == begun.spec.run_id:
            run.live.answered(self._live.take(self._id, run.live.message()))
        return self._live

    def end_measuring(self, run: OwnedRun) -> None:
        if self._load.run is not None and run.manifest.measured_to_s is not None:
            self._load.run.live.turns.end_measuring(run.manifest.measured_to_s)

    def stopping(self) -> None:
        self._load.stopping()

    def states(self) -> Mapping[str, str]:
        return {self._id: "running"}

    def refusal(self) -> str | None:
        return None

    def at_gate(self) -> int:
        return 0 if self._load.run is None else self._load.run.counters.at_gate

    def collect(self, run: OwnedRun) -> tuple[str, ...]:  # noqa: ARG002 - all is there already
        self._load.finish()
        return ()

    def statuses(self) -> Mapping[str, tally.Status]:
        return {} if self._load.run is None else {self._id: self._load.run.status()}

    def entries(self, run: OwnedRun) -> list[WorkerEntry]:
        status = self.statuses().get(self._id, {})
        worker_id = f"w{rank_of(self._id, run.spec.ranks)}"
        entry = WorkerEntry(worker_id, socket.gethostname(), 0.0, 0.0, client_id=self._id)
        return [counted(entry, status)]

    def kept_turns(self) -> int:
        return 0


def counted(entry: WorkerEntry, status: tally.Status) -> WorkerEntry:
    entry.health = tally.health(status)
    entry.planned = tally.total([status], "planned")
    entry.sent = tally.total([status], "sent")
    entry.dropped = tally.total([status], "dropped")
    return entry
