"""The workers of a master, as the owner of a run deals with them: their rows come as messages."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gevent

from agentload.clock import NS_PER_S, Clock
from agentload.folder_lock import left_behind
from agentload.live.wire import LiveReceiver
from agentload.recording.manifest import ShardEntry, WorkerEntry
from agentload.recording.record import TURNS_CSV
from agentload.recording.relay import Delivery, ShardReceiver, refusal
from agentload.swarm import messages, tally
from agentload.swarm.dispatch import forget_missing
from agentload.swarm.numbering import is_client_id, rank_of
from agentload.swarm.owner import OwnedRun
from agentload.swarm.plan import InputError
from agentload.swarm.watch import MISSING
from agentload.swarm.worker_side import remove_shard, spool_root
from agentload.swarm.workers import counted

logger = logging.getLogger(__name__)

COLLECT_S = 60.0  # for the last rows of a worker with heartbeat, after its users are gone
# For a worker without heartbeat. TCP tries again after twice the time that it tried before, so a
# cut of 15 s is over for it after up to 30 s.
MISSING_S = 40.0
GIVEN_UP_S = 120.0  # a worker that heard nothing for so long has ended; see `worker_side`
MAX_ORPHANS = 20  # whoever reaches the port can claim to be one


class RemoteWorkers:
    """A run on Locust's workers: their rows come as messages."""

    def __init__(self, environment: Any, runner: Any, clock: Clock) -> None:
        self._environment = environment
        self._runner = runner
        self._clock = clock
        self._receiver: ShardReceiver | None = None
        self._begun: OwnedRun | None = None
        self._live = LiveReceiver()
        runner.register_message(messages.PING, self._on_ping)
        runner.register_message(messages.ROWS, self._on_rows)

    def check(self) -> None:
        for client in list(self._runner.clients.all):
            if not is_client_id(client.id):  # no users for whatever it is
                del self._runner.clients[client.id]
        if not self._runner.worker_count:
            raise InputError("no worker is connected: start some with --worker")

    def client_ids(self) -> list[str]:
        """Those that are there. What has no id of Locust's making is no worker."""
        states = self.states().items()
        return [id_ for id_, state in states if state != MISSING and is_client_id(id_)]

    def begin(self, run: OwnedRun) -> None:
        self._begun = run
        self._live = LiveReceiver()
        self._receiver = ShardReceiver(
            run.recorder, run.spec.run_id, run.spec.ranks.keys(), run.spec.rows_token
        )

    def load(self) -> None:
        """Locust's own order to start users tells the workers."""

    def begin_stages(self, run: OwnedRun) -> None:
        told = {"run_id": run.spec.run_id, "from_s": run.spec.stages_from_s}
        self._runner.send_message(messages.STAGES, told)

    def live(self) -> LiveReceiver:
        return self._live

    def end_measuring(self, run: OwnedRun) -> None:
        if run.manifest.measured_to_s is not None:
            told = {"run_id": run.spec.run_id, "to_s": run.manifest.measured_to_s}
            self._runner.send_message(messages.MEASURED, told)

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
        self._wait_for_rows(run)
        for client_id in () if run.spec.rows_on == "worker" else self._incomplete(run):
            folder = self._spool_of(run, client_id)
            if self._receiver is not None:
                rows = self._receiver.take_shard(client_id, folder)
                if left_behind(folder):
                    remove_shard(folder)
                if rows:
                    run.event("rows_recovered", f"{rows} rows of {client_id} from {folder}")
        if self._receiver is not None:
            self._receiver.close()
        # Later: Locust may be going through its workers while it calls this.
        gevent.spawn(forget_missing, self._runner)
        return tuple(self._lost_text(run, client_id) for client_id in self._incomplete(run))

    def _wait_for_rows(self, run: OwnedRun) -> None:
        """Until all that can come has; a worker that comes back has its streams to end first."""
        stop_timeout_s = float(self._environment.stop_timeout or 0.0)
        missing = {id_ for id_ in run.spec.ranks if self.states().get(id_) == MISSING}
        began_s = run.now_s()
        until_s = {
            id_: began_s + (MISSING_S if id_ in missing else COLLECT_S) for id_ in run.spec.ranks
        }
        while any(
            run.now_s() < until_s[id_] and self._may_still_deliver(run, id_)
            for id_ in run.spec.ranks
        ):
            for id_ in [id_ for id_ in missing if self.states().get(id_, MISSING) != MISSING]:
                missing.remove(id_)
                until_s[id_] = run.now_s() + stop_timeout_s + COLLECT_S
            gevent.sleep(0.05)

    def _spool_of(self, run: OwnedRun, client_id: str) -> Path:
        return spool_root(self._environment.parsed_options) / run.spec.run_id / client_id

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
        now_ns = self._clock.now_ns()
        sent_ns = msg.data.get("sent_ns") if isinstance(msg.data, dict) else None
        if isinstance(sent_ns, int):
            pong = {"sent_ns": sent_ns, "master_ns": now_ns}
            self._runner.send_message(messages.PONG, pong, msg.node_id)

    def _on_rows(self, msg: Any, **_: Any) -> None:
        receiver = self._receiver
        if receiver is None:  # of a run before this process
            answer = refusal(msg.data, "no run is being recorded here", orphaned=True)
        else:
            answer = receiver.receive(msg.data, self._clock.now_ns())
            if "offsets" in answer:  # else it was of another run, or no batch
                answer["live_seq"] = self._live.take(msg.data["worker_id"], msg.data.get("live"))
        self._runner.send_message(messages.ACK, answer, msg.node_id)

    def _run_goes_on(self) -> bool:
        return self._receiver is not None and not self._receiver.closed

    def _note_orphan(self, msg: Any) -> None:
        """A worker that another master left behind loaded the target until now."""
        run, run_id = self._begun, msg.data.get("run_id") if isinstance(msg.data, dict) else None
        if run is None or not isinstance(run_id, str):
            return
        orphan = f"{msg.node_id} of run {run_id[:100]}"
        if orphan not in run.orphans and len(run.orphans) < MAX_ORPHANS:
            run.orphans.append(orphan)
            run.event("worker_of_another_run", orphan)

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

    def _may_still_deliver(self, run: OwnedRun, client_id: str) -> bool:
        delivery = self._deliveries().get(client_id)
        if delivery is not None and (delivery.complete or delivery.refused):
            return False
        is_there = self.states().get(client_id, MISSING) != MISSING
        return is_there or self._may_come_back(run, client_id)

    def _may_come_back(self, run: OwnedRun, client_id: str) -> bool:
        """Whether a worker without heartbeat may be cut off: it was heard of not long ago, and is
        not known to be dead, as one of this machine is."""
        if self.states().get(client_id) != MISSING or left_behind(self._spool_of(run, client_id)):
            return False
        delivery = self._deliveries().get(client_id)
        heard_ns = run.run_clock.start_ns if delivery is None else delivery.heard_ns
        return self._clock.now_ns() - heard_ns < GIVEN_UP_S * NS_PER_S

    def _lost_text(self, run: OwnedRun, client_id: str) -> str:
        delivery = self._deliveries().get(client_id)
        name = f"{_worker_id(run, client_id)} ({client_id})"
        if delivery is None:
            return f"{name}: it sent nothing"
        heard_s = run.run_clock.seconds(delivery.heard_ns)
        missing = self._rows_undelivered(delivery)
        return (
            f"{name}: last heard of at {heard_s:.1f} s; {missing} turns it had begun by then "
            f"are missing, with all it began later{_spool_text(delivery)}"
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
        counted(entry, status)
        if delivery.kept_in is not None:
            entry.shard = ShardEntry(delivery.kept_in, delivery.rows, delivery.complete)
        if not delivery.complete:
            entry.lost_at_s = run.run_clock.seconds(delivery.heard_ns)
            entry.rows_undelivered = self._rows_undelivered(delivery)
        entry.missing_s = run.watch.intervals_s.get(client_id, [])
        return entry


def _spool_text(delivery: Delivery) -> str:
    """Where the rows of a lost worker may still be."""
    spool = delivery.status.get("spool")
    return f"; on its machine they may be in {spool[:200]}" if isinstance(spool, str) else ""


def _worker_id(run: OwnedRun, client_id: str) -> str:
    return f"w{rank_of(client_id, run.spec.ranks)}"
