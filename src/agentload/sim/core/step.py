"""What the engine executes: batches, the spans of time they take, the totals."""

import math
from dataclasses import dataclass, field

from agentload.sim.core.cost import StepCost
from agentload.sim.core.request import Request


@dataclass(slots=True)
class Batch:
    """What one pass decided: chunks are (request, tokens, start); every decoder takes a step."""

    chunks: list[tuple[Request, int, int]] = field(default_factory=list)
    decodes: int = 0
    context: int = 0
    preempted: bool = False

    @property
    def empty(self) -> bool:
        return not self.chunks and not self.decodes


@dataclass(slots=True)
class Counters:
    """Totals since the engine was made; tokens unless the name says otherwise."""

    steps: int = 0
    busy_s: float = 0.0
    prefill_computed: int = 0  # prompt tokens computed, recomputation after preemption included
    prompt_admitted: int = 0  # prompt tokens of requests admitted for the first time
    generated: int = 0
    prefix_queries: int = 0  # tokens looked up, first admissions only, as vLLM counts
    prefix_hits: int = 0
    preemptions: int = 0
    finished_requests: int = 0
    aborted_requests: int = 0


@dataclass(slots=True)
class Span:
    """Steps under way: a batch repeated `steps` times, the i-th taking first_s + i * growth_s."""

    batch: Batch
    start_s: float
    first_s: float
    growth_s: float
    end_s: float
    steps: int = 1

    def set_steps(self, steps: int) -> None:
        """Repeat the batch this often."""
        self.steps = steps
        self.end_s = self.boundary_s(steps)

    def boundary_s(self, steps: int) -> float:
        """When `steps` of them have ended."""
        return self.start_s + steps * self.first_s + self.growth_s * (steps * (steps - 1) / 2)

    @classmethod
    def of(cls, batch: Batch, start_s: float, cost: StepCost) -> "Span":
        """One step of a batch; a one-token chunk costs what a decode costs."""
        prefill, decodes, context, attention = 0, batch.decodes, batch.context, 0.0
        for _, tokens, start in batch.chunks:
            if tokens == 1:
                decodes += 1
                context += start + 1
            else:
                prefill += tokens
                attention += tokens * (start + 0.5 * tokens)
        first_s = cost.step_s(prefill, decodes, context, attention)
        return cls(batch, start_s, first_s, cost.growth_s(batch.decodes), start_s + first_s)

    def steps_before(self, at_s: float) -> int:
        """The least number of steps that end at or after `at_s`."""
        wait_s = at_s - self.start_s
        if wait_s <= 0:
            return 0
        if self.growth_s > 0:
            half = self.first_s - self.growth_s / 2
            root = math.sqrt(half * half + 2 * self.growth_s * wait_s)
            steps = max(0, math.floor((root - half) / self.growth_s))
        else:
            steps = math.floor(wait_s / self.first_s)
        while steps and self.boundary_s(steps - 1) >= at_s:
            steps -= 1
        while self.boundary_s(steps) < at_s:
            steps += 1
        return steps
