"""Findings about the measurement itself: can the numbers be used at all."""

from __future__ import annotations

import numpy as np

from analysis.distribution import mean_of, ratio
from analysis.finding import Finding, first_rows, rows_by
from analysis.metrics import ALL, ClassFigures
from analysis.report import format as f
from analysis.results import ArmResults
from analysis.windows import Degradation, WorkerState, degradation

MAX_BUFFERED = 0.5
MAX_IMPLAUSIBLE = 0.05
MAX_LATE_GAPS = 0.01
MAX_CLIENT_LAG_S = 0.1
MAX_FIRST_TURN_EXCESS = 0.01
PREFIX_ERROR = 0.1  # of the shared prefix: its planned size follows measured characters per token
BUSY_CPU = 0.9
MIN_LATER_TURNS = 100  # below, there is no P99

_WORKER_STATES = {"worker_missing": "missing", "worker_left": "missing",
                  "worker_returned": "running", "worker_joined": "running"}  # fmt: skip


def everything(arm: ArmResults) -> ClassFigures:
    row = arm.of_class(ALL)
    assert row is not None
    return row


def client_bound(arm: ArmResults) -> Finding | None:
    """The load generator was late or out of CPU, by its own loop samples and gap marks."""
    loadgen = [run.run.loadgen for run in arm.arm.runs]
    lags = np.concatenate([frame["lag_max_s"].to_numpy() for frame in loadgen])
    cpus = np.concatenate([frame["cpu_share"].to_numpy() for frame in loadgen])
    lag = float(np.nanquantile(lags, 0.9)) if (~np.isnan(lags)).any() else 0.0
    busy = float((cpus > BUSY_CPU).mean()) if len(cpus) else 0.0
    late = everything(arm).late_gap_share or 0.0
    if lag <= MAX_CLIENT_LAG_S and busy <= 0.1 and late <= MAX_LATE_GAPS:
        return None
    return Finding(
        "client-bound",
        "The load generator was too busy to measure",
        "problem",
        "high",
        f"Its event loop was late by {f.seconds(lag)} or more in one second of ten; "
        f"{f.share(busy)} of its seconds used more than {BUSY_CPU:.0%} of a core; "
        f"{f.share(late)} of the gaps fell into its own pauses.",
        "Add worker processes or machines until the lag stays below 10 ms; do not use latencies "
        "of this run before that.",
        f"{f.share(late)} of the gaps come back into the figures, and tails lose what the client "
        f"added, up to {f.seconds(lag)} a chunk.",
        arm.arm.name,
        _late_rows(arm),
    )


def _late_rows(arm: ArmResults) -> tuple[int, ...]:
    """The turns with most gaps in the client's pauses, else those sent latest."""
    turns = arm.arm.turns()
    late = turns["late_gaps"].fillna(0.0)
    return rows_by(turns, late if late.any() else turns["lag_s"])


def unconfirmed_stalls(arm: ArmResults) -> Finding | None:
    """The client saw gaps that the server's own histogram does not have."""
    turns = arm.arm.turns()
    for check in arm.stall_checks:
        if check is not None and not check.confirmed:
            return Finding(
                "network-bound",
                "Gaps that the server did not make",
                "problem",
                "medium",
                f"{check.client_gaps:,} gaps above {f.seconds(check.bound_s)} here, "
                f"{f.number(check.server_gaps)} in the server's own inter-token histogram.",
                "Look between server and client: a proxy that buffers, a lossy or full link, or a "
                "starved load generator. Run the client beside the server.",
                f"{check.client_gaps - round(check.server_gaps):,} of the long gaps go.",
                arm.arm.name,
                rows_by(turns, turns["itl_max_s"]),
            )
    return None


def buffering_proxy(arm: ArmResults) -> Finding | None:
    """Whole answers arrive at once: their TTFT and gaps are those of the buffer."""
    row = everything(arm)
    buffered = ratio(row.buffered, row.successes) or 0.0
    implausible = ratio(row.implausible, row.successes) or 0.0
    if buffered < MAX_BUFFERED and implausible < MAX_IMPLAUSIBLE:
        return None
    turns = arm.arm.turns()
    held = turns["flags"].astype(object).str.contains("buffered_stream").eq(True)
    return Finding(
        "buffering-proxy",
        "Answers arrive in one piece",
        "problem",
        "high",
        f"{f.share(buffered)} of the successful turns came with nearly all gaps below 1 ms after a "
        f"long wait; {f.share(implausible)} decoded faster than possible and are left out.",
        "Switch response buffering off in the proxy or gateway (nginx: proxy_buffering off).",
        _unbuffered(arm),
        arm.arm.name,
        first_rows(turns[(held | turns["implausible"]).to_numpy() & turns["measured"].to_numpy()]),
    )


def _unbuffered(arm: ArmResults) -> str:
    """What TTFT falls to: the server's own mean, where it is known."""
    turns = arm.arm.turns()
    mine = turns[((turns["status"] == "success") & turns["measured"]).to_numpy()]
    now = mean_of(mine["ttft_s"].to_numpy())
    own = [h.mean_s for run in arm.arm.runs if (h := run.scrape.histogram("ttft")) is not None]
    decode = mean_of(mine["server_decode_s"].to_numpy())
    if own and own[0] is not None:
        return f"Mean TTFT falls from {f.seconds(now)} to the server's own {f.seconds(own[0])}."
    if decode is not None:
        return f"Mean TTFT falls from {f.seconds(now)} by about {f.seconds(decode)} of decoding."
    return f"TTFT (now {f.seconds(now)} on average) falls by the time that decoding takes."


