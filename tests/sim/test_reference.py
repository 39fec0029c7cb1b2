"""The fast core against the literal reference on generated workloads."""

from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.sim.conservation import assert_blocks_conserved, assert_tokens_conserved
from tests.sim.reference import Reference
from tests.sim.workloads import FastRun, Workload, differences

# Powers of two: all times are exact, so that clients and step boundaries meet at one instant. Only
# clients that go away never meet each other (`away_s`): which of two sends first is not defined.
COST = {"c0": 2**-7, "c1": 2**-13, "c2": 2**-16, "c3": 2**-24, "c4": 2**-28}
TICK_S = 2**-8
BLOCK = 16


@st.composite
def turn(
    draw: st.DrawFn, above: list[list[Any]], leaf: str, tail: int, away_s: float
) -> dict[str, Any]:
    made: dict[str, Any] = {
        "path": [*above, [leaf, tail]],
        "output": draw(st.one_of(st.just(1), st.integers(1, 40), st.integers(30, 200))),
        "think_s": draw(st.integers(0, 200)) * TICK_S,
    }
    if draw(st.integers(0, 5)) == 0:
        made["abort_after_s"] = draw(st.integers(1, 200)) * TICK_S + away_s
    return made


@st.composite
def session(draw: st.DrawFn, number: int) -> dict[str, Any]:
    """Appends to one leaf; its segments above, and now and then the leaf, are shared."""
    above = [
        [f"level {depth} {draw(st.integers(0, 1))}", BLOCK * draw(st.sampled_from((4, 9)))]
        for depth in range(draw(st.integers(0, 2)))
    ]
    leaf = draw(st.sampled_from((f"leaf {number}", f"leaf {number}", "leaf of all")))
    tail, turns = draw(st.integers(1, 600)), []
    for _ in range(draw(st.integers(1, 4))):
        turns.append(draw(turn(above, leaf, tail, 2.0 ** -(12 + 3 * number))))
        tail += draw(st.one_of(st.just(turns[-1]["output"]), st.integers(0, 300)))
    return {"t0": draw(st.integers(0, 100)) * TICK_S, "turns": turns}


@st.composite
def workload(draw: st.DrawFn) -> Workload:
    sessions = [draw(session(n)) for n in range(draw(st.integers(1, 7)))]
    longest = max(
        sum(tokens for _, tokens in t["path"]) + t["output"] for s in sessions for t in s["turns"]
    )
    seqs = draw(st.sampled_from((1, 2, 4, 64)))
    chunked = draw(st.integers(0, 4)) > 0
    budget = max(seqs, draw(st.sampled_from((16, 50, 64, 200, 1000))))
    cfg = {
        "max_num_seqs": seqs,
        "max_batched": budget if chunked else max(budget, longest + 1),
        "chunked": chunked,
        "prefix_cache": draw(st.integers(0, 5)) > 0,
        "num_blocks": -(-longest // BLOCK) + 1 + draw(st.sampled_from((0, 0, 3, 10, 40, 200))),
        "long_prefill_threshold": draw(st.sampled_from((0, 0, 7, 16, 40))),
        "reserve_full_isl": draw(st.booleans()),
        "async_sched": draw(st.booleans()),
        "unhashed_first": draw(st.booleans()),
        "threshold_needs_company": draw(st.booleans()),
    }
    return {"cfg": cfg, "cost": COST, "sessions": sessions}


# A waiting request that would hit what another is generating: each block the other fills brings it
# closer to admission, although decoding only takes blocks away.
GAINING_HEAD: Workload = {
    "cfg": {
        "max_num_seqs": 2,
        "max_batched": 50,
        "chunked": True,
        "prefix_cache": True,
        "num_blocks": 59,
        "long_prefill_threshold": 0,
        "reserve_full_isl": True,
        "async_sched": False,
    },
    "cost": COST,
    "sessions": [
        {
            "t0": 8 * TICK_S,
            "turns": [{"path": [["a", 64], ["b", 130]], "output": 33, "think_s": 0.0}],
        },
        {
            "t0": 69 * TICK_S,
            "turns": [{"path": [["a", 64], ["b", 859]], "output": 1, "think_s": 0.0}],
        },
    ],
}


@pytest.mark.slow
@example(GAINING_HEAD)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(workload())
def test_fast_core_equals_reference(work: Workload) -> None:
    reference = Reference(work)
    jumps = FastRun(work, after_each=assert_blocks_conserved)
    steps = FastRun(work, max_jump_steps=1)
    for run in (jumps, steps):
        assert differences(reference.rows(), run.rows()) == []
        counters = run.engine.counters
        assert counters.steps == reference.count["steps"]
        assert counters.generated == reference.count["generated"]
        assert counters.preemptions == reference.count["preemptions"]
        assert counters.aborted_requests == reference.count["aborted"]
        assert_tokens_conserved(run.engine, list(run.requests.values()))
    assert abs(jumps.engine.itl.total_s - steps.engine.itl.total_s) <= 1e-6
    assert jumps.engine.itl.count == steps.engine.itl.count
