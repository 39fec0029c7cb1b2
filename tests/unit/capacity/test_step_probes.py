"""Which steps were a prompt's: by hand, and on streams that a real vLLM 0.32 sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentload.capacity.calibrate.probes import Ask, Heard
from agentload.capacity.calibrate.step_probes import cold_stretches, last_step, marks, window

Chunk = tuple[float, int, bool]  # ms, tokens, whether the instant is its own


def heard(chunks: Sequence[Chunk], prompt_tokens: int, sent_ms: float = 0.0) -> Heard:
    at, tokens, own = zip(*chunks, strict=True)
    ask = Ask("x", 0, prompt_tokens, sum(tokens))
    return Heard(ask, sent_ms / 1e3, tuple(ms / 1e3 for ms in at), tokens, own, prompt_tokens, 0)


def steady(first_ms: float, last_ms: float, every_ms: float) -> list[Chunk]:
    count = round((last_ms - first_ms) / every_ms) + 1
    return [(first_ms + every_ms * number, 1, True) for number in range(count)]


# A metronome of 1 ms steps; the prompt was computed in the step from 9 to 13 ms, the 30th.
BEFORE = steady(-20.0, 8.0, 1.0)
METRONOME = heard([*BEFORE, (12.0, 1, True), *steady(13.0, 22.0, 1.0)], 16, -30.0)


def test_the_step_that_gave_the_first_token_has_the_instant_nearest_to_it() -> None:
    assert last_step(METRONOME, heard([(12.1, 1, True), (13.1, 1, True)], 300)) == 30


def test_a_first_token_read_with_the_second_is_a_step_before_it() -> None:
    """Seen on vLLM: the answer's first bytes were kept until the next step."""
    prompt = heard([(13.1, 1, False), (13.1, 1, True)], 300)
    assert last_step(METRONOME, prompt) == 30
    (stretch,), start_s = cold_stretches(METRONOME, prompt, 0, 2047)
    assert (stretch.steps, stretch.prefill, stretch.decodes) == (1, 300, 1)
    assert stretch.context == 16 + 29
    assert stretch.seconds == pytest.approx(4e-3)
    assert start_s == pytest.approx(8e-3)


def test_a_prompt_without_an_instant_of_its_own_hides_its_step() -> None:
    assert last_step(METRONOME, heard([(12.1, 1, False)], 300)) is None


def test_a_step_inside_a_chunk_of_several_tokens_is_part_of_a_longer_stretch() -> None:
    chunks = [*BEFORE, (13.0, 2, True), *steady(14.0, 22.0, 1.0)]
    prompt = heard([(13.1, 1, False), (13.1, 1, True)], 300)
    metronome = heard(chunks, 16, -30.0)
    assert last_step(metronome, prompt) == 30
    (stretch,), start_s = cold_stretches(metronome, prompt, 0, 2047)
    assert (stretch.steps, stretch.prefill, stretch.decodes) == (2, 300, 2)
    assert stretch.seconds == pytest.approx(5e-3)
    assert start_s == pytest.approx(8e-3)
    (gap, *_), (steps, *_) = window(metronome, prompt).gaps_s, window(metronome, prompt).steps
    assert (gap, steps) == (pytest.approx(4e-3), 1)  # the step after the prompt's is taken off


def test_chunks_that_others_follow_too_fast_were_late_and_are_no_marks() -> None:
    # The tokens of 2 to 6 ms were kept back until 6.2 ms, those of 7 and 8 ms came in time.
    late = [(6.2 + 0.05 * number, 1, True) for number in range(5)]
    metronome = heard([*steady(-10.0, 1.0, 1.0), *late, *steady(7.0, 20.0, 1.0)], 16, -30.0)
    done, stamps = marks(metronome)
    assert [n for n in range(1, 32) if n not in done] == [13, 14, 15, 16]  # of 2 to 5 ms
    assert stamps[12] == pytest.approx(6.4e-3)


def test_a_prompt_that_would_have_begun_before_it_was_sent_shows_nothing() -> None:
    prompt = heard([(12.1, 1, True), (13.1, 1, True)], 4000, sent_ms=8.5)
    assert cold_stretches(METRONOME, prompt, 0, 2047) == ([], 0.0)


def test_chunks_of_a_cold_prompt_on_a_real_server() -> None:
    """8,186 tokens in four steps of vLLM 0.32 on a CPU; the last was handed out 1.6 ms late."""
    metronome = heard(
        [
            *[(-2.0 - 2.4 * number, 1, True) for number in range(40, 0, -1)],
            *[(2.02, 1, True), (2.91, 1, True), (5.2, 1, True), (8.76, 1, True), (12.32, 1, True)],
            *[(12.85, 1, True), (14.78, 1, True), (17.14, 1, True), (22.0, 1, True)],
            *[(22.46, 1, True), (24.78, 1, True), (30.47, 2, True), (32.75, 1, True)],
            *[(175.76, 1, True), (319.5, 1, True), (468.5, 1, True), (638.48, 1, True)],
            *[(639.2, 1, True), (642.46, 1, True), (644.6, 1, True), (647.0, 1, True)],
            *[(649.51, 1, True), (651.92, 1, True), (654.49, 1, True)],
        ],
        16,
        -150.0,
    )
    prompt = heard([(638.71, 1, True), (639.62, 1, True)], 8186)
    stretches, start_s = cold_stretches(metronome, prompt, 0, 2047)
    assert start_s == pytest.approx(32.75e-3)
    assert [(s.steps, s.prefill) for s in stretches] == [(1, 2047), (1, 2047), (1, 2047), (2, 2045)]
    assert [round(s.seconds * 1e3, 2) for s in stretches] == [143.01, 143.74, 149.0, 170.7]
