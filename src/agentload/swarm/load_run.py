"""One run in one process that generates load."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from gevent.event import Event

from agentload.client.deadlines import Deadlines
from agentload.client.result import StreamResult
from agentload.client.settings import TargetSettings
from agentload.client.token_body import Tokenizer
from agentload.client.transport import Client
from agentload.clock import NS_PER_S, Clock, RunClock
from agentload.live.counting import LiveTurns
from agentload.live.wire import LiveSender
from agentload.recording.health import CpuShare, LoopLag, throttled_periods
from agentload.recording.record import LoadgenSample, RunEvent, TurnRecord
from agentload.recording.recorder import Recorder
from agentload.recording.turn_rows import TurnContext, turn_rows
from agentload.recording.verdict import BUSY_CPU
from agentload.scenario.model import Scenario
from agentload.swarm.bodies import token_source
from agentload.swarm.live.rules import counting_rules
from agentload.swarm.numbering import SESSION_STRIDE, Seats, rank_of
from agentload.swarm.spec import RunSpec
from agentload.turn_metrics import StallRule, usable_gaps_s, usable_gaps_us
from agentload.workload.arrival import Start, open_starts
from agentload.workload.content import Corpus
from agentload.workload.session import Session
from agentload.workload.traces.replay import Replay, session_source
from agentload.workload.turn import Turn

logger = logging.getLogger(__name__)

MIN_GAPS_FOR_SHORTEST = 10


@dataclass(slots=True)
class Counters:
    """What this process did in the run, as it goes to the owner once a second."""

    planned: int = 0
    sent: int = 0
    recorded: int = 0
    dropped: int = 0
    at_gate: int = 0  # users that wait for the end of the warm-up
    errors: int = 0
    listener_errors: int = 0
    chunks: int = 0
    merged_chunks: int = 0
    late_merged_chunks: int = 0
    user_stamped_chunks: int = 0
    seconds: int = 0
    busy_seconds: int = 0
    cpu_share: float | None = None  # of one core, in the last second
    rows_queued: int = 0
    shortest_gap_s: float | None = None
    by_error: dict[str, int] = field(default_factory=dict)


class LoadRun:
    """Builds sessions, sends their turns, records what became of them.

    `clock_offset_ns` returns owner's clock minus ours, so that every instant is on the run's clock.
    """

    def __init__(
        self,
        spec: RunSpec,
        settings: TargetSettings,
        corpus: Corpus,
        recorder: Recorder,
        clock: Clock,
        client_id: str,
        clock_offset_ns: Callable[[], int],
        deadlines: Deadlines,
        replay: Replay | None = None,
    ) -> None:
        rank = rank_of(client_id, spec.ranks)
        self.spec = spec
        self.plan = spec.plan
        self.scenario: Scenario = spec.scenario()
        self.settings = settings
        self.recorder = recorder
        self.clock = clock
        self.worker_id = f"w{rank}"
        # Users take the sessions of a trace in its order: their strides have to leave out none.
        stride = SESSION_STRIDE if replay is None else max(step.users for step in spec.steps)
        self.seats = Seats(rank, len(spec.ranks), stride)
        self.counters = Counters()
        self.lag = LoopLag()
        self.live = LiveSender(LiveTurns(counting_rules(self.plan, self.scenario)))
        self.gate = Event()
        self.stopping = False
        self.on_row: Callable[[TurnRecord], None] | None = None  # after all else
        self.in_flight = 0
        self.deadlines = deadlines
        self._token_source = token_source(self.scenario, spec.model, spec.token_cuts)
        self._text = (corpus, spec.chars_per_token, spec.max_model_len)
        self._replay = replay
        self._make = session_source(self.scenario, *self._text, spec.run_salt, replay)
        self._clock_offset_ns = clock_offset_ns
        self._stages_from_s: float | None = None
        self._stall_rule = StallRule(self.scenario.stalls.times_median, self.scenario.stalls.min_s)
        self._cpu = CpuShare()
        self._cpu.take(clock.now_ns())
        self._throttled_before = throttled_periods()
        if spec.stages_from_s is not None:
            self.begin_stages(spec.stages_from_s)

    # -- time -------------------------------------------------------------------------------

    def run_clock(self) -> RunClock:
        """The run's clock for instants of this process, by the offset as it is known now."""
        start_ns = self.spec.run_start_ns - self._clock_offset_ns()
        return RunClock(start_ns, self.spec.wall_start_unix_s)

    def now_s(self) -> float:
        return self.run_clock().seconds(self.clock.now_ns())

    def begin_stages(self, from_s: float) -> None:
        """The warm-up is over: stages count from this second of the run."""
        self._stages_from_s = from_s
        self.live.turns.begin_stages(from_s)
        self.gate.set()

    @property
    def warming_up(self) -> bool:
        return self._stages_from_s is None

    def stage_name(self, at_s: float) -> str:
        return self.plan.name_at(
            -1.0 if self._stages_from_s is None else at_s - self._stages_from_s
        )

    def first_start_ns(self, user: int) -> int:
        """When a user that waited for the end of the warm-up sends its next turn."""
        return self.stage_instant_ns(self.plan.first_start_s(user))

    def stage_instant_ns(self, at_s: float) -> int:
        """Our clock at a second of the stages."""
        run_s = (self._stages_from_s or 0.0) + at_s
        return self.run_clock().start_ns + round(run_s * NS_PER_S)

    def stop(self) -> None:
        """Users that wait for the end of the warm-up go on, and find that all is over."""
        self.stopping = True
        self.gate.set()

    # -- sessions ---------------------------------------------------------------------------

    def new_session(self, user: int) -> Session:
        """The next session of a user of this process."""
        return self.session_at(self.seats.next_session(user))

    def session_at(self, index: int) -> Session:
        """The session with this index in the run."""
        return self._make(index)

    def starts(self) -> Iterator[Start]:
        """When sessions start by themselves, since the stages began."""
        if self.scenario.arrivals.population == "open" or self._replay is None:
            return open_starts(self.scenario)
        return self._replay.starts(self.scenario.pace)

    def one_shot(self, number: int) -> Session:
        """The session of one turn that interferes."""
        return Session.one_shot(self.scenario, number, *self._text, run_salt=self.spec.run_salt)

    def check_tokenizer(self) -> None:
        """Raise `NoTokenizerError` when this machine cannot make the ids of prompts."""
        if self._token_source is not None:
            self._token_source.check()

    def tokenizer(self, client: Client) -> Tokenizer | None:
        """What makes the ids of a user's prompts; None where prompts are text."""
        source = self._token_source
        return None if source is None else source.tokenizer(client, self.deadlines)

    # -- records ----------------------------------------------------------------------------

    def record(
        self,
        turn: Turn,
        result: StreamResult,
        *,
        request_id: str,
        intended_start_ns: int,
        in_flight: int,
        attempt: int,
    ) -> None:
        """Write the rows of one attempt and count it. A fault of this code is counted, not raised:
        it would end the user and so change the load."""
        try:
            self._record(turn, result, request_id, intended_start_ns, in_flight, attempt)
        except Exception:
            self.counters.listener_errors += 1
            logger.exception("a turn could not be recorded")

    def _record(
        self,
        turn: Turn,
        result: StreamResult,
        request_id: str,
        intended_start_ns: int,
        in_flight: int,
        attempt: int,
    ) -> None:
        clock = self.run_clock()
        context = TurnContext(
            run_id=self.spec.run_id,
            worker_id=self.worker_id,
            request_id=request_id,
            stage=self.stage_name(clock.seconds(result.call_start_ns)),
            intended_start_ns=intended_start_ns,
            turns_in_flight=in_flight,
            attempt=attempt,
            stall_rule=self._stall_rule,
        )
        freezes = self.lag.freezes_since(result.call_start_ns, self.clock.now_ns())
        row, trace = turn_rows(turn, result, context, clock, freezes)
        if trace is not None:
            self.recorder.record(trace)
            self._count_chunks(result, usable_gaps_s(trace.gaps_us, trace.gap_marks))
        self.recorder.record(row)
        self.counters.recorded += 1
        gaps = () if trace is None else usable_gaps_us(trace.gaps_us, trace.gap_marks)
        self.live.turns.add(row, gaps)
        self._count_error(result)
        if self.on_row is not None:
            self.on_row(row)

    def _count_chunks(self, result: StreamResult, gaps_s: list[float]) -> None:
        counters = self.counters
        counters.chunks += len(result.chunk_ns)
        counters.merged_chunks += sum(result.merged)
        counters.late_merged_chunks += result.late_merged
        if result.stamp_source == "user":
            counters.user_stamped_chunks += len(result.chunk_ns)
        if len(gaps_s) >= MIN_GAPS_FOR_SHORTEST:
            median_s = sorted(gaps_s)[len(gaps_s) // 2]
            counters.shortest_gap_s = min(counters.shortest_gap_s or median_s, median_s)

    def _count_error(self, result: StreamResult) -> None:
        if result.status != "error":
            return
        name = result.error_class or "unknown"
        seen = self.counters.by_error.get(name, 0)
        self.counters.by_error[name] = seen + 1
        self.counters.errors += 1
        if not seen:
            self.event("first_error", f"{name}: {result.error_text or ''}")

    def event(self, kind: str, detail: str) -> None:
        self.recorder.record(RunEvent(self.now_s(), kind, self.worker_id, detail))

    def sample_second(self, users: int, rows_queued: int) -> None:
        """Write this second's row of `loadgen.csv`."""
        share = self._cpu.take(self.clock.now_ns())
        p50_s, max_s = self.lag.take_second()
        self.counters.seconds += 1
        self.counters.busy_seconds += share > BUSY_CPU
        self.counters.cpu_share, self.counters.rows_queued = share, rows_queued
        self.recorder.record(
            LoadgenSample(
                time_s=self.now_s(),
                worker_id=self.worker_id,
                cpu_share=share,
                lag_p50_s=p50_s,
                lag_max_s=max_s,
                users=users,
                turns_in_flight=self.in_flight,
                rows_queued=rows_queued,
                rows_lost=self.recorder.rows.refused,
            )
        )

    def status(self) -> dict[str, Any]:
        """Counts and health of this process so far: plain values that any message can carry."""
        c = self.counters
        throttled = throttled_periods()
        return {
            "planned": c.planned,
            "sent": c.sent,
            "recorded": c.recorded,
            "dropped": c.dropped,
            "in_flight": self.in_flight,
            "at_gate": c.at_gate,
            "errors": c.errors,
            "listener_errors": c.listener_errors,
            "rows_refused": self.recorder.rows.refused,
            "chunks": c.chunks,
            "merged_chunks": c.merged_chunks,
            "late_merged_chunks": c.late_merged_chunks,
            "user_stamped_chunks": c.user_stamped_chunks,
            "shortest_gap_s": c.shortest_gap_s,
            "cpu_share": c.cpu_share,
            "rows_queued": c.rows_queued,
            "busy_seconds_share": c.busy_seconds / c.seconds if c.seconds else None,
            "loop_lag_p99_s": self.lag.whole_run.quantile_s(0.99),
            "frozen_s": self.lag.frozen_s,
            "throttled_periods": _difference(throttled, self._throttled_before),
        }


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
