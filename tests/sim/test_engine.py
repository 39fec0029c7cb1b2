"""What users of the engine rely on, beyond equality with vLLM."""

import math

import pytest

from agentload.sim.core import (
    ConfigError,
    Engine,
    EngineConfig,
    Frontend,
    Histogram,
    Node,
    Request,
    StepCost,
)

COST = StepCost(1.0, 0.0, 0.0, 0.0, 0.0)  # every step takes a second


def config(**settings: object) -> EngineConfig:
    base = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "num_blocks": 101}
    return EngineConfig(**{**base, "async_scheduling": False, **settings})  # type: ignore[arg-type]


def finish(engine: Engine, *requests: Request) -> None:
    engine.run_until(math.inf)
    assert all(request.finished for request in requests)


def test_a_prompt_takes_its_chunks_and_then_one_step_a_token() -> None:
    engine = Engine(config(), COST)
    request = Request("a", [(Node(), 130)], 4, 5.0)
    engine.add(request, 5.0)
    assert engine.next_wake_s() == 5.0
    finish(engine, request)
    # 64 + 64 + 2 tokens in three steps, the third of which yields the first token.
    assert (request.scheduled_s, request.first_token_s, request.last_token_s) == (5.0, 8.0, 11.0)
    assert engine.counters.steps == 6
    assert engine.counters.prefill_computed == 130
    assert engine.counters.generated == 4
    assert (engine.itl.count, engine.itl.total_s) == (3, 3.0)


def test_a_repeated_prompt_recomputes_its_last_block() -> None:
    engine, node = Engine(config(max_num_batched_tokens=512), COST), Node()
    first = Request("first", [(node, 64)], 1, 0.0)
    engine.add(first, 0.0)
    finish(engine, first)
    second = Request("second", [(node, 64)], 1, engine.now_s)
    engine.add(second, engine.now_s)
    finish(engine, second)
    assert (first.cached_tokens, second.cached_tokens) == (0, 48)
    assert (engine.counters.prefix_queries, engine.counters.prefix_hits) == (128, 48)


def test_callbacks_come_in_order_of_admission_and_may_add() -> None:
    seen: list[tuple[str, str | int, float]] = []

    def first(request: Request, now_s: float) -> None:
        seen.append(("first", request.request_id, now_s))

    def last(request: Request, now_s: float) -> None:
        seen.append(("last", request.request_id, now_s))
        if request.request_id == "a":
            engine.add(Request("c", [(Node(), 8)], 1, now_s), now_s)

    engine = Engine(config(), COST, on_first_token=first, on_finish=last)
    for name in ("a", "b"):
        engine.add(Request(name, [(Node(), 8)], 1, 0.0), 0.0)
    engine.run_until(math.inf)
    assert seen == [
        ("first", "a", 1.0),
        ("last", "a", 1.0),
        ("first", "b", 1.0),
        ("last", "b", 1.0),
        ("first", "c", 2.0),
        ("last", "c", 2.0),
    ]


def test_run_until_stops_at_what_ends_by_then() -> None:
    engine = Engine(config(), COST)
    request = Request("a", [(Node(), 8)], 10, 0.0)
    engine.add(request, 0.0)
    engine.run_until(0.5)
    assert (engine.now_s, request.generated, engine.running_count) == (0.5, 0, 1)
    engine.run_until(1.0)
    assert request.generated == 1
    assert list(engine.decoding()) == [request]
    assert engine.next_wake_s() == 10.0  # one jump to the last token


def test_one_step_a_wake_when_asked_for() -> None:
    engine = Engine(config(), COST, max_jump_steps=1)
    request = Request("a", [(Node(), 8)], 4, 0.0)
    engine.add(request, 0.0)
    wakes = []
    while (wake_s := engine.next_wake_s()) is not None:
        engine.run_until(wake_s)
        wakes.append((wake_s, request.generated))
    assert wakes == [(0.0, 0), (1.0, 1), (2.0, 2), (3.0, 3), (4.0, 4)]


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_aborted_request_frees_its_blocks_when_the_step_ends(async_scheduling: bool) -> None:
    engine = Engine(config(async_scheduling=async_scheduling), COST)
    request = Request("a", [(Node(), 40)], 50, 0.0)
    engine.add(request, 0.0)
    engine.run_until(3.5)
    assert engine.kv_usage > 0
    engine.abort(request, 3.5)
    engine.run_until(3.9)
    assert not request.aborted
    engine.run_until(4.0)
    assert request.aborted
    assert request.generated == 3  # the token of the step under way is lost
    assert engine.kv_usage == 0
    assert (engine.counters.aborted_requests, engine.counters.generated) == (1, 3)


def test_a_request_may_leave_before_it_arrives() -> None:
    engine = Engine(config(), COST)
    request = Request("a", [(Node(), 40)], 50, 2.0)
    engine.add(request, 2.0)
    engine.abort(request, 1.0)
    assert engine.next_wake_s() is None
    assert request.aborted


def test_reset_forgets_the_cache_only_when_nothing_runs() -> None:
    engine, node = Engine(config(), COST), Node()
    request = Request("a", [(node, 64)], 5, 0.0)
    engine.add(request, 0.0)
    assert not engine.reset_prefix_cache(2.0)
    finish(engine, request)
    assert node.cached_blocks == 4
    assert engine.reset_prefix_cache(engine.now_s)
    assert node.cached_blocks == 0
    assert node.idle


