"""Settings of one simulated vLLM engine core."""

from dataclasses import dataclass


class ConfigError(ValueError):
    """An engine setting that vLLM would refuse at start-up."""


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Scheduler and KV cache settings of one replica.

    The first group carries vLLM's flag names. `num_blocks` is vLLM's `num_gpu_blocks`; one block
    of it (the null block) is never usable.

    The second group differs between vLLM versions (see `agentload.sim.profiles`):

    - `reserve_full_isl`: a waiting request is admitted only if its whole sequence fits.
    - `async_scheduling`: the batch of step k+1 is formed when step k starts.
    - `unhashed_blocks_first`: freed blocks without a hash are reused before cached ones
      (otherwise they queue behind them in the order they were freed).
    - `threshold_needs_company`: the prefill threshold is ignored while one request exists.
    - `chunked_prefill_forced`: `enable_chunked_prefill=False` has no effect.

    Raises ConfigError listing every fault.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    block_size: int = 16
    long_prefill_token_threshold: int = 0
    max_model_len: int = 131072

    reserve_full_isl: bool = True
    async_scheduling: bool = True
    unhashed_blocks_first: bool = True
    threshold_needs_company: bool = True
    chunked_prefill_forced: bool = False

    def __post_init__(self) -> None:
        faults = list(self._faults())
        if faults:
            raise ConfigError("; ".join(faults))

    @property
    def chunks_prefills(self) -> bool:
        """Whether a waiting prompt may be admitted with part of its tokens."""
        return self.enable_chunked_prefill or self.chunked_prefill_forced

    @property
    def usable_blocks(self) -> int:
        """KV cache blocks that requests can hold."""
        return self.num_blocks - 1

    def _faults(self) -> "list[str]":
        faults = [
            f"{name}={getattr(self, name)} must be at least {least}"
            for name, least in (
                ("max_num_seqs", 1),
                ("max_num_batched_tokens", 1),
                ("num_blocks", 2),
                ("block_size", 1),
                ("long_prefill_token_threshold", 0),
                ("max_model_len", 1),
            )
            if getattr(self, name) < least
        ]
        budget = self.max_num_batched_tokens
        if budget < self.max_num_seqs:
            faults.append(
                f"max_num_batched_tokens ({budget}) must be greater than or equal to "
                f"max_num_seqs ({self.max_num_seqs})"
            )
        if not self.chunks_prefills and budget < self.max_model_len:
            faults.append(
                f"max_num_batched_tokens ({budget}) is smaller than max_model_len "
                f"({self.max_model_len}) while chunked prefill is off, which limits the prompt "
                "to the token budget; increase max_num_batched_tokens or decrease max_model_len"
            )
        if self.long_prefill_token_threshold > self.max_model_len:
            faults.append(
                f"long_prefill_token_threshold ({self.long_prefill_token_threshold}) cannot be "
                f"greater than max_model_len ({self.max_model_len})"
            )
        return faults
