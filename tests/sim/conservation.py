"""Blocks and tokens that must add up at every boundary of a simulated engine."""

from agentload.sim.core import Engine, Request
from agentload.sim.core.request import State


def assert_blocks_conserved(engine: Engine) -> None:
    """Free, cached and held blocks are all blocks; the free queue holds what is free."""
    scheduler = engine._scheduler
    pool, size = scheduler.pool, engine.config.block_size
    queued, extent = pool._blank, pool._queue.after
    while extent is not pool._queue:
        assert not extent.holders, "a held extent is in the free queue"
        assert extent.high > extent.low, "an empty extent is in the free queue"
        assert extent.node is None or extent in extent.node.extents
        queued += extent.high - extent.low
        extent = extent.after
    assert queued == pool.free
    held = {id(e): e for request in scheduler.running for e in request.table}
    private = scheduler.taken_ahead
    for request in scheduler.running:
        assert request.hashed == sum(e.high - e.low for e in request.table)
        assert all(request in e.holders for e in request.table)
        if request.state is State.DECODING:
            private += -(-scheduler.decoders.computed(request) // size) - request.hashed
        else:
            private += request.unhashed
    assert pool.free + private + sum(e.high - e.low for e in held.values()) == pool.total


def assert_tokens_conserved(engine: Engine, requests: list[Request]) -> None:
    """After a run: every block is free, every token that was counted belongs to a request."""
    assert_blocks_conserved(engine)
    assert engine.kv_usage == 0
    assert engine.running_count == engine.waiting_count == 0
    assert engine.counters.generated == sum(r.generated for r in requests)
    assert all(r.finished or r.aborted for r in requests)
    assert all(r.generated == r.output_tokens for r in requests if r.finished)
    assert engine.counters.finished_requests == sum(r.finished for r in requests)
    assert engine.counters.aborted_requests == sum(r.aborted for r in requests)
    if not engine.counters.preemptions and not engine.counters.aborted_requests:
        uncached = sum(r.prompt_tokens - (r.cached_tokens or 0) for r in requests)
        assert engine.counters.prefill_computed >= uncached
