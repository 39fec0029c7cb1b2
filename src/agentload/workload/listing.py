"""The command `agentload sessions`: what the sessions of a scenario will do."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from agentload.scenario import Scenario, load, parse_override
from agentload.workload.content import Corpus
from agentload.workload.plan import SessionPlan, hit_ratio, kv_pressure, plan_session
from agentload.workload.reach import too_short
from agentload.workload.traces.replay import load_replay, session_source
from agentload.workload.turn import Turn
from agentload.workload.window import misfit

_NOT_LISTED = ("append", "spawns")  # text, and what `children` holds


def main(argv: Sequence[str]) -> int:
    """List the plan on standard output. 0, or 2 when the scenario or an option has a fault."""
    options = _parser().parse_args(argv)
    try:
        overrides = dict(parse_override(text) for text in options.set)
        overrides |= {"seed": options.seed} if options.seed is not None else {}
        scenario = load(options.scenario, overrides)
        problem = misfit(scenario, options.max_model_len)
        if problem is not None:
            raise ValueError(problem)
        plans = _plans(scenario, options)
    except ValueError as error:
        print(f"agentload sessions: {error}", file=sys.stderr)
        return 2
    summary = summarise(scenario, plans, options)
    if options.json:
        listed = {"summary": summary, "sessions": [_as_json(plan) for plan in plans]}
        print(json.dumps(listed, indent=1))
    else:
        print(_table(plans))
        print("\n".join(f"{name}: {_plain(value)}" for name, value in summary.items()))
    return 0


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def _positive_float(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentload sessions", description="List what the sessions of a scenario will do."
    )
    add = parser.add_argument
    add("scenario", type=Path, help="scenario file")
    add("--seed", type=int, help="instead of the scenario's")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a setting")
    add("--count", type=_positive, default=10, help="sessions to list (10)")
    add("--turns", type=_positive, default=200, help="turns of a session to list at most (200)")
    add("--chars-per-token", type=_positive_float, help="of the target; default: the scenario's")
    add("--max-model-len", type=_positive, help="context length of the target")
    add("--blocks", type=_positive, help="KV blocks of the target, for the KV pressure")
    add("--block-size", type=_positive, default=16, help="tokens in a block (16)")
    add("--ttft-s", type=_positive_float, default=1.0, help="assumed for the duration (1.0)")
    add("--tokens-per-s", type=_positive_float, default=40.0, help="assumed likewise (40)")
    add("--json", action="store_true", help="everything, as JSON")
    return parser


def _plans(scenario: Scenario, options: argparse.Namespace) -> list[SessionPlan]:
    corpus = Corpus()
    ratio = options.chars_per_token or scenario.starting_chars_per_token
    replay = load_replay(scenario)
    make = session_source(scenario, corpus, ratio, options.max_model_len, replay=replay)
    return [plan_session(make(index), options.turns) for index in range(options.count)]


def summarise(
    scenario: Scenario, plans: list[SessionPlan], options: argparse.Namespace
) -> dict[str, Any]:
    """What the plan comes to; a value that cannot be told is None."""
    turns = [turn for plan in plans for turn in plan.all_turns()]
    later = [turn for turn in turns if turn.turn_index > 0]
    users = max(stage.users for stage in scenario.stages)
    planned_s = sum(stage.duration_s for stage in scenario.stages)
    session_s = median(plan.duration_s(options.ttft_s, options.tokens_per_s) for plan in plans)
    pressure = None
    if options.blocks is not None:
        pressure = kv_pressure(plans, users, options.blocks, options.block_size)
    summary: dict[str, Any] = {
        "scenario": scenario.name,
        "seed": scenario.seed,
        "context_scale": scenario.context_scale,
        "sessions": len(plans),
        "sessions_cut_short": sum(plan.cut_short for plan in plans),
        "turns": len(turns),
        "turns_by_class": dict(sorted(Counter(turn.turn_class for turn in turns).items())),
        "prompt_tokens_p50": median(turn.planned_prompt_tokens for turn in turns),
        "output_tokens_p50": median(turn.output_tokens for turn in turns),
        "append_chars_p50": median(t.append_chars for t in later) if later else None,
        "hit_ratio_before_eviction": hit_ratio(turns, options.block_size),
        "hit_ratio_after_first_turns": hit_ratio(later, options.block_size),
        "users": users,
        "kv_pressure": pressure,
        "session_duration_p50_s": round(session_s, 1),
        "stages_duration_s": planned_s,
        "warning": too_short(session_s, planned_s),
    }
    return summary


def _as_json(plan: SessionPlan) -> dict[str, Any]:
    return {
        "session_id": plan.session_id,
        "parent_session_id": plan.parent_session_id,
        "start_state": plan.start_state,
        "cut_short": plan.cut_short,
        "turns": [_turn_json(turn) for turn in plan.turns],
        "children": [_as_json(child) for child in plan.children],
    }


def _turn_json(turn: Turn) -> dict[str, Any]:
    bare = {k: v for k, v in _fields(turn).items() if k not in _NOT_LISTED}
    return {**bare, "messages": len(turn.append), "spawns": [asdict(plan) for plan in turn.spawns]}


def _fields(turn: Turn) -> dict[str, Any]:
    return {name: getattr(turn, name) for name in turn.__dataclass_fields__}


def _table(plans: list[SessionPlan]) -> str:
    lines = ["session            state         turns  first prompt  last prompt  children"]
    for plan in plans:
        first = plan.turns[0].planned_prompt_tokens if plan.turns else 0
        last = plan.turns[-1].planned_prompt_tokens if plan.turns else 0
        more = "+" if plan.cut_short else " "
        lines.append(
            f"{plan.session_id:<18} {plan.start_state:<12} {len(plan.turns):>6}{more}"
            f" {first:>13,} {last:>12,} {len(plan.children):>9}"
        )
    return "\n".join(lines) + "\n"


def _plain(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
