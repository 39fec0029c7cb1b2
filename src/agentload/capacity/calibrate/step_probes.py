"""What engine steps took, from the instants of the chunks that clients saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agentload.capacity.calibrate.chunk_probes import Window
from agentload.capacity.calibrate.probes import Heard
from agentload.capacity.cost.form import Array, Observations

BLOCK = 12  # steps that are observed as one: the clock's jitter is spread over them
STEP_NOISE, RUN_NOISE = 0.02, 0.005  # relative: of each step, of all steps of a stretch alike
LEAST_JITTER_S = 2e-4


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps that were alike: sums of n, P, D, K, A over them, and how long they took."""

    steps: float
    prefill: float
    decodes: float
    context: float
    attention: float
    seconds: float


def decode_stretches(heard: Sequence[Heard]) -> list[Stretch]:
    """Steps during which all of these requests, and nothing else, were decoding."""
    start = max(one.chunks_s[0] for one in heard)
    end = min(one.chunks_s[-1] for one in heard)
    guide = max(heard, key=lambda one: sum(one.usable))
    found = []
    for first, last, steps in _blocks(guide, start, end):
        from_s, to_s = guide.chunks_s[first], guide.chunks_s[last]
        middle = (from_s + to_s) / 2
        context = sum(_context(one, middle) for one in heard)
        found.append(Stretch(steps, 0.0, steps * len(heard), steps * context, 0.0, to_s - from_s))
    return found


def _context(one: Heard, at_s: float) -> float:
    """Tokens in the KV cache of a decoding stream at an instant."""
    done = int(np.searchsorted(one.chunks_s, at_s, side="right"))
    return one.prompt_tokens + sum(one.tokens[:done])


def _blocks(one: Heard, start: float, end: float) -> Iterator[tuple[int, int, int]]:
    """(first chunk, last chunk, steps between) of stretches between usable chunks."""
    inside = [
        i
        for i, at_s in enumerate(one.chunks_s)
        if start - 1e-4 <= at_s <= end + 1e-4 and one.usable[i]
    ]
    first = 0
    while first < len(inside) - 1:
        last = first + 1
        while last < len(inside) - 1 and _tokens(one, inside[first], inside[last]) < BLOCK:
            last += 1
        steps = _tokens(one, inside[first], inside[last])
        if steps > 0:
            yield inside[first], inside[last], steps
        first = last


def _tokens(one: Heard, first: int, last: int) -> int:
    return sum(one.tokens[first + 1 : last + 1])


def usual_gap_s(one: Heard, before_s: float = float("inf")) -> float | None:
    """Median time of a step of a stream by itself, from chunks up to an instant."""
    gaps = [
        (b - a) / tokens
        for a, b, tokens, usable in zip(
            one.chunks_s, one.chunks_s[1:], one.tokens[1:], one.usable[1:], strict=False
        )
        if b <= before_s and usable
    ]
    return float(np.median(gaps)) if len(gaps) >= 4 else None


def jitter_s(heard: Sequence[Heard]) -> float:
    """Standard deviation of a chunk's instant, from gaps of streams that decode by themselves."""
    spreads = []
    for one in heard:
        gaps = np.diff([at for at, usable in zip(one.chunks_s, one.usable, strict=True) if usable])
        if len(gaps) >= 8:
            # Successive gaps share an instant: their difference has six times its variance.
            change = np.diff(gaps)
            spreads.append(1.4826 * float(np.median(np.abs(change))) / 6**0.5)
    return max(LEAST_JITTER_S, float(np.median(spreads))) if spreads else LEAST_JITTER_S


def last_step(metronome: Heard, first_s: float) -> int | None:
    """Index of the metronome's chunk of the step that gave another request its first token."""
    stamps = np.array(metronome.chunks_s)
    at = int(np.argmin(np.abs(stamps - first_s)))
    if at == 0 or at == len(stamps) - 1:
        return None  # the metronome had not begun, or was over
    neighbour = min(stamps[at] - stamps[at - 1], stamps[at + 1] - stamps[at])
    return at if abs(stamps[at] - first_s) <= max(0.4 * neighbour, 2e-3) else None


def _own_instant(metronome: Heard, at: int) -> int | None:
    """The chunk at or after this one whose instant is its own."""
    for number in range(at, len(metronome.chunks_s)):
        if metronome.usable[number]:
            return number
    return None


