"""The load generator's judgement of its own run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentload.recording.manifest import Judgement

SHORTEST_GAP_SHARE = 0.5  # of the shortest token gap: later than that, two tokens can be glued
MERGED_SHARE = 0.001
BUSY_CPU = 0.7
BUSY_SECONDS_SHARE = 0.1
CLOCK_ERROR_S = 0.005
MIN_PLAN_SHARE = 0.95
STOOD_STILL_S = 3.0  # the owner looks five times a second
SIMULATOR_LATE_SHARE = 0.01  # of its chunks more than 5 ms late: what the embedded server keeps to


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the verdict rests on; None = not measured. Figures are the worst of all workers."""

    rows_lost: int = 0
    rows_refused: int = 0
    workers_lost: tuple[str, ...] = ()
    workers_changed: tuple[str, ...] = ()
    workers_joined: tuple[str, ...] = ()  # late ones, that took no users
    listener_errors: int = 0
    loop_lag_p99_s: float | None = None
    shortest_gap_s: float | None = None
    chunks: int = 0
    late_merged_chunks: int = 0  # read together because the reader came late
    user_stamped_chunks: int = 0  # stamped by the program, not by the kernel
    busy_seconds_share: float | None = None
    throttled_periods: int | None = None
    clock_offset_error_s: float | None = None
    clock_offset_unknown: tuple[str, ...] = ()
    simulator_late_share: float | None = None
    orphans: tuple[str, ...] = ()  # workers of another run
    owner_stood_still_s: float = 0.0  # the longest time in which it did not look
    planned_s: float | None = None
    ended_s: float | None = None
    turns_recorded: int = 0


def judge(evidence: Evidence) -> Judgement:
    """`invalid` when data are missing, `suspect` when they may be wrong, else `valid`."""
    invalid = tuple(_missing(evidence))
    suspect = tuple(_doubtful(evidence))
    level = "invalid" if invalid else "suspect" if suspect else "valid"
    return Judgement(level, invalid + suspect)  # type: ignore[arg-type]


def run_share(evidence: Evidence) -> float | None:
    """Real over planned duration; None for a run without a planned end."""
    if not evidence.planned_s or evidence.ended_s is None:
        return None
    return evidence.ended_s / evidence.planned_s


def _missing(e: Evidence) -> Iterator[str]:
    if e.rows_lost:
        yield f"{e.rows_lost} turns were sent but are not in turns.csv"
    if e.rows_refused:
        yield f"{e.rows_refused} rows could not be written to disk"
    for worker in e.workers_lost:
        yield f"worker lost: {worker}"
    for change in e.workers_changed:
        yield f"the workers changed during the run: {change}"
    if e.listener_errors:
        yield f"{e.listener_errors} errors inside the recording itself; see the log"
    share = run_share(e)
    if share is not None and share < MIN_PLAN_SHARE:
        yield f"the run ended after {share:.0%} of its planned {e.planned_s:g} s"
    if not e.turns_recorded:
        yield "no turn was recorded"


def _doubtful(e: Evidence) -> Iterator[str]:
    if (  # a kernel stamp is right however late the program is; its own stamp is late with it
        e.user_stamped_chunks
        and e.loop_lag_p99_s is not None
        and e.shortest_gap_s
        and e.loop_lag_p99_s > SHORTEST_GAP_SHARE * e.shortest_gap_s
    ):
        yield (
            f"event loop late by {e.loop_lag_p99_s * 1e3:.1f} ms (P99), more than half of the "
            f"shortest token gap of {e.shortest_gap_s * 1e3:.1f} ms, and {e.user_stamped_chunks} "
            "chunks have no kernel stamp"
        )
    if e.chunks and e.late_merged_chunks / e.chunks > MERGED_SHARE:
        yield (
            f"{e.late_merged_chunks / e.chunks:.2%} of the chunks were read together with another "
            f"because the reader came late (more than {MERGED_SHARE:.1%})"
        )
    if e.busy_seconds_share is not None and e.busy_seconds_share > BUSY_SECONDS_SHARE:
        yield (
            f"a worker used more than {BUSY_CPU:.0%} of a core in {e.busy_seconds_share:.0%} "
            "of its seconds: add workers"
        )
    if e.throttled_periods:
        yield f"the container's CPU quota stopped a worker {e.throttled_periods} times"
    if e.clock_offset_error_s is not None and e.clock_offset_error_s > CLOCK_ERROR_S:
        yield (
            f"clock offset of a worker known to {e.clock_offset_error_s * 1e3:.1f} ms only "
            f"(wanted: {CLOCK_ERROR_S * 1e3:g} ms)"
        )
    yield from _disturbed(e)
    for worker in e.clock_offset_unknown:
        yield f"clock offset of worker {worker} not measured"
    if e.simulator_late_share is not None and e.simulator_late_share > SIMULATOR_LATE_SHARE:
        yield (
            f"the simulator sent {e.simulator_late_share:.1%} of its chunks more than 5 ms late "
            f"(more than {SIMULATOR_LATE_SHARE:.0%}): lower --speed"
        )


def _disturbed(e: Evidence) -> Iterator[str]:
    """What happened to the processes of the run, other than their loss."""
    if e.owner_stood_still_s > STOOD_STILL_S:
        yield (
            f"the owner of the run stood still for {e.owner_stood_still_s:.1f} s: "
            "stages may have begun and ended that late"
        )
    for worker in e.orphans:
        yield f"a worker of another run loaded beside this one until it was told to end: {worker}"
    for worker in e.workers_joined:
        yield f"a worker came after the start and got no users, the others bore the load: {worker}"
