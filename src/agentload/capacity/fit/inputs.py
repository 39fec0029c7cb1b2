"""The turns of a run folder as what a fit needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from agentload.capacity.cost.fit import FitError
from agentload.capacity.fit.run import Seen
from agentload.capacity.paths import Reusing, paths
from agentload.sim.core import Turn
from analysis.load import Run

Row = dict[Any, Any]

_TIMES = ("send_start_s", "ttft_s", "first_chunk_s", "last_chunk_s")
_TOKENS = ("prompt_tokens", "output_tokens", "cached_tokens", "planned_prefix_tokens")
_SERVER = ("server_prefill_s", "server_decode_s", "frontend_s")


def seen_turns(run: Run, block_size: int) -> list[Seen]:
    """Every answered turn with its tokens and times, in seconds of the server.

    A run against a simulator at k times real time is stretched by k. What a prompt found cached is
    what the server said, else what was planned. Raises FitError when no turn has its tokens.
    """
    speed = run.manifest.sim_speed or 1.0
    sessions = _sessions(run)
    if not sessions:
        raise FitError(f"{run.path}: no answered turn has its times, prompt and output tokens")
    front = max(_reused(rows, 0) for rows in sessions.values())
    found = []
    for name, rows in sessions.items():
        recorded = [
            Reusing(
                int(row["prompt_tokens"]), max(1, int(row["output_tokens"])), _reused(rows, number)
            )
            for number, row in enumerate(rows)
        ]
        turns = paths(name, recorded, front, block_size)
        found += [_one(row, turn, speed) for row, turn in zip(rows, turns, strict=True)]
    return found


def _sessions(run: Run) -> dict[str, list[Row]]:
    """Answered turns of each session in order of sending; the last attempt of a turn counts."""
    table = run.turns[
        ["session_id", "turn_index", "replica", "status", *_TIMES, *_TOKENS, *_SERVER]
    ]
    rows = sorted(_answered(table.astype(object).to_dict("records")), key=_sent)
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(str(row["session_id"]), []).append(row)
    return found


def _answered(rows: list[Row]) -> Iterator[Row]:
    needed = (*_TIMES, "prompt_tokens", "output_tokens")
    for row in rows:
        if row["status"] == "success" and not any(math.isnan(row[name]) for name in needed):
            yield row


def _sent(row: Row) -> float:
    return float(row["send_start_s"])


def _reused(rows: list[Row], number: int) -> int:
    row = rows[number]
    for name in ("cached_tokens", "planned_prefix_tokens"):
        if not math.isnan(row[name]):
            return int(row[name])
    return int(rows[number - 1]["prompt_tokens"]) if number else 0


def _one(row: Row, turn: Turn, speed: float) -> Seen:
    def known(name: str) -> float | None:
        value = float(row[name])
        return None if math.isnan(value) else value * speed

    replica = row["replica"]
    return Seen(
        replica=replica if isinstance(replica, str) else "",
        sent_s=float(row["send_start_s"]) * speed,
        turn=turn,
        prompt_tokens=int(row["prompt_tokens"]),
        ttft_s=float(row["ttft_s"]) * speed,
        decode_s=(float(row["last_chunk_s"]) - float(row["first_chunk_s"])) * speed,
        prefill_s=known("server_prefill_s"),
        frontend_s=known("frontend_s"),
    )