def window(metronome: Heard, prompt: Heard) -> Window | None:
    """The metronome's gaps between a prompt's sending and its first token; None if hidden."""
    last = last_step(metronome, prompt.chunks_s[0])
    usual_s = usual_gap_s(metronome, prompt.sent_s)
    end = None if last is None else _own_instant(metronome, last)
    if last is None or usual_s is None or end is None:
        return None
    gaps, steps, after = [], [], _tokens(metronome, last, end)
    while last > 0 and metronome.chunks_s[last] > prompt.sent_s:
        first = last - 1
        while first > 0 and not metronome.usable[first]:
            first -= 1
        gaps.append(metronome.chunks_s[end] - metronome.chunks_s[first] - after * usual_s)
        steps.append(_tokens(metronome, first, last))
        last = end = first
        after = 0
    if not gaps:
        return None
    cached = prompt.cached_tokens or 0
    return Window(prompt.prompt_tokens - cached, cached, np.array(gaps), np.array(steps), usual_s)


def chunks_of(tokens: int, chunk: int) -> list[int]:
    """Sizes of the pieces in which a prompt is computed."""
    whole, rest = divmod(tokens, chunk)
    return [chunk] * whole + ([rest] if rest else [])


def cold_stretches(
    metronome: Heard, prompt: Heard, cached: int, chunk: int
) -> tuple[list[Stretch], float]:
    """The steps of a prompt computed `chunk` tokens a step, and when the first of them began.

    Walks back from the step that gave the first token. Chunks of the metronome that hold several
    tokens, or whose instant is not their own, make one stretch of several steps. Empty where the
    steps do not show.
    """
    last = last_step(metronome, prompt.chunks_s[0])
    end = None if last is None else _own_instant(metronome, last)
    if last is None or end is None:
        return [], 0.0
    after = _tokens(metronome, last, end)  # steps that hold nothing of the prompt any more
    sizes = chunks_of(prompt.prompt_tokens - cached, chunk)
    starts = [cached + chunk * number for number in range(len(sizes))]
    found: list[Stretch] = []
    todo = len(sizes)
    while todo > 0:
        first = (last if after else end) - 1
        while first > 0 and not metronome.usable[first]:
            first -= 1
        if first < 0 or metronome.chunks_s[first] < prompt.sent_s - 1e-3:
            return [], 0.0
        steps = _tokens(metronome, first, end)
        taken = range(max(0, todo - (steps - after)), todo)
        pieces = [(sizes[i], starts[i]) for i in taken]
        found.append(_prefill_stretch(metronome, first, end, steps, pieces))
        todo -= len(pieces)
        end, after = first, 0
    return found[::-1], metronome.chunks_s[end]


def _prefill_stretch(
    metronome: Heard, first: int, last: int, steps: int, pieces: Sequence[tuple[int, int]]
) -> Stretch:
    """Steps of the metronome with (tokens, start) pieces of a prompt; one token is a decode."""
    ones = [start + 1 for size, start in pieces if size == 1]
    many = [(size, start) for size, start in pieces if size > 1]
    context = metronome.prompt_tokens + sum(metronome.tokens[: first + 1])
    return Stretch(
        steps=steps,
        prefill=sum(size for size, _ in many),
        decodes=steps + len(ones),
        context=steps * context + sum(ones),
        attention=sum(size * (start + 0.5 * size) for size, start in many),
        seconds=metronome.chunks_s[last] - metronome.chunks_s[first],
    )


def observations(groups: Sequence[Sequence[Stretch]], jitter: float) -> Observations:
    """All stretches with the noise expected of each; a group is a probe."""
    rows = [(stretch, number) for number, group in enumerate(groups) for stretch in group]
    table: Array = np.array(
        [[s.steps, s.prefill, s.decodes, s.context, s.attention, s.seconds] for s, _ in rows]
    ).reshape(-1, 6)
    steps, seconds = table[:, 0], table[:, 5]
    relative = STEP_NOISE**2 / np.maximum(steps, 1) + RUN_NOISE**2
    spread = np.sqrt(relative * seconds**2 + 2 * jitter**2)
    group = np.array([number for _, number in rows], int)
    n, prefill, decodes, context, attention = table.T[:5]
    return Observations(n, prefill, decodes, context, attention, seconds, spread, group)
