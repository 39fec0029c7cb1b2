"""How many prompt tokens a server computes in a step, from the steps that prompts took."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agentload.capacity.cost.form import Array

LARGEST = 1 << 17
GAP_ERROR, CLOCK_ERROR_S = 0.08, 1e-3  # of a gap, where only the pattern of gaps matters
STUDENT = 4.0
TELLING = 6.0  # difference of the objective that rules a setting out
ROUND_BONUS = 0.25  # for each step of roundness: settles ties only


@dataclass(frozen=True, slots=True)
class Chunking:
    """What the probes showed of the token budget.

    `chunk` is the tokens of a prompt computed in a step beside one decoding stream; None: every
    prompt, up to `whole_tokens`, took one step. Chunks from `low` to `high` explain the steps about
    as well; `exact` says that there is no other round setting among them.
    """

    chunk: int | None
    low: int
    high: int
    exact: bool
    max_num_batched_tokens: int | None
    long_prefill_token_threshold: int | None
    whole_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Window:
    """The gaps of a metronome from the sending of a prompt to its first token, the last first.

    `steps` is how many engine steps each gap holds; `usual_s` a step without the prompt.
    """

    tokens: int  # to compute
    cached: int
    gaps_s: Array
    steps: Array
    usual_s: float


def find_chunk(windows: Sequence[Window], *, capped: bool) -> Chunking:
    """The setting whose pattern of chunks fits the gaps of all prompts best.

    `capped`: the pieces are held by a prefill threshold, else by the budget less the metronome's
    token. Each candidate says which gaps hold which piece of which prompt; two coefficients, of
    tokens and of tokens squared, then explain the gaps more or less well.
    """
    longest = max(window.tokens for window in windows)
    less = 0 if capped else 1
    settings = [s for s in _round_settings() if s - less < longest]
    scores = {setting: _misfit(windows, setting - less) for setting in [*settings, LARGEST]}
    best = min(scores, key=lambda s: (scores[s] - ROUND_BONUS * _roundness(s), s))
    if best == LARGEST:
        return Chunking(None, longest, LARGEST, False, None, None, longest)
    alike = [s - less for s in settings if scores[s] < scores[best] + TELLING]
    budget, threshold = (None, best) if capped else (best, 0)
    chunk = best - less
    return Chunking(chunk, min(alike), max(alike), len(alike) == 1, budget, threshold)


def _misfit(windows: Sequence[Window], chunk: int) -> float:
    """Robust sum of squares of the gaps when prompts are computed `chunk` tokens a step."""
    columns, above, spread = [], [], []
    for window in windows:
        done = _done_before(window, chunk)
        edges = np.concatenate([[window.tokens], done]) + window.cached
        columns.append(np.stack([-np.diff(edges), -np.diff(edges**2) / 2], axis=1))
        above.append(window.gaps_s - window.steps * window.usual_s)
        spread.append(GAP_ERROR * window.gaps_s + CLOCK_ERROR_S)
    table, y, sd = np.concatenate(columns), np.concatenate(above), np.concatenate(spread)
    weight = 1 / sd
    z = y / sd
    for _ in range(4):  # iteratively reweighted: a stall must not choose the setting
        slopes = _two_slopes(table * weight[:, None], y * weight)
        z = (table @ slopes - y) / sd
        weight = np.sqrt((STUDENT + 1) / (STUDENT + z * z)) / sd
    unexplained = sum(_beyond(window, chunk) for window in windows)
    return float(((STUDENT + 1) * np.log1p(z * z / STUDENT)).sum()) + unexplained


def _done_before(window: Window, chunk: int) -> Array:
    """Tokens that were computed when each gap began."""
    pieces = math.ceil(window.tokens / chunk)
    back = np.cumsum(window.steps)
    done: Array = np.where(back >= pieces, 0, (pieces - back) * chunk).astype(float)
    return done


def _beyond(window: Window, chunk: int) -> float:
    """A prompt cannot have taken more steps than there were."""
    missing = math.ceil(window.tokens / chunk) - float(window.steps.sum())
    return 50.0 * missing if missing > 0 else 0.0


def _two_slopes(table: Array, y: Array) -> Array:
    """Least squares with two coefficients that are not negative."""
    first, second = table.T
    aa, ab, bb = float(first @ first), float(first @ second), float(second @ second)
    ay, by = float(first @ y), float(second @ y)
    det = aa * bb - ab * ab
    if det > 1e-12 * aa * bb:
        slopes = ((bb * ay - ab * by) / det, (aa * by - ab * ay) / det)
        if min(slopes) >= 0:
            return np.array(slopes)
    alone = (max(0.0, ay / aa) if aa else 0.0, max(0.0, by / bb) if bb else 0.0)
    # What each takes off the sum of squares: the better one stays.
    if ay * alone[0] >= by * alone[1]:
        return np.array([alone[0], 0.0])
    return np.array([0.0, alone[1]])


def _roundness(setting: int) -> int:
    """How likely a person is to have chosen it: powers of two first."""
    twos = (setting & -setting).bit_length() - 1
    tens = len(str(setting)) - len(str(setting).rstrip("0"))
    power = 8 if setting & (setting - 1) == 0 else 0
    return power + twos + 2 * tens


def _round_settings() -> list[int]:
    fine = range(64, 2048, 32)
    middle = range(2048, 8192, 128)
    coarse = range(8192, 32768, 512)
    largest = range(32768, LARGEST, 4096)
    thousands = range(1000, 40_000, 1000)
    return sorted({*fine, *middle, *coarse, *largest, *thousands})


def budget_of_pair(chunk: int, tokens: int, steps_apart: int) -> tuple[bool, int | None]:
    """Whether two equal prompts sent at once were held by a threshold, and the budget if it shows.

    Under the budget alone the first prompt takes all of it and the second follows. Under a
    threshold T both advance in each step: the second by T, or by what is left of the budget.
    """
    steps = math.ceil(tokens / chunk)
    if steps_apart >= steps - 1:
        return False, None
    if steps_apart <= max(1, steps // 4):
        return True, None
    beside = (tokens - steps_apart * chunk) / steps
    return True, round(1 + chunk + beside)


def budget_of_crowd(threshold: int, tokens: int, ends: Sequence[int]) -> int | None:
    """The budget above a threshold, from the steps in which prompts of a crowd were done.

    While the crowd lasts each step computes a whole budget, so prompts are done at its rate. None
    when they were done too fast to tell.
    """
    distinct = sorted(set(ends))
    if len(distinct) < 4:
        return None
    first, last = distinct[0], distinct[-2]  # the last step was not full
    done = sum(first < end <= last for end in ends)
    rate = done * tokens / (last - first)
    low, high = max(threshold, 0.87 * rate), 1.13 * rate
    inside = [s for s in _round_settings() if low <= s <= high]
    return max(inside, key=_roundness) if inside else round(rate)
