"""What the pages of the headline scenarios claim: the shipped experiments on a virtual clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentload.experiment.load import load
from agentload.experiment.plan import Experiment, flags_of
from agentload.experiment.scenarios import arm_scenarios
from agentload.scenario import Scenario
from agentload.workload.content import Corpus
from tests.sim.sessions import Outcome, play

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
MINUTES_S = 60.0

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus()


class Arms:
    """The arms of a shipped experiment, each to be played for a while."""

    def __init__(self, name: str, corpus: Corpus) -> None:
        path = EXPERIMENTS / f"{name}.yaml"
        self.plan: Experiment = load(path)
        self.scenarios: dict[str, Scenario] = arm_scenarios(self.plan, path.parent)
        self._corpus = corpus

    def play(self, name: str, seconds: float) -> Outcome:
        (arm,) = [arm for arm in self.plan.arms if arm.name == name]
        return play(self.scenarios[name], flags_of(self.plan, arm), self._corpus, seconds)


@pytest.mark.parametrize(
    ("arm", "low", "high"),
    [
        ("none", 0.97, 1.0),
        ("system-tail", 0.09, 0.18),  # 15K of 86K to 160K tokens
        ("tools-permuted", 0.0, 0.02),
        ("head", 0.0, 0.001),
    ],
)
def test_prefix_breaker_the_hit_ratio_of_each_arm_is_block_arithmetic(
    corpus: Corpus, arm: str, low: float, high: float
) -> None:
    outcome = Arms("prefix-breaker", corpus).play(arm, 10 * MINUTES_S)
    assert len(outcome.planned()) > 40
    assert outcome.hit_ratio() == pytest.approx(outcome.planned_hit_ratio(), abs=0.01)
    assert low <= outcome.hit_ratio() <= high


def test_pause_evict_the_hit_ratio_falls_where_kv_pressure_passes_one(corpus: Corpus) -> None:
    arms = Arms("pause-evict", corpus)
    lost: dict[float, float] = {}
    for arm, scenario in arms.scenarios.items():
        outcome = arms.play(arm, 60 * MINUTES_S)
        assert len(outcome.planned()) > 200
        pressure = outcome.kv_pressure(scenario.stages[0].users)
        lost[pressure] = outcome.planned_hit_ratio() - outcome.hit_ratio()
    below = [lost[pressure] for pressure in sorted(lost) if pressure < 0.9]
    above = [lost[pressure] for pressure in sorted(lost) if pressure > 1.1]
    assert len(below) >= 1
    assert len(above) >= 3
    assert max(below) < 0.001
    assert min(above) > 0.04
    assert above == sorted(above)
    assert max(above) > 0.3


def test_cold_interference_the_longest_gap_is_a_chunk_or_the_whole_prefill(
    corpus: Corpus,
) -> None:
    arms = Arms("cold-interference", corpus)
    chunked, whole = (arms.play(arm, 30 * MINUTES_S) for arm in ("chunked", "whole"))
    cost = chunked.replica.engine.cost

    def prefill_s(chunk: int, start: int) -> float:
        """A step with this chunk of one prompt, without its decoders."""
        return cost.c0 + cost.c1 * chunk + cost.c4 * chunk * (start + chunk / 2)

    colds = [r.request for r in whole.results if whole.replica.sent[r.request].turn_index == 0]
    assert len(colds) > 60
    longest_prompt = max(request.prompt_tokens for request in colds)
    assert 110_000 < longest_prompt < 130_000
    context = max(r.request.prompt_tokens for r in chunked.results)  # of the deepest chunk
    assert chunked.longest_gap_s() < 1.1 * prefill_s(8192, context - 8192)
    assert chunked.longest_gap_s() > 0.9 * prefill_s(8192, 64_000 - 8192)
    assert whole.longest_gap_s() > 0.9 * prefill_s(longest_prompt, 0)
    assert whole.longest_gap_s() > 8 * chunked.longest_gap_s()


def test_tokenization_share_grows_from_a_tenth_to_two_thirds_of_ttft(corpus: Corpus) -> None:
    outcome = Arms("tokenization-share", corpus).play("text", 5 * MINUTES_S)
    shares: dict[float, list[float]] = {}
    for result in outcome.results:
        request = result.request
        if outcome.replica.sent[request].turn_index > 0:
            hit = (request.cached_tokens or 0) / request.prompt_tokens
            frontend_s = result.engine_s - result.sent_s
            shares.setdefault(round(hit, 2), []).append(frontend_s / result.ttft_s)
    near = {
        wanted: [s for hit, found in shares.items() if abs(hit - wanted) <= 0.0101 for s in found]
        for wanted in (0.8, 0.9, 0.99)
    }
    assert all(len(found) > 10 for found in near.values())
    mean = {wanted: sum(found) / len(found) for wanted, found in near.items()}
    # TokTier (arXiv 2607.29678): from 10 % to 64 % as the hit ratio nears 0.99.
    assert mean[0.8] == pytest.approx(0.10, abs=0.02)
    assert mean[0.8] < mean[0.9] < mean[0.99]
    assert mean[0.99] == pytest.approx(0.64, abs=0.04)