def test_a_node_is_split_under_requests_in_flight() -> None:
    engine, node = Engine(config(max_num_batched_tokens=512), COST), Node()
    running = Request("running", [(node, 100)], 40, 0.0)
    engine.add(running, 0.0)
    engine.run_until(5.0)
    lower = engine.split_node(node, 3)
    beside = Request("beside", [(node, 48), (Node(), 60)], 1, 5.0)
    engine.add(beside, 5.0)
    finish(engine, running, beside)
    assert beside.cached_tokens == 48
    again = Request("again", [(node, 48), (lower, 92)], 1, engine.now_s)
    engine.add(again, engine.now_s)
    finish(engine, again)
    assert again.cached_tokens == 128  # 139 tokens were computed: 8 whole blocks
    assert (node.cached_blocks, lower.cached_blocks) == (3, 5)
    assert engine.kv_usage == 0


def test_usage_counts_held_blocks_only() -> None:
    engine = Engine(config(), COST)
    request = Request("a", [(Node(), 32)], 2, 0.0)
    engine.add(request, 0.0)
    engine.run_until(0.0)
    assert engine.kv_usage == pytest.approx(2 / 100)  # the null block is no capacity
    finish(engine, request)
    assert engine.kv_usage == 0


def test_output_is_cut_at_the_length_limit() -> None:
    engine = Engine(config(max_model_len=50), COST)
    request = Request("a", [(Node(), 40)], 100, 0.0)
    engine.add(request, 0.0)
    finish(engine, request)
    assert request.generated == 10


@pytest.mark.parametrize(
    ("path", "output", "fault"),
    [
        ([(Node(), 20), (Node(), 5)], 1, "whole blocks of 16"),
        ([(Node(), 200)], 1, "max_model_len=200"),
        ([(Node(), 100)], 60, "never fit in 9 blocks"),
    ],
)
def test_what_can_never_run_is_refused(
    path: list[tuple[Node, int]], output: int, fault: str
) -> None:
    engine = Engine(config(max_model_len=200, num_blocks=10), COST)
    with pytest.raises(ValueError, match=fault):
        engine.add(Request("a", path, output, 0.0), 0.0)
    assert engine.next_wake_s() is None


def test_the_past_and_a_second_add_are_refused() -> None:
    engine = Engine(config(), COST)
    request = Request("a", [(Node(), 8)], 1, 0.0)
    engine.add(request, 3.0)
    with pytest.raises(ValueError, match="already added"):
        engine.add(request, 3.0)
    engine.run_until(2.0)
    with pytest.raises(ValueError, match="before now"):
        engine.add(Request("b", [(Node(), 8)], 1, 0.0), 1.0)


@pytest.mark.parametrize(
    ("settings", "faults"),
    [
        ({"max_num_seqs": 100}, ["max_num_batched_tokens (64)", "max_num_seqs (100)"]),
        (
            {"enable_chunked_prefill": False},
            ["max_num_batched_tokens (64) is smaller than max_model_len (131072)", "increase"],
        ),
        ({"num_blocks": 1, "block_size": 0}, ["num_blocks=1", "block_size=0"]),
    ],
)
def test_settings_that_vllm_refuses(settings: dict[str, object], faults: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        config(**settings)
    for fault in faults:
        assert fault in str(caught.value)


def test_forced_chunking_ignores_the_flag() -> None:
    assert config(enable_chunked_prefill=False, chunked_prefill_forced=True).chunks_prefills


def test_step_cost_forms() -> None:
    linear = StepCost(1, 2, 3, 4, 5)
    roof = StepCost(100, 2, 3, 4, 5, 7, form="roof")
    assert linear.step_s(10, 2, 30, 4) == 1 + 20 + 6 + 120 + 20
    assert roof.step_s(10, 2, 30, 4) == 7 + 100 + 6 + 120 + 20
    assert roof.step_s(60, 2, 30, 4) == 7 + 124 + 6 + 120 + 20
    assert linear.growth_s(3) == 12
    with pytest.raises(ValueError, match="take time"):
        StepCost(0, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="finite"):
        StepCost(1, -1, 1, 1, 1)


def test_the_tokenizer_is_a_queue_that_token_ids_pass_quickly() -> None:
    frontend = Frontend(0.5, 0.25)
    assert frontend.ready_s(0.0, 8) == 2.5
    assert frontend.ready_s(1.0, 4) == 4.0  # waits for the first
    assert frontend.ready_s(10.0, 1000, token_ids=True) == 10.5


def test_histogram_counts_a_ramp_like_its_values() -> None:
    ramp, single = Histogram(), Histogram()
    ramp.add_ramp(0.5, 0.25, 40, 3)
    for step in range(40):
        single.add(0.5 + 0.25 * step, 3)
    assert ramp.bins == single.bins
    assert ramp.count == 120
    assert ramp.total_s == pytest.approx(single.total_s)
    assert ramp.quantile(0.5) == pytest.approx(0.5 + 0.25 * 19, rel=0.01)
    assert Histogram().quantile(0.5) is None
