"""What `calibrate` sends: prompts by name, and the answers as instants of chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a probe.

    The prompt is the first `base_tokens` of the text named `base`, the same each time, and then
    `new_tokens` that no prompt had before. `after_s` counts from the start of the probe.
    """

    base: str
    base_tokens: int
    new_tokens: int
    output_tokens: int
    after_s: float = 0.0

    @property
    def prompt_tokens(self) -> int:
        """Wanted; what the server counted is in the answer."""
        return self.base_tokens + self.new_tokens


@dataclass(frozen=True, slots=True)
class Heard:
    """What came back of one `Ask`; seconds on one clock.

    `tokens[i]` is the number of output tokens of chunk i, `usable[i]` whether its instant is its
    own (not that of a later chunk in the same read). `cached_tokens` is None where the server does
    not tell.
    """

    ask: Ask
    sent_s: float
    chunks_s: tuple[float, ...]
    tokens: tuple[int, ...]
    usable: tuple[bool, ...]
    prompt_tokens: int
    cached_tokens: int | None

    @property
    def ttft_s(self) -> float:
        """First chunk minus sent."""
        return self.chunks_s[0] - self.sent_s


@dataclass(frozen=True, slots=True)
class Probe:
    """Requests that are sent together, and what they are for.

    The first of a probe with a `metronome` shows the engine's steps while the others run; it is
    cut as soon as they have ended.
    """

    name: str
    asks: tuple[Ask, ...]
    metronome: bool = False


class Target(Protocol):
    """Whatever answers probes: a server, or a model of one."""

    def play(self, probe: Probe) -> Sequence[Heard]:
        """Send the requests, wait for all answers. Raises `ProbeError`."""

    def now_s(self) -> float:
        """The clock that the time limit is kept by."""


class ProbeError(RuntimeError):
    """A probe that cannot be trusted; the text says why and what mends it."""


SHORT, METRONOME = 32, 16  # tokens of a prompt that costs next to nothing
A_TOKENS, B_TOKENS, DEEP_TOKENS, WARM_NEW = 64, 128, 96, 64
TURNS_NEW = (200, 450, 1000)  # what a tool call adds to a coding agent's context
BATCHES = (4, 16, 64)
LENGTHS = (64, 150, 300, 600, 1200, 2400, 8192)


def single(number: int, tokens: int = A_TOKENS) -> Probe:
    """A: one short prompt by itself."""
    return Probe(f"A{number + 1}: one stream", (_alone(f"A{number}", SHORT, tokens),))


def batch(streams: int, tokens: int = B_TOKENS) -> Probe:
    """B: short prompts that decode together."""
    asks = tuple(_alone(f"B{streams}.{i}", 2 * SHORT, tokens) for i in range(streams))
    return Probe(f"B: {streams} streams", asks)


def cold(tokens: int, metronome_tokens: int, after_s: float) -> Probe:
    """C: a prompt no cache has seen beside a stream that shows each step."""
    metronome = _alone(f"M{tokens}", METRONOME, metronome_tokens)
    return Probe(f"C: cold {tokens}", (metronome, Ask(f"C{tokens}", tokens, 0, 2, after_s)), True)


def warming(tokens: int, metronome_tokens: int, after_s: float) -> Probe:
    """C: `cold` with another text, not looked at: a server's first step of a size makes room, and
    kernels, for it. Twice the usual time was seen on vLLM's CPU build.
    """
    metronome, prompt = cold(tokens, metronome_tokens, after_s).asks
    other = replace(prompt, base=f"W{tokens}")
    return Probe(f"C: first {tokens}, not used", (metronome, other), True)


def pair(tokens: int, metronome_tokens: int, after_s: float) -> Probe:
    """C: two cold prompts at once, which share steps only below a prefill threshold."""
    metronome = _alone("Mpair", METRONOME, metronome_tokens)
    two = tuple(Ask(f"P{i}", tokens, 0, 2, after_s) for i in range(2))
    return Probe(f"C: two cold {tokens}", (metronome, *two), True)


def crowd(prompts: int, tokens: int, metronome_tokens: int, after_s: float) -> Probe:
    """C: many cold prompts at once; how many share a step tells the budget above a threshold."""
    metronome = _alone("Mcrowd", METRONOME, metronome_tokens)
    asks = tuple(Ask(f"F{i}", tokens, 0, 2, after_s) for i in range(prompts))
    return Probe(f"C: {prompts} cold {tokens}", (metronome, *asks), True)


def turn(base_tokens: int, new_tokens: int, metronome_tokens: int, after_s: float) -> Probe:
    """D: an agent's next turn at depth, beside a stream that shows each step."""
    metronome = _alone(f"Mturn{new_tokens}", METRONOME, metronome_tokens)
    ask = Ask(f"C{base_tokens}", base_tokens, new_tokens, 2, after_s)
    return Probe(f"D: turn of {new_tokens} at {base_tokens}", (metronome, ask), True)


def deep(bases: Sequence[int], tokens: int = DEEP_TOKENS) -> Probe:
    """D: cached contexts that decode together at depth."""
    asks = tuple(Ask(f"C{n}", n, WARM_NEW, tokens) for n in bases)
    return Probe(f"D: decode at {' + '.join(map(str, bases))}", asks)


def _alone(name: str, tokens: int, output_tokens: int) -> Ask:
    return Ask(name, 0, tokens, output_tokens)
