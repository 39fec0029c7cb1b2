"""Draws follow the distributions they are named after."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from statistics import NormalDist
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from agentload.scenario.distributions import Distribution

ADAPTER: TypeAdapter[Any] = TypeAdapter(Distribution)
N = 20_000
KS_999 = 1.95 / math.sqrt(N)  # critical distance at 0.1 % of Kolmogorov's test


def draws(**settings: Any) -> list[float]:
    rng, dist = Random(11), ADAPTER.validate_python(settings)
    return sorted(dist.draw(rng) for _ in range(N))


def distance(sample: list[float], cdf: Callable[[float], float]) -> float:
    """Kolmogorov's distance of a sorted sample from a continuous distribution."""
    return max(max(abs((i + 1) / N - cdf(x)), abs(i / N - cdf(x))) for i, x in enumerate(sample))


def lognormal(median: float, sigma: float) -> Callable[[float], float]:
    return lambda x: NormalDist().cdf(math.log(x / median) / sigma)


def test_lognormal() -> None:
    sample = draws(dist="lognormal", median=1400, sigma=1.5)
    assert distance(sample, lognormal(1400, 1.5)) < KS_999


def test_bounds_carry_the_mass_beyond_them() -> None:
    sample = draws(dist="lognormal", median=1400, sigma=1.5, min=200, max=10_000)
    below, above = (
        NormalDist().cdf(math.log(1 / 7) / 1.5),
        NormalDist().cdf(-math.log(50 / 7) / 1.5),
    )
    assert sample.count(200) / N == pytest.approx(below, abs=0.01)
    assert sample.count(10_000) / N == pytest.approx(above, abs=0.01)
    assert (sample[0], sample[-1]) == (200, 10_000)
    assert sample[N // 2] == pytest.approx(1400, rel=0.05)


def test_uniform() -> None:
    sample = draws(dist="uniform", min=86_000, max=123_000)
    assert distance(sample, lambda x: (x - 86_000) / 37_000) < KS_999


def test_quantiles_are_met_with_straight_lines_between() -> None:
    sample = draws(dist="quantiles", p=[0, 0.5, 0.9, 1], values=[10, 100, 1000, 1000])

    def cdf(x: float) -> float:
        return 0.5 * (x - 10) / 90 if x < 100 else 0.5 + 0.4 * (x - 100) / 900

    assert distance([x for x in sample if x < 1000] + [1000] * sample.count(1000),
                    lambda x: 1.0 if x == 1000 else cdf(x)) < 0.1 + KS_999  # fmt: skip
    for p, value in ((0.25, 55), (0.5, 100), (0.7, 550)):
        assert sample[int(p * N)] == pytest.approx(value, rel=0.05)
    assert sample.count(1000) / N == pytest.approx(0.1, abs=0.01)


def test_choice() -> None:
    sample = draws(dist="choice", values=[1, 2, 3, 4], weights=[0.85, 0.1, 0.03, 0.02])
    assert sum(sample) / N == pytest.approx(1.22, abs=0.02)
    assert sample.count(2) / N == pytest.approx(0.10, abs=0.01)
    assert draws(dist="choice", values=[1, 2], weights=[0, 3])[0] == 2


def test_mixture() -> None:
    one = {"dist": "constant", "value": 1}
    rest = {"dist": "lognormal", "median": 7, "sigma": 1.3, "min": 1.5}
    sample = draws(dist="mixture", parts=[{"weight": 11, "of": one}, {"weight": 9, "of": rest}])
    assert sample.count(1) / N == pytest.approx(0.55, abs=0.015)
    above = sample[sample.count(1) :]
    assert above[len(above) // 2] == pytest.approx(7, rel=0.06)


@pytest.mark.parametrize(
    ("name", "published"),
    [  # the published quantiles, within what one lognormal can do
        ("tracelab_tool", {0.5: 0.3, 0.9: 13.6, 0.99: 216}),
        ("tracelab_human", {0.5: 86, 0.9: 1236}),
        ("kv_cache_tester_tool", {0.5: 8.7, 0.9: 73}),
    ],
)
def test_presets_have_the_published_quantiles(name: str, published: dict[float, float]) -> None:
    sample = draws(dist="preset", name=name, max=1e9)
    for p, value in published.items():
        assert sample[int(p * N)] == pytest.approx(value, rel=0.25)
    assert draws(dist="preset", name=name, max=5)[-1] == 5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dist": "lognormal", "median": 0, "sigma": 1}, "greater than 0"),
        ({"dist": "lognormal", "median": 1, "sigma": -1}, "greater than or equal to 0"),
        ({"dist": "uniform", "min": 2, "max": 1}, "min 2.0 is above max 1.0"),
        ({"dist": "quantiles", "p": [0, 1], "values": [1]}, "one each"),
        ({"dist": "quantiles", "p": [], "values": []}, "start at 0 and end at 1"),
        ({"dist": "quantiles", "p": [0.1, 1], "values": [1, 2]}, "start at 0 and end at 1"),
        ({"dist": "quantiles", "p": [0, 0.5, 0.5, 1], "values": [1, 2, 3, 4]}, "rise"),
        ({"dist": "quantiles", "p": [0, 1], "values": [2, 1]}, "must not fall"),
        ({"dist": "choice", "values": [1], "weights": [1, 2]}, "one each"),
        ({"dist": "choice", "values": [], "weights": []}, "sum above 0"),
        ({"dist": "choice", "values": [1, 2], "weights": [1, -1]}, "0 or more"),
        ({"dist": "mixture", "parts": []}, "at least one"),
        ({"dist": "preset", "name": "mine", "max": 5}, "tracelab_tool"),
    ],
)
def test_distributions_that_cannot_be(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ADAPTER.validate_python(settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"dist": "constant", "value": 3},
        {"dist": "uniform", "min": 1, "max": 2},
        {"dist": "lognormal", "median": 5, "sigma": 2, "min": 1, "max": 30},
        {"dist": "quantiles", "p": [0, 1], "values": [4, 9]},
        {"dist": "choice", "values": [5, 1], "weights": [1, 1]},
        {"dist": "preset", "name": "tracelab_tool", "max": 20},
        {"dist": "mixture", "parts": [{"weight": 1, "of": {"dist": "constant", "value": 8}}]},
    ],
)
def test_no_draw_leaves_the_stated_range(settings: dict[str, Any]) -> None:
    sample, dist = draws(**settings), ADAPTER.validate_python(settings)
    assert dist.lowest() <= sample[0] <= sample[-1] <= dist.highest()
