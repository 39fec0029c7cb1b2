"""Whether a server takes long prompts in chunks, told from a stream that decodes beside one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from agentload.client.result import StreamResult
from agentload.clock import NS_PER_S

# Share of a prompt's prefill that a neighbour's longest gap takes: 1 without chunks (0.96-0.99
# measured on vLLM 0.32), the chunk's share with them.
WHOLE_PREFILL_SHARE = 0.8
# Where the prefill's time is only the client's TTFT, which has the front end in it as well, a share
# between this and the one above says nothing.
UNCLEAR_SHARE = 0.6
# The prefill must take so many usual gaps, else its stall cannot be told from noise.
TELLING_GAPS = 8
LEAST_CHUNKS = 5


@dataclass(frozen=True, slots=True)
class Chunking:
    """What was seen. `effective` is None when it could not be told; `why_not` then says why.

    `prefill_s` is the server's own count where it gives one, else the prompt's TTFT.
    """

    effective: bool | None
    why_not: str = ""
    longest_gap_s: float | None = None
    prefill_s: float | None = None
    prompt_tokens: int | None = None

    @property
    def chunk_tokens(self) -> int | None:
        """Tokens of the prompt that went by in the longest gap; None unless chunked."""
        gap_s, prefill_s, tokens = self.longest_gap_s, self.prefill_s, self.prompt_tokens
        if not self.effective or not tokens or not prefill_s or gap_s is None:
            return None
        return round(tokens * gap_s / prefill_s)


def chunking(decoding: StreamResult, prompt: StreamResult) -> Chunking:
    """Judge a stream that decoded while `prompt`, long and not seen before, went beside it."""
    if prompt.status != "success" or len(decoding.chunk_ns) < LEAST_CHUNKS:
        failed = prompt if prompt.status != "success" else decoding
        return Chunking(None, f"not tried: {failed.error_class or 'too few chunks'}")
    start_ns, first_ns = prompt.send_start_ns or 0, prompt.chunk_ns[0]
    gaps = [(a, b) for a, b in pairwise(decoding.chunk_ns) if a < first_ns and b > start_ns]
    times = prompt.server_times
    told_s = times.prefill_s if times is not None else None
    prefill_s = told_s if told_s is not None else (first_ns - start_ns) / NS_PER_S
    usual_s = median(b - a for a, b in pairwise(decoding.chunk_ns)) / NS_PER_S
    tokens = prompt.prompt_tokens
    if not gaps or prefill_s < TELLING_GAPS * usual_s:
        why = f"a prefill of {prefill_s:.2f} s is too short to tell"
        return Chunking(None, why, None, prefill_s, tokens)
    longest_s = max(b - a for a, b in gaps) / NS_PER_S
    share = longest_s / prefill_s
    if told_s is None and UNCLEAR_SHARE < share <= WHOLE_PREFILL_SHARE:
        why = f"a gap of {share:.0%} of the prompt's TTFT says neither"
        return Chunking(None, why, longest_s, prefill_s, tokens)
    return Chunking(share <= WHOLE_PREFILL_SHARE, "", longest_s, prefill_s, tokens)
