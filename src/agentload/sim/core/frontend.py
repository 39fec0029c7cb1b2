"""The API server in front of the engine: a FIFO tokenizer."""

import heapq


class Frontend:
    """Requests wait for one of `workers` tokenizers, each serving in order of arrival.

    Service takes `base_s` plus `per_token_s` for each prompt token; a prompt that comes as token
    ids costs `base_s` alone. vLLM runs one worker unless told otherwise.
    """

    def __init__(self, base_s: float, per_token_s: float, workers: int = 1) -> None:
        if base_s < 0 or per_token_s < 0 or workers < 1:
            raise ValueError(
                f"base_s={base_s} and per_token_s={per_token_s} must be >= 0, "
                f"workers={workers} must be >= 1"
            )
        self.base_s = base_s
        self.per_token_s = per_token_s
        self._free_at_s = [0.0] * workers

    def ready_s(self, at_s: float, prompt_tokens: int, *, token_ids: bool = False) -> float:
        """When the request received at `at_s` reaches the engine; takes its place in the queue.

        Calls must come in order of `at_s`.
        """
        start_s = max(at_s, heapq.heappop(self._free_at_s))
        end_s = start_s + self.base_s + (0.0 if token_ids else self.per_token_s * prompt_tokens)
        heapq.heappush(self._free_at_s, end_s)
        return end_s
