"""The course of a calibration: which probe comes next, within the time that is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from agentload.capacity.calibrate import probes
from agentload.capacity.calibrate.chunk_probes import (
    Chunking,
    budget_of_crowd,
    budget_of_pair,
    find_chunk,
)
from agentload.capacity.calibrate.gathered import Gathered, Limits
from agentload.capacity.calibrate.probes import Heard, Probe, ProbeError, Target
from agentload.capacity.calibrate.step_probes import (
    Stretch,
    cold_stretches,
    decode_stretches,
    jitter_s,
    last_step,
    usual_gap_s,
    window,
)
from agentload.capacity.cost.fit import Fit, Prior, fit_form

HELD_OUT_S = 20.0
MARGIN = 1.3  # a predicted duration is taken to be this much longer
QUIET_SHARE = 2.0  # a gap of more usual gaps than this is a disturbance
DISTURBED = 0.2  # of the gaps of an idle server's only stream: then it is not idle
STREAM_SHARE, LEAST_TOKENS = 0.025, 24
BATCH_SHARE, BATCH_GROWTH, LEAST_BATCH_TOKENS = 0.08, 2.5, 32
PAIR_CHUNKS, CROWD = 3, 40
TELLING_TOKENS = 2000  # shorter prompts take one step of most servers


class Course:
    """Plays probes A to D on a target; `tell` is called with a line before each."""

    def __init__(
        self,
        target: Target,
        prior: Prior,
        depth: int,
        limit_s: float,
        limits: Limits,
        tell: Callable[[str], None] = lambda _: None,
        *,
        allow_busy: bool = False,
    ) -> None:
        self._target, self._prior, self._limits = target, prior, limits
        self._depth = depth
        self._limit_s = limit_s
        self._tell = tell
        self._allow_busy = allow_busy
        self._start_s = target.now_s()
        self.found = Gathered()

    @property
    def left_s(self) -> float:
        """Seconds of the time limit that are left."""
        return self._limit_s - (self._target.now_s() - self._start_s)

    def run(self) -> Gathered:
        """All probes that fit. Raises `ProbeError`."""
        self._fit_depth()
        self._singles()
        self._batches()
        self._cold()
        self._chunks()
        self._deep()
        self.found.seconds = self._target.now_s() - self._start_s
        return self.found

    def _fit_depth(self) -> None:
        room = self._limits.max_model_len
        wanted = self._depth + max(probes.TURNS_NEW) + probes.DEEP_TOKENS + 64
        if room is not None and wanted > room:
            self._depth = max(600, room - (wanted - self._depth))
            self.found.skipped.append(
                f"depth {wanted}: max_model_len is {room}, so {self._depth} was probed"
            )
        tokens = self._limits.kv_tokens
        if tokens is not None and self._depth > 0.8 * tokens:
            self._depth = int(0.8 * tokens)
            self.found.skipped.append(
                f"deeper contexts than {self._depth}: the KV cache holds {tokens} tokens"
            )

    def _play(self, probe: Probe) -> Sequence[Heard]:
        self._tell(probe.name)
        return self._target.play(probe)

    def _take(self, name: str, stretches: Sequence[Stretch]) -> None:
        if stretches:
            self.found.groups.append(list(stretches))
            self.found.names.append(name)

    def _singles(self) -> None:
        found = self.found
        heard = [self._play(probes.single(0))[0]]
        tokens = self._affordable(probes.A_TOKENS, usual_gap_s(heard[0]) or 0.01)
        heard += [self._play(probes.single(number, tokens))[0] for number in range(1, 5)]
        found.jitter = jitter_s(heard)
        for one in heard[1:] or heard:  # the first may have warmed something up
            self._take("A", decode_stretches([one]))
            found.idle.append((one, one.prompt_tokens))
        gaps = np.concatenate([np.diff(one.chunks_s) for one in heard[1:]])
        disturbed = float(np.mean(gaps > QUIET_SHARE * np.median(gaps) + 2e-3))
        if disturbed > DISTURBED and not self._allow_busy:
            raise ProbeError(
                f"{disturbed:.0%} of the gaps of a stream by itself were more than twice as long "
                "as usual: another load is on the server, or this machine is too busy to measure; "
                "to mend: calibrate an idle server from an idle machine, or --allow-busy"
            )

    def _affordable(self, tokens: int, step_s: float) -> int:
        """As many tokens of a stream as fit in a small share of the time limit."""
        return max(LEAST_TOKENS, min(tokens, int(STREAM_SHARE * self._limit_s / step_s)))

    def _batches(self) -> None:
        one = self.found.idle[-1][0]
        took_s = one.chunks_s[-1] - one.sent_s
        for streams in probes.BATCHES:
            # On slow servers a batch four times as large takes up to four times as long.
            share = BATCH_SHARE * self._limit_s / (BATCH_GROWTH * took_s)
            tokens = int(min(probes.B_TOKENS, share * probes.B_TOKENS))
            if tokens < LEAST_BATCH_TOKENS:
                self.found.skipped.append(f"{streams} streams at once: they would take too long")
                return
            start_s = self._target.now_s()
            heard = self._play(probes.batch(streams, tokens))
            took_s = (self._target.now_s() - start_s) * probes.B_TOKENS / tokens
            together = _decoded_together(heard)
            self._take(f"B{streams}", decode_stretches(together))
            if len(together) < len(heard) and _held_back(heard):
                self.found.streams_together = len(together)
                self.found.skipped.append(
                    f"{streams} streams at once: the server decoded {len(together)} together"
                )
                return

    def _metronome(self, tokens: int) -> tuple[int, float]:
        """(tokens, when to send the prompt) of a metronome that outlasts a cold prompt."""
        usual_s = usual_gap_s(self.found.idle[-1][0]) or 0.01
        after_s = max(0.2, 12 * usual_s + 2 * self.found.idle[-1][0].ttft_s)
        length = int((after_s + 3 * self._cold_s(tokens)) / usual_s) + 64
        room = self._limits.max_model_len or 1 << 30
        return min(length, room - 2 * probes.METRONOME, 20_000), after_s

    def _cold_s(self, tokens: int) -> float:
        """Seconds that a cold prompt should take, by the fit so far."""
        fit = self.fit()
        c0, c1, _, _, c4 = fit.theta[:5]
        chunk = self.found.chunking.chunk if self.found.chunking else None
        steps = math.ceil(tokens / (chunk or tokens))
        known = max((one.prompt_tokens for one, _ in self.found.cold.values()), default=0)
        guess = float(steps * c0 + c1 * tokens + c4 * tokens**2 / 2)
        if known and tokens > known:
            # A short prompt hardly shows c4: at most the whole time grows with the square.
            longest = max(self.found.cold.values(), key=lambda pair: pair[0].prompt_tokens)[0]
            guess = min(guess, longest.ttft_s * (tokens / known) ** 2)
        return guess

    def fit(self) -> Fit:
        """The linear form on what there is so far."""
        return fit_form(self.found.observations(), self._prior, "linear")

    def _cold(self) -> None:
        lengths = sorted({*probes.LENGTHS, self._depth // 2, self._depth})
        after = 3 * self._deep_s()
        for tokens in (n for n in lengths if n <= self._depth):
            needed_s = MARGIN * self._cold_s(tokens) + 1.0
            if needed_s + after > self.left_s:
                self.found.skipped.append(
                    f"cold prompts from {tokens} tokens: {needed_s:.0f} s each, "
                    f"{max(0.0, self.left_s):.0f} s were left"
                )
                self._learn_chunks(capped=False)
                break
            count, after_s = self._metronome(tokens)
            if tokens in probes.LENGTHS and 2 * needed_s + after < self.left_s:
                self._play(probes.warming(tokens, count, after_s))
            metronome, prompt = self._play(probes.cold(tokens, count, after_s))
            self.found.cold[tokens] = (prompt, metronome)
            self.found.depth_tokens = max(self.found.depth_tokens, prompt.prompt_tokens)
            if tokens >= TELLING_TOKENS or tokens == self._depth:
                self._learn_chunks(capped=False)
        if not self.found.cold:
            raise ProbeError("no time for a single cold prompt; to mend: raise --limit-s")

    def _deep_s(self) -> float:
        """About what one probe of decoding at depth takes."""
        usual_s = usual_gap_s(self.found.idle[-1][0]) or 0.01
        return self._affordable(probes.DEEP_TOKENS, usual_s) * 2 * usual_s + 1.0

    def _learn_chunks(self, *, capped: bool) -> None:
        """Find the chunk, then read the steps of all cold prompts anew with it."""
        found = self.found
        pairs = [(metronome, prompt) for prompt, metronome in found.cold.values()]
        windows = [w for w in (window(*pair) for pair in pairs) if w is not None]
        if not windows:
            return
        found.chunking = self._given() or find_chunk(windows, capped=capped)
        chunk = found.chunking.chunk or 1 << 30
        kept = [n for n, name in enumerate(found.names) if not name.startswith("C")]
        found.groups = [found.groups[n] for n in kept]
        found.names = [found.names[n] for n in kept]
        found.beside = []
        for tokens, (prompt, metronome) in found.cold.items():
            cached = prompt.cached_tokens or 0
            stretches, start_s = cold_stretches(metronome, prompt, cached, chunk)
            self._take(f"C{tokens}", stretches)
            usual_s = usual_gap_s(metronome, prompt.sent_s)
            if stretches and usual_s is not None:
                found.beside.append((prompt, start_s, usual_s))

    def _given(self) -> Chunking | None:
        budget, threshold = self._limits.token_budget, self._limits.threshold
        if budget is None:
            return None
        chunk = min(budget - 1, threshold or budget)
        return Chunking(chunk, chunk, chunk, True, budget, threshold or 0)

    def _chunks(self) -> None:
        """Tell a prefill threshold from the budget."""
        chunking = self.found.chunking
        if chunking is None or chunking.chunk is None or self._limits.token_budget is not None:
            return
        tokens = PAIR_CHUNKS * chunking.chunk - 8
        needed_s = MARGIN * 2 * self._cold_s(tokens) + 1.0
        if tokens > self._depth or needed_s + 3 * self._deep_s() > self.left_s:
            self.found.skipped.append("whether a prefill threshold is set: no time, or too deep")
            self.found.chunking = replace(chunking, long_prefill_token_threshold=None)
            return
        count, after_s = self._metronome(2 * tokens)
        metronome, *two = self._play(probes.pair(tokens, count, after_s))
        ends = [last_step(metronome, one) for one in two]
        if None in ends:
            return
        first, last = sorted(end for end in ends if end is not None)
        apart = last - first
        capped, budget = budget_of_pair(chunking.chunk, two[0].prompt_tokens, apart)
        if capped:
            self._learn_chunks(capped=True)
            self._learn_budget(budget)

    def _learn_budget(self, budget: int | None) -> None:
        """With a threshold the budget shows only when many prompts fill it."""
        chunking = self.found.chunking
        if chunking is None or chunking.chunk is None:
            return
        threshold = chunking.chunk
        tokens = 2 * threshold
        needed_s = MARGIN * CROWD * self._cold_s(tokens) + 1.0
        if budget is None and tokens < self._depth and needed_s < self.left_s / 3:
            count, after_s = self._metronome(CROWD * tokens)
            metronome, *crowd = self._play(probes.crowd(CROWD, tokens, count, after_s))
            ends = [last_step(metronome, one) for one in crowd]
            steps = [end for end in ends if end is not None]
            budget = budget_of_crowd(threshold, crowd[0].prompt_tokens, steps)
        self.found.chunking = Chunking(
            threshold, chunking.low, chunking.high, chunking.exact, budget, threshold
        )

    def _deep(self) -> None:
        found = self.found
        deepest = max(found.cold)
        caching = self._limits.prefix_caching is not False
        for number, new_tokens in enumerate(probes.TURNS_NEW):
            if caching:
                # The shortest turn tells; a long one takes as long as a short cold prompt.
                caching = self._warm_turn(deepest, new_tokens) or number > 0
        found.caching = caching
        if not caching:
            found.skipped.append("decoding of several at depth: prefixes are not cached")
        for bases in self._deep_groups(deepest) if caching else [[deepest]]:
            needed_s = len(bases) * self._deep_s() + (0 if caching else self._cold_s(deepest))
            if needed_s > self.left_s:
                found.skipped.append(f"decoding at {bases}: {self.left_s:.0f} s were left")
                continue
            usual_s = usual_gap_s(found.idle[0][0]) or 0.01
            tokens = self._affordable(probes.DEEP_TOKENS, usual_s)
            heard = self._play(probes.deep(bases, tokens))
            self._take(f"D{len(bases)}", decode_stretches(heard))
            if len(heard) == 1:
                found.idle.append((heard[0], self._uncached(heard[0])))

    def _warm_turn(self, base: int, new_tokens: int) -> bool:
        """Whether prefixes are cached; takes the steps of a turn at depth if so."""
        found = self.found
        count, after_s = self._metronome(new_tokens * 4)
        metronome, warm = self._play(probes.turn(base, new_tokens, count, after_s))
        cold = found.cold[base][0]
        if warm.cached_tokens is not None:
            caching = warm.cached_tokens > 0.5 * cold.prompt_tokens
        else:
            caching = warm.ttft_s < 0.6 * cold.ttft_s
        if caching:
            chunk = (found.chunking.chunk if found.chunking else None) or 1 << 30
            cached = warm.prompt_tokens - self._uncached(warm)
            stretches, start_s = cold_stretches(metronome, warm, cached, chunk)
            self._take(f"D turn {new_tokens}", stretches)
            usual_s = usual_gap_s(metronome, warm.sent_s)
            if stretches and usual_s is not None:
                found.beside.append((warm, start_s, usual_s))
        return caching

    def _uncached(self, heard: Heard) -> int:
        """Tokens of a warm prompt that were computed; by the block rule where none are told."""
        if heard.cached_tokens is not None:
            return heard.prompt_tokens - heard.cached_tokens
        size = self._limits.block_size or 16
        shared = heard.prompt_tokens - heard.ask.new_tokens
        return heard.prompt_tokens - shared // size * size

    def _deep_groups(self, deepest: int) -> list[list[int]]:
        middle = [n for n in self.found.cold if n < deepest and n >= 2048]
        groups = [[deepest]]
        if middle:
            groups.append([max(middle), deepest])
        if len(middle) > 1:
            groups.append([min(middle), max(middle), deepest])
        room = self._limits.kv_tokens
        return [g for g in groups if room is None or sum(g) + 500 < 0.95 * room]


def _decoded_together(heard: Sequence[Heard]) -> list[Heard]:
    """The requests that were decoding when the first of all ended."""
    end = min(one.chunks_s[-1] for one in heard)
    return [one for one in heard if one.chunks_s[0] < end]


def _held_back(heard: Sequence[Heard]) -> bool:
    """Whether requests waited for others to end although they had been sent early enough."""
    end = min(one.chunks_s[-1] for one in heard)
    began = sorted(one.ttft_s for one in heard)[len(heard) // 4]
    late = [one for one in heard if one.chunks_s[0] >= end and one.sent_s + 2 * began < end]
    return len(late) >= max(2, len(heard) // 8)
