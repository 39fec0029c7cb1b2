"""The machine-readable form of a report; its keys are documented in docs/metrics.md."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

from analysis.finding import Finding
from analysis.report.answer import sentences
from analysis.results import ArmResults, Comparison, Results
from analysis.starts import Starts
from analysis.statistics import Effect

SUMMARY_SCHEMA_VERSION = 1


def summary(results: Results, findings: Sequence[Finding]) -> dict[str, Any]:
    """All figures as JSON values. Not measured is null; there is no NaN and no infinity."""
    return {
        "schema_version": SUMMARY_SCHEMA_VERSION,
        "has_data": results.has_data,
        "answer": sentences(results),
        "findings": _plain(list(findings)),
        "runs": [_run(run) for run in results.runs],
        "arms": [_arm(arm) for arm in results.arms],
        "comparison": None if results.comparison is None else _comparison(results.comparison),
    }


def summary_text(results: Results, findings: Sequence[Finding]) -> str:
    found = summary(results, findings)
    return json.dumps(found, indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def _run(run: Any) -> dict[str, Any]:
    manifest = run.run.manifest
    return {
        "run_id": manifest.run_id,
        "arm": manifest.arm,
        "state": manifest.state,
        "verdict": manifest.verdict,
        "verdict_reasons": list(manifest.verdict_reasons),
        "scenario": manifest.scenario.get("name"),
        "seed": _plain(manifest.scenario.get("seed")),
        "context_scale": manifest.context_scale,
        "sim_speed": manifest.sim_speed,
        "model": _plain(manifest.target.get("model")),
        "server_version": _plain(manifest.target.get("server_version")),
        "window": {**asdict(run.window), "seconds": run.window.seconds},
        "notes": list(run.notes),
    }


def _arm(results: ArmResults) -> dict[str, Any]:
    return {
        "name": results.arm.name,
        "settings": _plain(results.arm.settings),
        "classes": {row.turn_class: _plain(row) for row in results.classes},
        "sessions": _plain(results.sessions),
        "waterfalls": _plain(results.waterfalls),
        "server_frontend_s": results.server_frontend_s,
        "by_hit_ratio": _plain(results.by_hit_ratio),
        "by_idle_time": _plain(results.by_idle_time),
        "frontend_line": _plain(results.frontend_line),
        "interference": _plain(results.interference),
        "stall_checks": _plain(results.stall_checks),
        "pressure": [
            {**_plain(p), "limit": p.limit, "preemptions_per_100": p.preemptions_per_100}
            for p in results.pressure
        ],
        "gpu": _plain(results.gpu),
        "replicas": _plain(results.replicas),
        "starts": _starts(results.starts),
    }


def _starts(found: Starts | None) -> dict[str, Any] | None:
    return None if found is None else {**_plain(found), "overloaded": found.overloaded}


def _comparison(found: Comparison) -> dict[str, Any]:
    return {
        "base": found.base,
        "paired_turns": found.paired_turns,
        "paired_sessions": found.paired_sessions,
        "differing_settings": found.differing,
        "differences": [_effect(e) for e in found.differences],
        "factorial": [_effect(e) for e in found.factorial],
    }


def _effect(found: Effect) -> dict[str, Any]:
    return {
        "name": found.name,
        "statistic": found.statistic.name,
        "unit": found.statistic.unit,
        "turns_of": found.turns_of,
        "base": _plain(found.base),
        "difference": _plain(found.value),
        "relative": _plain(found.relative),
        "low": _plain(found.low),
        "high": _plain(found.high),
        "clear": found.is_clear,
        "turns": found.turns,
        "sessions": found.sessions,
        "reason": found.reason,
    }


def _plain(value: Any) -> Any:
    """JSON values of dataclasses, tuples and numbers; a number that is not finite is null."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(v) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    return str(value.value if isinstance(value, Enum) else value)
