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
FASTEST, LATE = 0.9, 0.5  # of the usual step: what no step is below; lateness that tells


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


def _own_chunks(metronome: Heard) -> tuple[Array, Array]:
    """(steps done, s) of a stream's chunks whose instants are their own.

    Counts the stream's tokens, one a step, so that a step has a number also where its chunk holds
    several tokens or was read together with a later one.
    """
    own = np.flatnonzero(metronome.usable)
    return np.cumsum(metronome.tokens)[own], np.array(metronome.chunks_s)[own]


def marks(metronome: Heard) -> tuple[Array, Array]:
    """(steps done, s): the instants at which the end of a step shows in a stream.

    Left out is what came late: no step is much faster than usual, so a chunk that others follow at
    such a pace was kept back on the way, as all are while the API server tokenizes a long prompt.
    """
    done, stamps = _own_chunks(metronome)
    usual_s = usual_gap_s(metronome)
    if usual_s is None:
        return done, stamps
    # The end of a step lies at least so many fast steps before that of each later one.
    ahead_s = FASTEST * usual_s * done
    latest_s = np.minimum.accumulate((stamps - ahead_s)[::-1])[::-1] + ahead_s
    in_time = stamps - latest_s < LATE * usual_s
    return done[in_time], stamps[in_time]


def last_step(metronome: Heard, prompt: Heard) -> int | None:
    """Number of the metronome's step that gave another request its first token; None if hidden.

    The tokens of one step are sent together, late or not. The first is often read together with a
    later one and has no instant of its own: the first chunk that has one is found among the
    metronome's, and the tokens since the first are taken off.
    """
    if True not in prompt.usable:
        return None
    own = prompt.usable.index(True)
    done, stamps = _own_chunks(metronome)
    if len(stamps) < 3:
        return None
    at = int(np.argmin(np.abs(stamps - prompt.chunks_s[own])))
    if at == 0 or at == len(stamps) - 1:
        return None  # the metronome had not begun, or was over
    neighbour = min(stamps[at] - stamps[at - 1], stamps[at + 1] - stamps[at])
    if abs(stamps[at] - prompt.chunks_s[own]) > max(0.4 * neighbour, 2e-3):
        return None
    return int(done[at]) - sum(prompt.tokens[1 : own + 1])


def window(metronome: Heard, prompt: Heard) -> Window | None:
    """The metronome's gaps between a prompt's sending and its first token; None if hidden."""
    step = last_step(metronome, prompt)
    usual_s = usual_gap_s(metronome, prompt.sent_s)
    if step is None or usual_s is None:
        return None
    done, stamps = marks(metronome)
    end = int(np.searchsorted(done, step))
    gaps, steps = [], []
    while 0 < end < len(done) and stamps[end] > prompt.sent_s:
        later = max(0, int(done[end]) - step)  # steps that hold nothing of the prompt any more
        gaps.append(stamps[end] - stamps[end - 1] - later * usual_s)
        steps.append(done[end] - done[end - 1] - later)
        end -= 1
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

    Counts back from the step that gave the first token. Steps between two of the metronome's marks
    make one stretch. Empty where the steps do not show, or would have begun before the prompt was
    sent.
    """
    step = last_step(metronome, prompt)
    usual_s = usual_gap_s(metronome, prompt.sent_s)
    if step is None or usual_s is None:
        return [], 0.0
    sizes = chunks_of(prompt.prompt_tokens - cached, chunk)
    starts = [cached + chunk * number for number in range(len(sizes))]
    before = step - len(sizes)  # steps done when the first began
    done, stamps = marks(metronome)
    last = int(np.searchsorted(done, step))
    first = int(np.searchsorted(done, before, side="right")) - 1
    if first < 0 or last >= len(done):
        return [], 0.0
    begin_s = float(stamps[first] + (before - done[first]) * usual_s)
    if begin_s < prompt.sent_s - 1e-3:
        return [], 0.0
    found = []
    for at in range(first, last):
        inside = range(max(0, done[at] - before), min(len(sizes), done[at + 1] - before))
        pieces = [(sizes[i], starts[i]) for i in inside]
        steps, seconds = int(done[at + 1] - done[at]), float(stamps[at + 1] - stamps[at])
        context = metronome.prompt_tokens + int(done[at])
        found.append(_prefill_stretch(steps, context, seconds, pieces))
    return found, begin_s


def _prefill_stretch(
    steps: int, context: int, seconds: float, pieces: Sequence[tuple[int, int]]
) -> Stretch:
    """Steps of a metronome at `context` with (tokens, start) pieces of a prompt beside it.

    A piece of one token is a decode.
    """
    ones = [start + 1 for size, start in pieces if size == 1]
    many = [(size, start) for size, start in pieces if size > 1]
    return Stretch(
        steps=steps,
        prefill=sum(size for size, _ in many),
        decodes=steps + len(ones),
        context=steps * context + sum(ones),
        attention=sum(size * (start + 0.5 * size) for size, start in many),
        seconds=seconds,
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