def too_few_samples(arm: ArmResults) -> Finding | None:
    row = arm.later or arm.of_class("cold")
    if row is None or row.successes >= MIN_LATER_TURNS:
        return None
    times = max(2, round(MIN_LATER_TURNS / max(row.successes, 1) + 0.5))
    turns = arm.arm.turns()
    return Finding(
        "too-few-samples",
        "Too few turns for a tail",
        "hint",
        "high",
        f"{row.successes} successful {row.turn_class} turns; a P99 needs {MIN_LATER_TURNS}, and "
        "1,000 for comfort.",
        f"Run {times} times as long, or with more sessions.",
        f"About {times * max(row.successes, 1):,} such turns: P99 appears.",
        arm.arm.name,
        first_rows(turns[(turns["counted"] & (turns["turn_class"] != "cold")).to_numpy()]),
    )


def warm_start(arm: ArmResults) -> Finding | None:
    """First turns hit the cache beyond what sessions share: an earlier arm or run filled it."""
    turns = arm.arm.turns()
    first = turns[(turns["counted"] & (turns["turn_class"] == "cold")).to_numpy()]
    first = first[first[["cached_tokens", "planned_prefix_tokens"]].notna().all(axis=1).to_numpy()]
    hit = ratio(float(first["cached_tokens"].sum()), float(first["prompt_tokens"].sum()))
    shared = ratio(
        float(first["planned_prefix_tokens"].sum()), float(first["planned_prompt_tokens"].sum())
    )
    if hit is None or shared is None:
        return None
    if arm_is_valid(hit, shared, MAX_FIRST_TURN_EXCESS + PREFIX_ERROR * shared):
        return None
    excess = float(first["cached_tokens"].sum() - first["planned_prefix_tokens"].sum())
    return Finding(
        "warm-start",
        "First turns found a warm cache",
        "problem",
        "high",
        f"{f.share(hit)} of the first turns' prompts was cached; the sessions share only "
        f"{f.share(shared)}.",
        "Restart the server or reset its cache before each arm (or give each arm another seed), "
        "and run the arm again: it measured an earlier run's cache.",
        f"{f.number(excess / len(first))} more tokens to prefill in a first turn on average.",
        arm.arm.name,
        rows_by(first, first["cached_tokens"]),
    )


def arm_is_valid(first_turn_hit: float, shared: float, max_excess: float) -> bool:
    """First turns may hit what all sessions share, and at most `max_excess` of the prompt more."""
    return first_turn_hit <= shared + max_excess


def server_restarted(arm: ArmResults) -> Finding | None:
    restarts = sum(p.restarts for p in arm.pressure)
    if not restarts:
        return None
    turns = arm.arm.turns()
    short = (turns["eligible_tokens"] - turns["cached_tokens"]).clip(lower=0.0)
    lost = float(short[turns["counted"]].sum())
    return Finding(
        "server-restarted",
        "A server restarted during the run",
        "problem",
        "high",
        f"Its counters started again {restarts} time{'s' if restarts > 1 else ''}; the prefix "
        "cache was lost with them.",
        "Find out why (out of memory, a failing probe) and run again: do not compare this arm.",
        f"{f.number(lost)} tokens that turns after it had to compute again are reused."
        if lost
        else "No tokens were seen to be lost with it.",
        arm.arm.name,
        rows_by(turns, short),
    )


def workers_missing(arm: ArmResults) -> Finding | None:
    """Load was lost for a while."""
    found = [_degradation(arm, i) for i in range(len(arm.arm.runs))]
    number = max(range(len(found)), key=lambda i: found[i].seconds)
    worst = found[number]
    if not worst.intervals_s:
        return None
    turns = arm.arm.turns()
    begin_s = turns["call_start_s"].to_numpy()
    in_span = np.any([(begin_s >= a) & (begin_s <= b) for a, b in worst.intervals_s], axis=0)
    in_span &= turns["run"].to_numpy() == number
    spans = ", ".join(f"{a:.0f} to {b:.0f} s" for a, b in worst.intervals_s[:5])
    return Finding(
        "workers-missing",
        "Workers of the load generator were missing",
        "problem",
        "high",
        f"For {f.seconds(worst.seconds)} ({spans}).",
        "These stretches had less load than planned and must not be used for capacity. Look for "
        "blocked event loops, CPU limits, or evicted pods.",
        f"{f.seconds(worst.seconds)} of the run carry the planned load again.",
        arm.arm.name,
        first_rows(turns[in_span]),
    )


def _degradation(arm: ArmResults, index: int) -> Degradation:
    run = arm.arm.runs[index]
    found = run.run.events
    columns = (found[name].tolist() for name in ("time_s", "detail", "kind"))
    events = [
        WorkerState(float(time_s), str(worker), _WORKER_STATES[kind], 0)
        for time_s, worker, kind in zip(*columns, strict=True)
        if kind in _WORKER_STATES
    ]
    return degradation(events, 0, run.window.to_s)


RULES = (
    client_bound,
    workers_missing,
    server_restarted,
    warm_start,
    buffering_proxy,
    unconfirmed_stalls,
    too_few_samples,
)
