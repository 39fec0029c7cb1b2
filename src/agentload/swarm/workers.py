"""The processes that load in a run, as its owner deals with them: workers, or itself."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping
from typing import Any, Protocol

import gevent

from agentload.clock import Clock
from agentload.recording.manifest import ShardEntry, WorkerEntry
from agentload.recording.record import TURNS_CSV
from agentload.recording.relay import Delivery, ShardReceiver
from agentload.swarm import messages, tally
from agentload.swarm.load_side import LoadSide
from agentload.swarm.numbering import rank_of
from agentload.swarm.owner import OwnedRun
from agentload.swarm.plan import InputError
from agentload.swarm.watch import MISSING
from agentload.swarm.worker_side import remove_shard, spool_root

logger = logging.getLogger(__name__)

COLLECT_S = 20.0  # for the last rows, after Locust says that all workers stopped


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

    def check(self) -> None:
        """There is always this process."""

    def client_ids(self) -> list[str]:
        return [self._id]

    def begin(self, run: OwnedRun) -> None:
        self._begun = run

    def load(self) -> None:
        run = self._begun
        if run is not None:
            self._load.start(run.spec, run.recorder, os.environ, self._id, lambda: 0, lambda: 0)

    def begin_stages(self, run: OwnedRun) -> None:
        if self._load.run is not None and run.spec.stages_from_s is not None:
            self._load.run.begin_stages(run.spec.stages_from_s)

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
        return [_counted(entry, status)]

    def kept_turns(self) -> int:
        return 0


class RemoteWorkers:
    """A run on Locust's workers: their rows come as messages."""

    def __init__(self, environment: Any, runner: Any, clock: Clock) -> None:
        self._environment = environment
        self._runner = runner
        self._clock = clock
        self._receiver: ShardReceiver | None = None
        self._begun: OwnedRun | None = None
        runner.register_message(messages.PING, self._on_ping)
        runner.register_message(messages.ROWS, self._on_rows)

    def check(self) -> None:
        if not self._runner.worker_count:
            raise InputError("no worker is connected: start some with --worker")

    def client_ids(self) -> list[str]:
        return [id_ for id_, state in self.states().items() if state != MISSING]

    def begin(self, run: OwnedRun) -> None:
        self._begun = run
        self._receiver = ShardReceiver(run.recorder, run.spec.run_id)

    def load(self) -> None:
        """Locust's own order to start users tells the workers."""

    def begin_stages(self, run: OwnedRun) -> None:
        told = {"run_id": run.spec.run_id, "from_s": run.spec.stages_from_s}
        self._runner.send_message(messages.STAGES, told)

    def stopping(self) -> None:
        """Locust tells the workers to stop."""

    def states(self) -> Mapping[str, str]:
        return {client.id: client.state for client in self._runner.clients.all}

    def refusal(self) -> str | None:
        for client_id, delivery in self._deliveries().items():
            refused = delivery.refused or delivery.status.get("refused")
            if refused:
                return f"worker {client_id}: {str(refused)[:300]}"
        return None

    def at_gate(self) -> int:
        return tally.total(self.statuses().values(), "at_gate")

    def collect(self, run: OwnedRun) -> tuple[str, ...]:
        """Wait for workers that are alive; then take what dead ones left on this machine."""
        with gevent.Timeout(COLLECT_S, False):
            while any(self._may_still_deliver(id_) for id_ in run.spec.ranks):
                gevent.sleep(0.05)
        for client_id in () if run.spec.rows_on == "worker" else self._incomplete(run):
            folder = spool_root(self._environment.parsed_options) / run.spec.run_id / client_id
            if self._receiver is not None:
                rows = self._receiver.take_shard(client_id, folder)
                remove_shard(folder)
                if rows:
                    run.event("rows_recovered", f"{rows} rows of {client_id} from {folder}")
        return tuple(self._lost_text(run, client_id) for client_id in self._incomplete(run))

    def statuses(self) -> Mapping[str, tally.Status]:
        return {
            id_: tally.at_least(delivery.status, delivery.rows[TURNS_CSV])
            for id_, delivery in self._deliveries().items()
        }

    def entries(self, run: OwnedRun) -> list[WorkerEntry]:
        return [self._entry(run, client_id) for client_id in sorted(self._all_ids(run))]

    def kept_turns(self) -> int:
        return 0 if self._receiver is None else self._receiver.kept_turns()

    # -- messages ---------------------------------------------------------------------------

    def _on_ping(self, msg: Any, **_: Any) -> None:
        pong = {"sent_ns": msg.data["sent_ns"], "master_ns": self._clock.now_ns()}
        self._runner.send_message(messages.PONG, pong, msg.node_id)

    def _on_rows(self, msg: Any, **_: Any) -> None:
        receiver = self._receiver
        if receiver is not None:
            answer = receiver.receive(msg.data, self._clock.now_ns())
            self._runner.send_message(messages.ACK, answer, msg.node_id)

    # -- what came --------------------------------------------------------------------------

    def _deliveries(self) -> dict[str, Delivery]:
        return {} if self._receiver is None else self._receiver.deliveries

    def _all_ids(self, run: OwnedRun) -> set[str]:
        return set(run.spec.ranks) | set(self._deliveries())

    def _incomplete(self, run: OwnedRun) -> list[str]:
        deliveries = self._deliveries()
        return sorted(
            id_
            for id_ in self._all_ids(run)
            if id_ not in deliveries or not deliveries[id_].complete
        )

    def _may_still_deliver(self, client_id: str) -> bool:
        delivery = self._deliveries().get(client_id)
        if delivery is not None and (delivery.complete or delivery.refused):
            return False
        return self.states().get(client_id, MISSING) != MISSING

    def _lost_text(self, run: OwnedRun, client_id: str) -> str:
        delivery = self._deliveries().get(client_id)
        name = f"{_worker_id(run, client_id)} ({client_id})"
        if delivery is None:
            return f"{name}: it sent nothing"
        heard_s = run.run_clock.seconds(delivery.heard_ns)
        missing = self._rows_undelivered(delivery)
        return (
            f"{name}: last heard of at {heard_s:.1f} s; {missing} turns it had begun by then "
            "are missing, with all it began later"
        )

    @staticmethod
    def _rows_undelivered(delivery: Delivery) -> int:
        rows = delivery.rows[TURNS_CSV]
        return tally.total([tally.at_least(delivery.status, rows)], "sent") - rows

    def _entry(self, run: OwnedRun, client_id: str) -> WorkerEntry:
        delivery = self._deliveries().get(client_id)
        host = client_id.split("_")[0]
        entry = WorkerEntry(_worker_id(run, client_id), host, client_id=client_id)
        if delivery is None:
            entry.lost_at_s = 0.0
            return entry
        status = self.statuses()[client_id]
        entry.clock_offset_s = tally.number(status, "clock_offset_s")
        entry.clock_offset_error_s = tally.number(status, "clock_offset_error_s")
        _counted(entry, status)
        if delivery.kept_in is not None:
            entry.shard = ShardEntry(delivery.kept_in, delivery.rows, delivery.complete)
        if not delivery.complete:
            entry.lost_at_s = run.run_clock.seconds(delivery.heard_ns)
            entry.rows_undelivered = self._rows_undelivered(delivery)
        entry.missing_s = run.watch.intervals_s.get(client_id, [])
        return entry


def _counted(entry: WorkerEntry, status: tally.Status) -> WorkerEntry:
    entry.health = tally.health(status)
    entry.planned = tally.total([status], "planned")
    entry.sent = tally.total([status], "sent")
    entry.dropped = tally.total([status], "dropped")
    return entry


def _worker_id(run: OwnedRun, client_id: str) -> str:
    return f"w{rank_of(client_id, run.spec.ranks)}"
