"""Which turns enter the live figures, and what the owner of a run makes of the messages."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload.live.counting import CountingRules, LiveTurns
from agentload.live.figures import all_figures, slo_lights
from agentload.live.totals import ClassTotals
from agentload.live.wire import LiveReceiver, LiveSender
from agentload.recording.record import TurnRecord

RULES = CountingRules(
    unmeasured_stages=frozenset({"warm_up", "low"}),
    window_from_s=5.0,
    window_to_s=100.0,
    max_tokens_per_s=2000.0,
    slos={"tool": {"ttft_s": 0.5, "itl_p99_s": 0.1}},
)


def row(**given: Any) -> TurnRecord:
    """A counted tool turn, with what is given in its place."""
    values: dict[str, Any] = {f.name: None for f in fields(TurnRecord)}
    values |= {
        "turn_class": "tool",
        "stage": "high",
        "call_start_s": 50.0,
        "status": "success",
        "ttft_s": 0.4,
        "first_chunk_s": 50.4,
        "last_chunk_s": 52.4,
        "output_tokens": 101,
        "output_chunks": 101,
        "prompt_tokens": 1000,
        "cached_tokens": 900,
        "e2e_s": 2.5,
        "tpot_s": 0.02,
        "jitter_s": 0.01,
        "itl_p99_s": 0.03,
        "stall_count": 0,
    }
    return TurnRecord(**(values | given))


def counted(*rows: TurnRecord, from_s: float | None = 10.0) -> LiveTurns:
    turns = LiveTurns(RULES)
    if from_s is not None:
        turns.begin_stages(from_s)
    for each in rows:
        turns.add(each, (20_000, 21_000))
    return turns


@pytest.mark.parametrize(
    ("given", "measured"),
    [
        ({}, 1),
        ({"stage": "low"}, 0),
        ({"stage": "warm_up"}, 0),
        ({"call_start_s": 14.999}, 0),
        ({"call_start_s": 15.0}, 1),
        ({"call_start_s": 110.0}, 1),
        ({"call_start_s": 110.001}, 0),
        ({"turn_class": "nonsense"}, 0),
    ],
)
def test_only_turns_of_measured_stages_inside_the_window_are_measured(
    given: dict[str, Any], measured: int
) -> None:
    totals = counted(row(**given)).totals
    assert sum(t.counts["turns"] for t in totals.values()) == measured


def test_nothing_is_measured_before_the_stages_begin_or_after_measuring_ended() -> None:
    assert counted(row(), from_s=None).totals == {}
    turns = counted()
    turns.end_measuring(49.0)
    turns.add(row(), ())
    assert turns.totals == {}


def test_errors_aborted_and_implausible_turns_are_counted_and_stay_out_of_latencies() -> None:
    turns = counted(
        row(),
        row(status="error", error_class="http_500", ttft_s=None),
        row(status="aborted"),
        row(last_chunk_s=50.4 + 0.049),  # 100 tokens after the first in 49 ms
        row(last_chunk_s=50.4),
        row(ttft_s=-0.001),
        row(last_chunk_s=50.4, output_chunks=4),  # too few chunks to judge by
    )
    (figures, every) = all_figures(turns.totals, "a", 10.0, lambda _: 3)
    assert every.turns == figures.turns == 7
    assert (figures.successes, figures.errors, figures.aborted) == (5, 1, 1)
    assert (figures.implausible, figures.counted) == (3, 2)
    assert figures.errors_by_class == {"http_500": 1}
    assert (figures.ttft.samples, figures.itl.samples) == (2, 4)
    assert figures.ttft.p90_s is None  # of two samples
    assert figures.output_tokens_per_s == 20.2
    assert figures.cache_hit_ratio == 0.9
    assert figures.in_flight == 3


def test_a_limit_is_met_at_the_limit_and_every_miss_has_its_reason() -> None:
    good = [row(ttft_s=0.5, itl_p99_s=0.1)] * 17 + [row(ttft_s=None, itl_p99_s=None)]
    late, slow = row(ttft_s=0.500001), row(ttft_s=0.6, itl_p99_s=0.11)
    failed, aborted = row(status="error"), row(status="aborted", ttft_s=9.0)
    turns = counted(*good, late, slow, failed, aborted)
    (light,), together = slo_lights(turns.totals, RULES.slos)
    assert (light.judged, light.share) == (21, pytest.approx(18 / 21))
    assert light.misses == {"ttft_s": 2, "itl_p99_s": 1, "failed": 1}
    assert light.light == together == "bad"
    (light,), _ = slo_lights(counted(*good).totals, RULES.slos)
    assert light.light == "good"
    (light,), _ = slo_lights(counted(*good[:9]).totals, RULES.slos)
    assert light.light == "unknown"


def as_plain(totals: dict[str, ClassTotals]) -> Any:
    return {
        name: (
            {k: n for k, n in t.counts.items() if n},
            dict(t.errors),
            {
                h: (dict(x.bins), x.min_us, x.max_us, x.sum_us)
                for h, x in t.histograms.items()
                if x.bins
            },
        )
        for name, t in totals.items()
    }


ROWS = st.lists(
    st.builds(
        row,
        turn_class=st.sampled_from(["cold", "tool", "user"]),
        status=st.sampled_from(["success", "success", "error", "aborted"]),
        ttft_s=st.floats(0.0, 100.0),
        stage=st.sampled_from(["high", "low"]),
    ),
    max_size=12,
)
FATES = st.lists(st.sampled_from(["answered", "lost", "answer lost", "late twice"]), max_size=8)


@given(st.lists(st.tuples(ROWS, FATES), min_size=1, max_size=3), st.randoms())
def test_lost_repeated_and_late_messages_neither_lose_nor_double_a_turn(
    workers: list[tuple[list[TurnRecord], list[str]]], rng: random.Random
) -> None:
    receiver, late = LiveReceiver(), []
    whole = LiveTurns(RULES)
    whole.begin_stages(10.0)
    for number, (rows, fates) in enumerate(workers):
        turns = counted()
        sender = LiveSender(turns)
        pending = list(rows)
        for fate in [*fates, "answered"]:
            taken = len(pending) if fate == "answered" else min(2, len(pending))
            for each in pending[:taken]:
                gaps = tuple(rng.randint(0, 10**6) for _ in range(3))
                turns.add(each, gaps)
                whole.add(each, gaps)
            del pending[:taken]
            message = json.loads(json.dumps(sender.message()))
            if fate == "late twice":
                late += [(str(number), message)] * 2
            if fate in ("answered", "answer lost"):
                seq = receiver.take(str(number), message)
                if fate == "answered":
                    sender.answered(seq)
    for name, message in late:
        receiver.take(name, message)
    assert as_plain(receiver.totals) == as_plain(whole.totals)


def test_a_message_after_an_answer_holds_only_what_changed() -> None:
    turns = counted(*[row(ttft_s=0.1 * i) for i in range(1, 60)])
    sender, receiver = LiveSender(turns), LiveReceiver()
    sender.answered(receiver.take("w", sender.message()))
    assert sender.message()["classes"] == {}
    turns.add(row(ttft_s=7.0), (33_000,))
    (tool,) = sender.message()["classes"].values()
    assert [len(part[3]) for part in tool["histograms"].values()] == [2, 2, 2, 2, 2]


BAD = [
    None,
    {},
    {"seq": 1, "in_flight": {}, "classes": {"nobody": {}}},
    {"seq": True, "in_flight": {}, "classes": {}},
    {"seq": 1, "in_flight": {"tool": -1}, "classes": {}},
    {"seq": 1, "in_flight": {"x" * 999: 1}, "classes": {}},
    {"seq": 1, "in_flight": {}, "classes": {"tool": {"counts": [1], "errors": {}}}},
]


@pytest.mark.parametrize("message", BAD)
def test_what_is_no_message_is_left_out(message: Any) -> None:
    receiver = LiveReceiver()
    assert receiver.take("w", message) is None
    assert receiver.totals == {}


def test_no_part_of_a_message_can_be_of_another_kind() -> None:
    turns = counted(row(), row(status="error", error_class="x"))
    good = json.dumps(LiveSender(turns).message())
    assert LiveReceiver().take("w", json.loads(good)) == 1
    for old, new in [('"errors": {"x": 1}', '"errors": {"x": "1"}'), ("[400000,", "[-1,")]:
        assert old in good
        assert LiveReceiver().take("w", json.loads(good.replace(old, new))) is None
    message = json.loads(good)
    message["classes"]["tool"]["histograms"]["ttft"][3][0] = 10**9
    assert LiveReceiver().take("w", message) is None
