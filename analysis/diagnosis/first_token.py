"""Findings about the time to the first token."""

from __future__ import annotations

import pandas as pd

from analysis.finding import Finding, rows_by
from analysis.metrics import LATER
from analysis.pressure import Pressure
from analysis.report import format as f
from analysis.results import ArmResults
from analysis.waterfall import Waterfall

MIN_SHARE = 0.4
MIN_FRONTEND_S = 0.1
MIN_QUEUE_S = 0.1
SLOPE_SHARE = 0.5  # of the front end's time that grows with the prompt: then it is tokenization
DEFAULT_COLD_LIMIT_S = 30.0


def _later_fall(arm: ArmResults) -> Waterfall | None:
    falls = [w for w in arm.waterfalls if w.label in (LATER, "all turns")]
    return falls[0] if falls else None


def _speed(arm: ArmResults) -> float:
    """How much faster than real time the server ran: bounds in seconds shrink with it."""
    return max(arm.arm.runs[0].run.manifest.sim_speed or 1.0, 1.0)


def _counted(arm: ArmResults, *, cold: bool) -> pd.DataFrame:
    turns = arm.arm.turns()
    mine = (turns["turn_class"] == "cold").to_numpy() == cold
    found: pd.DataFrame = turns[mine & turns["counted"].to_numpy()]
    return found


def front_end_bound(arm: ArmResults) -> Finding | None:
    """Neither queue nor prefill takes the time: tokenization when it grows with the prompt."""
    fall = _later_fall(arm)
    if fall is None or fall.frontend_s < MIN_FRONTEND_S / _speed(arm):
        return None
    if fall.frontend_s + fall.send_s < MIN_SHARE * fall.ttft_s:
        return None
    line, prompt = arm.frontend_line, arm.classes[-1].prompt_tokens.mean
    grows = line is not None and prompt is not None and line.n >= 20
    growing = line.slope_s_per_token * prompt if line and prompt else 0.0
    in_server = arm.server_frontend_s
    server_says = in_server is not None and in_server > SLOPE_SHARE * fall.frontend_s
    share = f.share((fall.frontend_s + fall.send_s) / fall.ttft_s)
    evidence = f"{f.seconds(fall.frontend_s)} of {f.seconds(fall.ttft_s)} mean TTFT ({share})"
    turns = _counted(arm, cold=False)
    rows = rows_by(turns, turns["frontend_s"].fillna(turns["ttft_s"]))
    if (grows and growing > SLOPE_SHARE * fall.frontend_s) or server_says:
        if growing > 0:
            in_front, how = min(growing, fall.frontend_s), "grows with its length"
        else:
            in_front, how = in_server or 0.0, "passes in the server before the queue"
        sure = server_says and growing > 0
        return _tokenization(arm, evidence, min(in_front, fall.frontend_s), prompt, rows, sure, how)
    return Finding(
        "network-bound",
        "The way to the server takes the time",
        "problem",
        "medium",
        f"{evidence} is neither queue nor prefill, and it does not grow with the prompt.",
        "Run the client beside the server, without the proxy.",
        f"TTFT falls by up to {f.seconds(fall.frontend_s)}.",
        arm.arm.name,
        rows,
    )


def _tokenization(
    arm: ArmResults,
    evidence: str,
    in_front_s: float,
    prompt: float | None,
    rows: tuple[int, ...],
    sure: bool,
    how: str,
) -> Finding:
    size = f" for the mean prompt of {f.number(prompt)} tokens" if prompt else ""
    return Finding(
        "tokenization-bound",
        "Tokenization and the front end take the time",
        "problem",
        "high" if sure else "medium",
        f"{evidence} is neither queue nor prefill; {f.seconds(in_front_s)} of it{size} {how}.",
        "Send the same sessions as token ids to /v1/completions to see the gain; raise "
        "--api-server-count so that prompts are tokenized side by side, or tokenize only what a "
        "turn appends.",
        f"As token ids TTFT falls by about {f.seconds(in_front_s)}; --api-server-count removes the "
        "waiting behind other prompts only.",
        arm.arm.name,
        rows,
    )


def queue_bound(arm: ArmResults) -> Finding | None:
    """Turns wait to be scheduled."""
    fall = _later_fall(arm)
    if fall is None or fall.queue_s < MIN_QUEUE_S / _speed(arm):
        return None
    worst = max(arm.pressure, key=lambda p: p.waiting_mean or 0.0)
    if fall.queue_s < MIN_SHARE * fall.ttft_s or worst.limit == "none":
        return None
    turns = _counted(arm, cold=False)
    state = (
        f"{f.number(worst.waiting_mean)} requests wait on average, "
        f"{f.number(worst.running_mean)} run."
        if worst.waiting_mean is not None
        else "How many wait is not known without /metrics."
    )
    return Finding(
        "queue-bound",
        "Turns wait in the server's queue",
        "problem",
        "high" if worst.limit in ("admission", "memory") else "medium",
        f"{f.seconds(fall.queue_s)} of {f.seconds(fall.ttft_s)} mean TTFT is queue; {state}",
        _queue_advice(worst),
        f"TTFT falls by up to {f.seconds(fall.queue_s)}, "
        f"{f.share(fall.queue_s / fall.ttft_s)} of it.",
        arm.arm.name,
        rows_by(turns, turns["server_queue_s"].fillna(turns["ttft_s"])),
    )


def _queue_advice(worst: Pressure) -> str:
    return {
        "admission": f"Raise --max-num-seqs (now {worst.max_num_seqs}): all slots are taken while "
        f"KV use is at most {f.share(worst.kv_usage_max)}. More replicas are not needed for this.",
        "memory": "Memory is the limit: fewer sessions per replica, more KV memory, or replicas.",
        "compute": "The step budget is used up by prompts: cache more of them, raise "
        "--max-num-batched-tokens, or add replicas.",
    }.get(worst.limit or "", "Raise --max-num-seqs, or add replicas.")


def prefill_bound(arm: ArmResults) -> Finding | None:
    """Cold prefixes take longer than their limit, and it is their own prefill."""
    cold = next((w for w in arm.waterfalls if w.label == "cold"), None)
    row = arm.of_class("cold")
    slos = arm.arm.runs[0].run.manifest.scenario.get("slos")
    limits = slos.get("cold") if isinstance(slos, dict) else None
    limit = (limits or {}).get("ttft_s") or DEFAULT_COLD_LIMIT_S / _speed(arm)
    if cold is None or row is None or row.ttft_s.p50 is None or row.ttft_s.p50 <= limit:
        return None
    if cold.prefill_s < 0.5 * cold.ttft_s:
        return None
    turns = _counted(arm, cold=True)
    return Finding(
        "prefill-bound",
        "Cold prefixes take too long",
        "hint",
        "high",
        f"Cold turns: median TTFT {f.seconds(row.ttft_s.p50)}, limit {f.seconds(limit)}; "
        f"{f.seconds(cold.prefill_s)} of {f.seconds(cold.ttft_s)} on average is their prefill.",
        "Share more of the prompt between sessions, keep sessions cached for longer, or compute "
        "faster (tensor parallel, more GPUs). Settings of the scheduler do not help here.",
        f"The limit needs {f.share(1.0 - limit / row.ttft_s.p50)} less to compute, or a server "
        f"{f.number(row.ttft_s.p50 / limit)} times as fast.",
        arm.arm.name,
        rows_by(turns, turns["ttft_s"]),
    )


RULES = (front_end_bound, queue_bound, prefill_bound)
