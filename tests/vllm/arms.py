"""The two server configurations that the tests measure."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

MAX_MODEL_LEN = 32_768
CHUNK_TOKENS = 2048  # vLLM's default budget of a step on a CPU

REPORTING_FLAGS = (
    *("--max-model-len", str(MAX_MODEL_LEN)),
    *("--enable-prompt-tokens-details", "--enable-per-request-metrics"),
)


@dataclass(frozen=True, slots=True)
class Arm:
    """One server configuration.

    The two arms differ in both features, since each start costs a minute and no test compares the
    arms with each other: each is held against its own server's counters.
    """

    name: str
    flags: tuple[str, ...]
    prefix_caching: bool
    chunked_prefill: bool


ARMS = (
    Arm(
        name="cached-chunked",
        flags=(
            *REPORTING_FLAGS,
            *("--enable-prefix-caching", "--enable-chunked-prefill"),
            *("--max-num-batched-tokens", str(CHUNK_TOKENS)),
        ),
        prefix_caching=True,
        chunked_prefill=True,
    ),
    Arm(
        name="uncached-whole",
        flags=(
            *REPORTING_FLAGS,
            *("--no-enable-prefix-caching", "--no-enable-chunked-prefill"),
            *("--max-num-batched-tokens", str(MAX_MODEL_LEN)),
        ),
        prefix_caching=False,
        chunked_prefill=False,
    ),
)
