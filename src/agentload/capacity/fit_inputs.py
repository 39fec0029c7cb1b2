"""The turns of a run folder as what a fit needs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pandas as pd

from agentload.capacity.demand import core_turns
from agentload.capacity.fit_run import Seen
from agentload.capacity.recorded import recorded_sessions
from agentload.sim.core import Turn
from analysis.load import Run

Rows = dict[tuple[str, int], dict[Any, Any]]

_COLUMNS = (
    *("send_start_s", "ttft_s", "first_chunk_s", "last_chunk_s", "prompt_tokens"),
    *("server_prefill_s", "server_decode_s", "frontend_s"),
)


def seen_turns(run: Run, block_size: int) -> list[Seen]:
    """Every answered turn with its tokens and times, in seconds of the server.

    A run against a simulator at k times real time is stretched by k. Raises DemandError when no
    turn has its tokens.
    """
    speed = run.manifest.sim_speed or 1.0
    wanted = run.turns[["session_id", "turn_index", "replica", *_COLUMNS]]
    rows: Rows = {}
    for row in wanted.astype(object).to_dict("records"):
        rows[(str(row["session_id"]), int(row["turn_index"]))] = row  # the last attempt counts
    return [one for one in _seen(run, rows, block_size, speed) if one.ttft_s > 0]


def _seen(run: Run, rows: Rows, block_size: int, speed: float) -> Iterator[Seen]:
    for number, session in enumerate(recorded_sessions(run)):
        turns = core_turns(session.planned, number, block_size)
        for index, (_, turn) in zip(session.indices, turns, strict=True):
            row = rows[(session.session_id, index)]
            numbers = {name: float(row[name]) for name in _COLUMNS}
            if math.isnan(numbers["send_start_s"]) or math.isnan(numbers["ttft_s"]):
                continue
            replica = row["replica"]
            yield _one(numbers, turn, "" if pd.isna(replica) else str(replica), speed)


def _one(numbers: dict[str, float], turn: Turn, replica: str, speed: float) -> Seen:
    def known(name: str) -> float | None:
        value = numbers[name]
        return None if math.isnan(value) else value * speed

    by_client = (numbers["last_chunk_s"] - numbers["first_chunk_s"]) * speed
    return Seen(
        replica=replica,
        sent_s=numbers["send_start_s"] * speed,
        turn=turn,
        prompt_tokens=int(numbers["prompt_tokens"]),
        ttft_s=numbers["ttft_s"] * speed,
        decode_s=by_client,
        prefill_s=known("server_prefill_s"),
        frontend_s=known("frontend_s"),
    )
