"""One request as the engine core sees it."""

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentload.sim.core.blocks import Extent, Node
    from agentload.sim.core.decoders import Decoders


class State(IntEnum):
    """Where a request stands; LAST means its final token is computed but not yet delivered."""

    NEW = 0
    WAITING = 1
    PREFILLING = 2
    DECODING = 3
    LAST = 4
    FINISHED = 5
    ABORTED = 6


class Request:
    """A prompt given as a path through the prefix tree, with a fixed number of output tokens.

    `path` holds (node, tokens) from the root down. Every entry but the last covers whole blocks;
    the last one is extended by the generated tokens.

    Results are None until known: `scheduled_s` (first admission), `first_token_s`,
    `last_token_s` (final once `finished`), `cached_tokens` (prefix hit of the first admission).
    Times are seconds on the engine's clock.
    """

    __slots__ = (
        "arrival_s",
        "cached_tokens",
        "capacities",
        "computed",
        "decoders",
        "epoch",
        "first_token_s",
        "fresh",
        "hashed",
        "last_token_s",
        "nodes",
        "order",
        "output_tokens",
        "preemptions",
        "produced",
        "prompt_tokens",
        "request_id",
        "scheduled_s",
        "start_context",
        "start_tick",
        "state",
        "table",
        "target",
        "unhashed",
        "writes",
    )

    def __init__(
        self,
        request_id: str | int,
        path: Sequence[tuple["Node", int]],
        output_tokens: int,
        arrival_s: float,
    ) -> None:
        if output_tokens < 1:
            raise ValueError(f"request {request_id}: output_tokens={output_tokens} must be >= 1")
        self.request_id = request_id
        self.place(path)
        self.output_tokens = output_tokens
        self.arrival_s = arrival_s
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.cached_tokens: int | None = None
        self.preemptions = 0
        # Below: the engine's own state.
        self.state = State.NEW
        self.computed = 0  # tokens whose KV is computed, or scheduled to be
        self.target = self.prompt_tokens  # tokens to compute before the next token is sampled
        self.produced = 0  # tokens sampled up to the start of the current decode stretch
        self.order = 0  # position in the running list: admissions counted by the engine
        self.table: list[Extent] = []  # hashed blocks held, in prompt order
        self.hashed = 0  # their number
        self.unhashed = 0  # blocks held that have no identity yet
        self.decoders: Decoders | None = None
        self.start_context = 0
        self.start_tick = 0
        self.epoch = 0
        self.fresh = False  # the last token came from a prefill chunk, not from a decode step
        self.writes: list[Node] = []  # nodes that generated blocks may go to

    def place(self, path: Sequence[tuple["Node", int]]) -> None:
        """Take this path, from the constructor or, until the request is added, again.

        Prompts that come meanwhile may cut nodes of a path that no engine follows yet.
        """
        if not path:
            raise ValueError(f"request {self.request_id}: the path is empty")
        if any(tokens < 0 for _, tokens in path):
            raise ValueError(f"request {self.request_id}: a path entry has a negative token count")
        self.nodes: list[Node] = [node for node, _ in path]
        self.capacities: list[int] = [tokens for _, tokens in path]
        self.prompt_tokens = sum(self.capacities)
        if self.prompt_tokens < 1:
            raise ValueError(f"request {self.request_id}: the prompt is empty")

    @property
    def generated(self) -> int:
        """Output tokens delivered so far."""
        if self.state is State.DECODING and self.decoders is not None:
            return self.produced + self.decoders.tick - self.start_tick
        return self.produced

    @property
    def finished(self) -> bool:
        """All output tokens were delivered."""
        return self.state is State.FINISHED

    @property
    def aborted(self) -> bool:
        """The client went away before the last token."""
        return self.state is State.ABORTED

    @property
    def total_tokens(self) -> int:
        """Prompt and sampled tokens, to be computed after an admission."""
        return self.prompt_tokens + self.produced
