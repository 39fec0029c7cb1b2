"""Which settings differ between arms, and what each of two crossed settings does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from analysis.metrics import Arm
from analysis.pressure import switch_setting

# A setting that was meant comes before one that moves with it (chunked prefill raises the budget).
MEANT = ("enable_chunked_prefill", "enable_prefix_caching")
# Found on a server, different from start to start, no cause of anything.
INCIDENTAL = frozenset({"num_gpu_blocks", "kv_cache_size_tokens", "num_cpu_blocks", "engine"})


@dataclass(frozen=True, slots=True)
class Factor:
    """A setting with two levels over the arms. `along` are other settings that moved with it."""

    name: str
    low: str
    high: str
    high_arms: frozenset[str]
    along: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Crossed:
    """Four arms in which two factors are crossed, with the signs of each contrast by arm."""

    first: Factor
    second: Factor

    def contrasts(self, arms: Sequence[str]) -> dict[str, dict[str, float]]:
        """Factors by arm of both main effects, of each factor's effect at each level of the other
        one, and of the interaction: how much an effect grows when the other factor goes high.
        """
        a, b = self.first, self.second
        found = {f.name: {arm: 0.5 if arm in f.high_arms else -0.5 for arm in arms} for f in (a, b)}
        for factor, other in ((a, b), (b, a)):
            for level, at_high in ((other.low, False), (other.high, True)):
                found[at_level(factor, other, level)] = {
                    arm: 1.0 if arm in factor.high_arms else -1.0
                    for arm in arms
                    if (arm in other.high_arms) == at_high
                }
        sign = {arm: (arm in a.high_arms) == (arm in b.high_arms) for arm in arms}
        found["interaction"] = {arm: 1.0 if same else -1.0 for arm, same in sign.items()}
        return found


def at_level(factor: Factor, other: Factor, level: str) -> str:
    """The name of a factor's effect at one level of the other factor."""
    return f"{factor.name} with {other.name} {level}"


def differing(arms: Sequence[Arm]) -> dict[str, dict[str, str]]:
    """Settings that are not the same in all arms: name -> arm -> value as text."""
    names = sorted({_plain(name) for arm in arms for name in arm.settings} - INCIDENTAL)
    found = {}
    for name in names:
        values = {arm.name: _value(arm, name) for arm in arms}
        if len(set(values.values())) > 1:
            found[name] = values
    return found


def crossed(arms: Sequence[Arm]) -> Crossed | None:
    """The two factors of four arms; None when the settings make no 2 x 2."""
    if len(arms) != 4:
        return None
    groups: dict[frozenset[frozenset[str]], list[str]] = {}
    values = differing(arms)
    for name, by_arm in values.items():
        levels = sorted(set(by_arm.values()))
        sides = frozenset(frozenset(a for a in by_arm if by_arm[a] == v) for v in levels)
        groups.setdefault(sides, []).append(name)
    halves = [g for g in groups if len(g) == 2 and all(len(side) == 2 for side in g)]
    if len(halves) != 2 or len(groups) != 2:
        return None
    first, second = (_factor(groups[half], values) for half in halves)
    if first.name == MEANT[1]:
        first, second = second, first
    return Crossed(first, second)


def _factor(names: list[str], values: dict[str, dict[str, str]]) -> Factor:
    name = next((n for n in MEANT if n in names), names[0])
    by_arm = values[name]
    low, high = sorted(set(by_arm.values()))  # "off" < "on"
    high_arms = frozenset(arm for arm, value in by_arm.items() if value == high)
    return Factor(name, low, high, high_arms, tuple(n for n in names if n != name))


def _plain(name: str) -> str:
    return name.replace("-", "_")


def _value(arm: Arm, name: str) -> str:
    switch = switch_setting(arm.settings, name) if name.startswith("enable") else None
    if switch is not None:
        return "on" if switch else "off"
    return str(arm.settings.get(name, arm.settings.get(name.replace("_", "-"), "not known")))
