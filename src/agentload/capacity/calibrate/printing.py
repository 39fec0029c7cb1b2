"""The result of a calibration or a fit as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agentload.capacity.calibrate.held_out import Compared
from agentload.capacity.cost.estimate import Estimate
from agentload.sim.core import StepCost
from agentload.sim.profiles import DRAWN, CostFile

_UNITS = {
    "c0": (1e3, "ms a step"),
    "c1": (1e6, "us a prompt token"),
    "c2": (1e6, "us a sequence"),
    "c3": (1e9, "ns a context token"),
    "c4": (1e9, "ns a token squared"),
    "c5": (1e3, "ms a step, never overlapped"),
    "base_s": (1e3, "ms a request, API server"),
    "per_token_s": (1e6, "us a prompt token, API server"),
}
TELLING = 0.8  # correlations from here on are printed


def coefficient_lines(file: CostFile, found: Estimate) -> Iterator[str]:
    """Form, coefficients with intervals, shares, correlations, what is not modelled."""
    chi2 = ", ".join(f"{form} {value:.2f}" for form, value in found.chi2.items())
    yield f"step cost: {file.form} form (chi2 per observation: {chi2})"
    if min(found.chi2.values()) > 3:
        yield "  neither form explains the steps well; intervals are widened by sqrt(chi2)"
    yield f"  {'':<12}{'value':>9}  {'90 % interval':^21}  {'share':>6}  unit"
    for name in DRAWN:
        if name == "c5" and file.form == "linear":
            continue
        yield _line(name, file)
    told = {pair: r for pair, r in file.correlation.items() if abs(r) >= TELLING}
    if told:
        pairs = ", ".join(f"{pair} {r:+.2f}" for pair, r in told.items())
        yield f"  known only together (correlation): {pairs}"
    yield f"  condition number {found.condition:.0f}"
    errors = f"{file.step_discrepancy:.1%} of step times, {file.ttft_discrepancy:.1%} of TTFT"
    yield f"  the model's own error, to be added: {errors}"
    if file.not_measured:
        yield f"  prior only (no measurement narrowed it): {', '.join(file.not_measured)}"


def _line(name: str, file: CostFile) -> str:
    one = file.coefficient(name)
    scale, unit = _UNITS[name]
    low = one.value if one.low is None else one.low
    high = one.value if one.high is None else one.high
    share = file.step_share.get(name)
    told = f"{share:6.1%}" if share is not None else " " * 6
    mark = "  (prior only)" if one.provenance == "prior only" else ""
    interval = f"{low * scale:9.4g} ... {high * scale:<9.4g}"
    return f"  {name:<12}{one.value * scale:9.4g}  {interval:^23}  {told}  {unit}{mark}"


def in_force_lines(file: CostFile) -> Iterator[str]:
    """The settings found, and which are unknown."""
    found = file.in_force.model_dump()
    known = {name: value for name, value in found.items() if value is not None}
    yield "settings in force: " + (
        ", ".join(f"{name} {value}" for name, value in known.items()) or "none found"
    )
    unknown = [name for name, value in found.items() if value is None]
    if unknown:
        yield f"  not known: {', '.join(unknown)}"


def compared_lines(rows: Sequence[Compared]) -> Iterator[str]:
    """The held-out probe as a table."""
    yield f"  {'held out':<24}{'predicted':>12}{'measured':>12}{'error':>8}"
    for row in rows:
        scale, unit = (1.0, "") if "tokens/s" in row.name else (1e3, " ms")
        yield (
            f"  {row.name:<24}{row.predicted * scale:>9.1f}{unit:<3}"
            f"{row.measured * scale:>9.1f}{unit:<3}{row.error:>+8.1%}"
        )


def step_lines(file: CostFile, truth: StepCost) -> Iterator[str]:
    """Steps by a dry run's own cost against what the probes found; what plans rest on."""
    depth = file.depth_tokens or 1
    yield f"  {'dry run, ms a step':<32}{'true':>9}{'found':>9}{'error':>8}"
    for name, step in (
        ("one short stream", (0, 1, 100, 0.0)),
        (f"ten streams at {depth}", (0, 10, 10 * depth, 0.0)),
        (f"turn of 450 at {depth}", (450, 1, depth, 450.0 * depth)),
        ("chunk of 2048, cold", (2048, 1, 100, 2048 * 1024.0)),
    ):
        true, found = truth.step_s(*step), file.step_cost().step_s(*step)
        yield f"  {name:<32}{true * 1e3:>9.2f}{found * 1e3:>9.2f}{found / true - 1:>+8.1%}"


def truth_lines(file: CostFile, truth: Mapping[str, float]) -> Iterator[str]:
    """A dry run's own coefficients against what the probes found."""
    yield f"  {'dry run':<12}{'true':>9}  {'found':>9}  inside the interval"
    for name, true in truth.items():
        one = file.coefficient(name)
        scale, _ = _UNITS[name]
        inside = (one.low or 0) <= true <= (one.high or one.value)
        yield f"  {name:<12}{true * scale:9.4g}  {one.value * scale:9.4g}  {inside}"
