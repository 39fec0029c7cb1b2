"""What the owner of a run tells every process that loads in it."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, field
from typing import Any

from agentload.recording.record import RowsOn
from agentload.scenario.model import Scenario
from agentload.swarm.stages import StagePlan, Step

# The attribute of Locust's parsed options that carries it: these reach each worker with the order
# to start users, before the worker's own `test_start`. It holds no secret.
SPEC_ATTRIBUTE = "agentload_run"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One run, the same in all its processes. Nanoseconds are the owner's monotonic clock."""

    run_id: str
    run_salt: str
    scenario_json: str
    corpus_fingerprint: str
    trace_fingerprint: str | None  # of the session file; None without a trace
    steps: tuple[Step, ...]
    base_url: str
    model: str | None
    chars_per_token: float | dict[str, float]  # of the mix, or of each kind of content
    max_model_len: int | None
    run_start_ns: int
    wall_start_unix_s: float
    clock_identity: str | None
    ranks: dict[str, int]  # Locust's worker id -> place in the order users are dealt out
    stages_from_s: float | None  # when the warm-up was over; None while it goes on
    token_cuts: bool = False  # of the tokenizer of wire token_ids: see `Tokenizer`
    rows_on: RowsOn = "master"  # whose disk the rows stay on
    # Rows come over a port without authentication: only those that were told to load know this.
    rows_token: str = field(default_factory=lambda: secrets.token_hex(16))

    def scenario(self) -> Scenario:
        return Scenario.model_validate_json(self.scenario_json)

    @property
    def plan(self) -> StagePlan:
        return StagePlan(self.steps)

    def as_message(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> RunSpec:
        steps = tuple(Step(**step) for step in message["steps"])
        return cls(**{**message, "steps": steps})
