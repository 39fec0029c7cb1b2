"""A run made ready for figures: which turns count, and what follows from their columns."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from agentload.turn_metrics import (
    MIN_CHUNKS_FOR_SPEED,
    STALL_FLOOR_S,
    STALL_MEDIAN_FACTOR,
    StallRule,
    plausible_tokens_per_s,
)
from analysis.faults import FaultLog
from analysis.gaps import GapPass, read_gaps
from analysis.load import Run, load_run
from analysis.server import Scrape, load_scrape
from analysis.turn_places import TurnKeys
from analysis.windows import Window, inside, measured_window

CLASSES = ("cold", "tool", "user", "child", "rebuild")
WARM_UP_STAGE = "warm_up"


@dataclass(frozen=True, slots=True)
class Measured:
    """A run with its measured window.

    `turns` are all recorded turns with the derived columns of `derived`; `gaps` is aligned with
    them; `scrape` holds the window's samples.
    """

    run: Run
    window: Window
    turns: pd.DataFrame
    gaps: GapPass
    stall_rule: StallRule
    scrape: Scrape
    whole_scrape: Scrape
    notes: tuple[str, ...]

    @property
    def arm(self) -> str:
        return self.run.manifest.arm


def measure(folder: Path, *, keep_good_rows: bool = False) -> Measured:
    """Load a run folder and derive what every figure needs; `BadInputError` as in `load_run`."""
    run = load_run(folder, keep_good_rows=keep_good_rows)
    turns = run.turns
    window = _window(run)
    turns = derived(turns, counted_stages(turns, run), window, plausible_limit(run))
    rule = stall_rule(run.manifest.scenario)
    log = FaultLog()
    keys = TurnKeys(
        turns["request_id"],
        turns["first_chunk_s"].notna().to_numpy(),
        _groups(turns),
        turns["output_tokens"].to_numpy(),
    )
    gaps = read_gaps(run.chunks_path, keys, rule, log, finished=run.finished)
    scrape = load_scrape(run.scrape_path, log, finished=run.finished)
    notes = list(run.notes)
    if log.count and keep_good_rows:
        notes.append(f"{log.count} faulty rows left out, the first: {log.shown[0]}")
    elif log.count:
        log.raise_if_any()
    part = scrape.between(window.from_s, window.to_s)
    return Measured(run, window, turns, gaps, rule, part, scrape, tuple(notes))


def stall_rule(scenario: dict[str, object]) -> StallRule:
    """The scenario's stall thresholds, else the defaults."""
    stalls = scenario.get("stalls")
    given = stalls if isinstance(stalls, dict) else {}
    return StallRule(
        _or_default(given.get("times_median"), STALL_MEDIAN_FACTOR),
        _or_default(given.get("min_s"), STALL_FLOOR_S),
    )


def _or_default(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default


def plausible_limit(run: Run) -> float:
    """Fastest plausible decode speed in tokens/s; a simulator at k times real time gets k times."""
    return plausible_tokens_per_s(run.manifest.sim_speed)


def _window(run: Run) -> Window:
    m = run.manifest
    start, end = run.turns["call_start_s"].to_numpy(), run.turns["end_s"].to_numpy()
    return measured_window(start, end, m.measured_from_s, m.measured_to_s)


def counted_stages(turns: pd.DataFrame, run: Run) -> np.ndarray:
    """Mask of the turns whose stage is measured: not the warm-up, not a stage said not to be."""
    stages = run.manifest.scenario.get("stages")
    unmeasured = {WARM_UP_STAGE}
    for stage in stages if isinstance(stages, list) else []:
        if isinstance(stage, dict) and stage.get("measured") is False:
            unmeasured.add(str(stage.get("name")))
    return ~turns["stage"].isin(unmeasured).to_numpy()


def derived(
    turns: pd.DataFrame, stage_counts: np.ndarray, window: Window, max_tokens_per_s: float
) -> pd.DataFrame:
    """The turns with these columns added; NaN where one of the inputs was not measured.

    `measured`: started inside the window, in a measured stage. `implausible`: answered faster than
    possible, or with a negative time, as of a first chunk before the request was sent. `counted`:
    measured, a success and not implausible; only these enter latencies. `send_s`,
    `uncached_tokens`, `tokens_per_s`, `effective_ttft_s` (from the intended start), `idle_s` (since
    the end of the session's turn before), `eligible_tokens` (prompt and output of that turn: what
    the cache could have kept).
    """
    turns = turns.copy(deep=False)
    turns["measured"] = stage_counts & inside(turns["call_start_s"].to_numpy(), window)
    turns["send_s"] = turns["send_end_s"] - turns["send_start_s"]
    turns["uncached_tokens"] = turns["prompt_tokens"] - turns["cached_tokens"]
    turns["effective_ttft_s"] = turns["first_chunk_s"] - turns["intended_start_s"]
    turns["tokens_per_s"] = _decode_speed(turns)
    negative = (turns[["ttft_s", "e2e_s", "tpot_s"]] < 0).any(axis=1)
    implausible = (turns["tokens_per_s"] > max_tokens_per_s) | negative
    turns["implausible"] = implausible.to_numpy()
    success = (turns["status"] == "success").to_numpy()
    turns["counted"] = turns["measured"].to_numpy() & success & ~implausible.to_numpy()
    return _with_previous_turn(turns, success)


def _decode_speed(turns: pd.DataFrame) -> np.ndarray:
    """(output tokens - 1) / (last - first chunk); NaN below `MIN_CHUNKS_FOR_SPEED` chunks.

    An answer in a few chunks may well have come in one read: that says nothing about decoding.
    """
    span = (turns["last_chunk_s"] - turns["first_chunk_s"]).to_numpy()
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = (turns["output_tokens"].to_numpy() - 1) / span
    return np.where(turns["output_chunks"].to_numpy() >= MIN_CHUNKS_FOR_SPEED, speed, np.nan)


def _with_previous_turn(turns: pd.DataFrame, success: np.ndarray) -> pd.DataFrame:
    """Add what the session's turn before says; it must be the one with the index just below."""
    keys = ["session_id", "turn_index"]
    done = turns.loc[success, [*keys, "end_s", "prompt_tokens", "output_tokens"]]
    done = done.drop_duplicates(keys, keep="last")
    before = pd.DataFrame(
        {
            "session_id": done["session_id"],
            "turn_index": done["turn_index"] + 1,
            "_end_s": done["end_s"],
            "_held_tokens": done["prompt_tokens"] + done["output_tokens"],
        }
    )
    joined = turns[keys].merge(before, on=keys, how="left")
    turns["idle_s"] = turns["call_start_s"].to_numpy() - joined["_end_s"].to_numpy()
    held = joined["_held_tokens"].to_numpy()
    extends = turns["turn_class"].isin(["tool", "user"]).to_numpy()
    turns["eligible_tokens"] = np.where(extends, held, np.nan)
    return turns


def _groups(turns: pd.DataFrame) -> np.ndarray:
    """Position of the turn's class in `CLASSES`; -1 for a turn that is not counted."""
    codes = pd.Categorical(turns["turn_class"].astype(object), categories=list(CLASSES)).codes
    return np.where(turns["counted"].to_numpy(), codes, -1)
