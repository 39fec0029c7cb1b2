"""Whether the turns of a simulation meet the limits of their class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentload.capacity.plan.fleet import Played, SeenTurn
from agentload.scenario.running import Slo

LIMITS = {"ttft_s": "TTFT", "tpot_s": "TPOT", "itl_p99_s": "ITL P99", "e2e_s": "E2E"}


class SloError(ValueError):
    """A limit that cannot be planned for; the text says which, and what is allowed."""


@dataclass(frozen=True, slots=True)
class Target:
    """Limits by turn class, and what share (0..1) of a class's turns has to meet all of them."""

    slos: Mapping[str, Slo]
    share: float = 0.99

    def __post_init__(self) -> None:
        limited = [slo for slo in self.slos.values() if any(getattr(slo, k) for k in LIMITS)]
        if not limited:
            raise SloError(
                "no limit to plan for: give the scenario a section slos, or --slo tool.ttft_s=2"
            )
        if not 0 < self.share < 1:
            raise SloError(f"share {self.share}: allowed is above 0 and below 1")

    def good_shares(self, played: Played) -> dict[str, float]:
        """Of the classes that have limits and turns: the share of turns that meet them.

        A limit on the ITL P99 of a turn is held against the pooled gaps of all turns: the model
        counts gaps by engine, not by turn.
        """
        shares = {}
        for name, slo in self.slos.items():
            turns = played.of_class(name)
            if turns:
                gaps_fit = slo.itl_p99_s is None or _within(
                    played.itl.quantile(0.99), slo.itl_p99_s
                )
                good = sum(_good(turn, slo) for turn in turns) if gaps_fit else 0
                shares[name] = good / len(turns)
        return shares

    def met(self, played: Played) -> bool:
        """Every class has its share of good turns; of several turns one may always be bad."""
        for name, share in self.good_shares(played).items():
            turns = len(played.of_class(name))
            one_bad = 1 - 1 / turns if turns > 1 else 1.0
            if share < min(self.share, one_bad):
                return False
        return True


def _good(turn: SeenTurn, slo: Slo) -> bool:
    if turn.e2e_s is None and (slo.e2e_s or slo.tpot_s):
        return False  # it never ended
    return (
        _within(turn.ttft_s, slo.ttft_s)
        and _within(turn.tpot_s, slo.tpot_s)
        and _within(turn.e2e_s, slo.e2e_s)
    )


def _within(value: float | None, limit: float | None) -> bool:
    return limit is None or value is None or value <= limit


def in_words(slo: Slo) -> str:
    """The limits of a class, as "TTFT 2 s, TPOT 0.05 s"."""
    given = {name: getattr(slo, key) for key, name in LIMITS.items()}
    return ", ".join(f"{name} {limit:g} s" for name, limit in given.items() if limit is not None)


def parse_slos(texts: Sequence[str], slos: Mapping[str, Slo]) -> dict[str, Slo]:
    """Limits with `CLASS.LIMIT=SECONDS` texts put over them. Raises SloError with all faults."""
    limits = {name: slo.model_dump(exclude_none=True) for name, slo in slos.items()}
    faults = []
    for text in texts:
        name, _, value = text.partition("=")
        turn_class, _, limit = name.partition(".")
        try:
            seconds = float(value)
        except ValueError:
            seconds = 0.0
        if turn_class not in CLASSES or limit not in LIMITS or not 0 < seconds < 1e6:
            faults.append(
                f"--slo {text}: allowed is CLASS.LIMIT=SECONDS with CLASS of"
                f" {', '.join(CLASSES)}, LIMIT of {', '.join(LIMITS)}, SECONDS above 0"
            )
            continue
        limits.setdefault(turn_class, {})[limit] = seconds
    if faults:
        raise SloError("\n".join(faults))
    return {name: Slo(**given) for name, given in limits.items()}


CLASSES = ("cold", "tool", "user", "child", "rebuild")
