"""Everything a report says, computed from run folders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from analysis.factors import Crossed, crossed, differing
from analysis.gpu import Gpu, gpu
from analysis.interference import Interference, StallCheck, interference, stall_check
from analysis.measured import CLASSES, Measured, measure
from analysis.metrics import ALL, LATER, Arm, ClassFigures, arms_of, class_figures
from analysis.pressure import Pressure, pressure
from analysis.replicas import Replicas, replicas
from analysis.sessions import SessionFigures, session_figures
from analysis.starts import Starts, starts
from analysis.statistics import STATISTICS, Effect, Paired, contrast, pair
from analysis.waterfall import (
    HitRatioBin,
    IdleBin,
    Line,
    Waterfall,
    by_hit_ratio,
    by_idle_time,
    frontend_line,
    server_frontend_s,
    waterfalls,
    window_waterfall,
)

GROUPS = {"cold": ("cold",), LATER: tuple(c for c in CLASSES if c != "cold")}


@dataclass(frozen=True, slots=True)
class ArmResults:
    """One arm. Interference and stall checks are per run, in the order of the arm's runs."""

    arm: Arm
    classes: tuple[ClassFigures, ...]
    sessions: SessionFigures
    waterfalls: tuple[Waterfall, ...]
    server_frontend_s: float | None
    by_hit_ratio: tuple[HitRatioBin, ...]
    by_idle_time: tuple[IdleBin, ...]
    frontend_line: Line | None
    interference: tuple[Interference | None, ...]
    stall_checks: tuple[StallCheck | None, ...]
    pressure: tuple[Pressure, ...]
    gpu: tuple[Gpu | None, ...]
    replicas: tuple[Replicas | None, ...]
    starts: Starts | None

    def of_class(self, name: str) -> ClassFigures | None:
        return next((row for row in self.classes if row.turn_class == name), None)

    @property
    def later(self) -> ClassFigures | None:
        """All classes but cold: T2+, or the one class there is beside cold."""
        rest = [r for r in self.classes if r.turn_class not in ("cold", ALL, LATER)]
        return self.of_class(LATER) or (rest[0] if len(rest) == 1 else None)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Several arms side by side on the turns that all of them have."""

    base: str
    differences: tuple[Effect, ...]
    crossed: Crossed | None
    factorial: tuple[Effect, ...]
    differing: dict[str, dict[str, str]]
    paired_turns: int
    paired_sessions: int


@dataclass(frozen=True, slots=True)
class Results:
    arms: tuple[ArmResults, ...]
    comparison: Comparison | None

    @property
    def runs(self) -> list[Measured]:
        return [run for arm in self.arms for run in arm.arm.runs]

    @property
    def has_data(self) -> bool:
        return any(row.successes for arm in self.arms for row in arm.classes)


def analyse(
    folders: Sequence[Path], *, base: str | None = None, keep_good_rows: bool = False
) -> Results:
    """Load and compute.

    `base` names the arm the others are compared with; default: in a 2 x 2 the arm with both
    settings on, else the first.

    `BadInputError` for a folder that cannot be read, ValueError for a `base` that is no arm.
    """
    arms = arms_of([measure(folder, keep_good_rows=keep_good_rows) for folder in folders])
    names = [arm.name for arm in arms]
    if base is not None and base not in names:
        raise ValueError(f"no arm {base!r}; there are: {', '.join(names)}")
    results = tuple(arm_results(arm) for arm in arms)
    comparison = compare_arms(arms, base) if len(arms) > 1 else None
    return Results(results, comparison)


def arm_results(arm: Arm) -> ArmResults:
    turns = arm.turns()
    good = turns[turns["counted"].to_numpy()]
    cold = (good["turn_class"] == "cold").to_numpy()
    falls = [*waterfalls(good[cold], "cold"), *waterfalls(good[~cold], LATER)]
    scrape = arm.runs[0].scrape if len(arm.runs) == 1 else None
    if not falls and scrape is not None:
        fall = window_waterfall(good, scrape, "all turns")
        falls = [fall] if fall else []
    tokens = good.groupby(["run", "session_id"], observed=True)["prompt_tokens"].max().mean()
    per_session = float(tokens) if tokens == tokens else None
    return ArmResults(
        arm=arm,
        classes=tuple(class_figures(arm, turns)),
        sessions=session_figures(turns),
        waterfalls=tuple(falls),
        server_frontend_s=server_frontend_s(scrape) if scrape is not None else None,
        by_hit_ratio=tuple(by_hit_ratio(good)),
        by_idle_time=tuple(by_idle_time(good)),
        frontend_line=frontend_line(good),
        interference=tuple(interference(run) for run in arm.runs),
        stall_checks=tuple(stall_check(run) for run in arm.runs),
        pressure=tuple(
            pressure(run.scrape, {**run.run.manifest.target, **arm.settings}, per_session)
            for run in arm.runs
        ),
        gpu=tuple(gpu(run.scrape) for run in arm.runs),
        replicas=tuple(replicas(run) for run in arm.runs),
        starts=starts(arm),
    )


def compare_arms(arms: Sequence[Arm], base: str | None = None) -> Comparison:
    """Every statistic of every other arm minus the base's, and the 2 x 2 where there is one."""
    paired = pair(arms)
    names = [arm.name for arm in arms]
    square = crossed(arms)
    if base is None:
        both_on = square.first.high_arms & square.second.high_arms if square else set(names[:1])
        base = next(iter(both_on))
    factorial = _factorial(paired, square, names) if square else ()
    return Comparison(
        base=base,
        differences=_differences(paired, names, base),
        crossed=square,
        factorial=factorial,
        differing=differing(arms),
        paired_turns=len(paired.session),
        paired_sessions=paired.sessions,
    )


def _differences(paired: Paired, names: Sequence[str], base: str) -> tuple[Effect, ...]:
    found = (
        contrast(paired, s, {n: 1.0, base: -1.0}, n, base, classes, group)
        for n in names
        if n != base
        for group, classes in GROUPS.items()
        for s in STATISTICS
    )
    return tuple(effect for effect in found if effect is not None)


def _factorial(paired: Paired, square: Crossed, names: Sequence[str]) -> tuple[Effect, ...]:
    low = next(n for n in names if n not in square.first.high_arms | square.second.high_arms)
    contrasts = square.contrasts(names)
    bases = {
        name: low if low in factors else min(factors, key=lambda arm: factors[arm])
        for name, factors in contrasts.items()
    }
    found = (
        contrast(paired, s, factors, name, bases[name], classes, group)
        for group, classes in GROUPS.items()
        for s in STATISTICS
        for name, factors in contrasts.items()
    )
    return tuple(effect for effect in found if effect is not None)
