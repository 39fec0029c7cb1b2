"""The scheduler model with the settings that were found in force."""

from __future__ import annotations

from agentload.sim.core import EngineConfig
from agentload.sim.profiles import InForce, version_profile

UNKNOWN_BLOCKS, UNKNOWN_LENGTH, UNKNOWN_SEQUENCES = 1 << 20, 1 << 20, 1024


def engine_of(settings: InForce, profile: str) -> EngineConfig:
    """What is not known does not bind. `profile` names a version profile."""
    switches = dict(version_profile(profile).engine)
    if settings.async_scheduling is not None:
        switches["async_scheduling"] = settings.async_scheduling
    length = settings.max_model_len or UNKNOWN_LENGTH
    budget = settings.max_num_batched_tokens or length
    return EngineConfig(
        max_num_seqs=min(settings.max_num_seqs or UNKNOWN_SEQUENCES, budget),
        max_num_batched_tokens=budget,
        num_blocks=settings.kv_blocks or UNKNOWN_BLOCKS,
        block_size=settings.block_size or 16,
        max_model_len=length,
        long_prefill_token_threshold=min(settings.long_prefill_token_threshold or 0, length),
        enable_chunked_prefill=settings.chunked_prefill is not False or budget < length,
        enable_prefix_caching=settings.prefix_caching is not False,
        **switches,
    )
