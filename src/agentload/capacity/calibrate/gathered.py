"""What a calibration may ask of a server, and what it has heard so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentload.capacity.calibrate.chunk_probes import Chunking
from agentload.capacity.calibrate.probes import Heard
from agentload.capacity.calibrate.step_probes import Stretch, observations
from agentload.capacity.cost.form import Observations


@dataclass(frozen=True, slots=True)
class Limits:
    """What the server allows; None where it does not tell."""

    max_model_len: int | None = None
    kv_tokens: int | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    token_budget: int | None = None  # given by the user
    threshold: int | None = None
    async_scheduling: bool | None = None


@dataclass(slots=True)
class Gathered:
    """What the probes have shown so far."""

    groups: list[list[Stretch]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    jitter: float = 0.0
    idle: list[tuple[Heard, int]] = field(default_factory=list)  # alone; uncached tokens
    beside: list[tuple[Heard, float, float]] = field(default_factory=list)  # start, usual gap
    cold: dict[int, tuple[Heard, Heard]] = field(default_factory=dict)
    chunking: Chunking | None = None
    caching: bool | None = None  # whether a repeated prompt was cheaper
    streams_together: int | None = None
    skipped: list[str] = field(default_factory=list)
    depth_tokens: int = 0
    seconds: float = 0.0

    def observations(self) -> Observations:
        """All stretches, a group for each probe."""
        return observations(self.groups, self.jitter)
