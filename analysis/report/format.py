"""Numbers as people read them."""

from __future__ import annotations

from analysis.distribution import Distribution

NOTHING = "–"
FEW_MARK = "*"
FEW_NOTE = "* fewer than 10 samples are expected beyond this percentile"


def seconds(value: float | None) -> str:
    """Three significant digits in us, ms, s or min; a dash when not measured."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size >= 600:
        return f"{value / 60:.1f} min"
    if size >= 1:
        return f"{value:.2f} s" if size < 10 else f"{value:.1f} s"
    if size >= 0.001 or size == 0:
        return f"{value * 1e3:.0f} ms" if size >= 0.1 or size == 0 else f"{value * 1e3:.1f} ms"
    return f"{value * 1e6:.0f} µs"


def share(value: float | None) -> str:
    """A percentage with one digit after the point; a dash when not measured."""
    return NOTHING if value is None else f"{value * 100:.1f} %"


def number(value: float | None, digits: int = 3) -> str:
    """Significant digits, thousands apart; a dash when not measured."""
    if value is None:
        return NOTHING
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}"


def signed_seconds(value: float | None) -> str:
    if value is None:
        return NOTHING
    return ("+" if value > 0 else "−" if value < 0 else "") + seconds(abs(value))


def percentile(found: Distribution, name: str) -> str:
    """A percentile in seconds with its mark; the largest value where it has too few samples."""
    value: float | None = getattr(found, name)
    if value is not None:
        return seconds(value) + (FEW_MARK if name in found.few_samples else "")
    return NOTHING if found.max is None else f"max {seconds(found.max)}"


def counts(by_name: dict[str, int]) -> str:
    """`rate_limited 6, timeout_total 1`; empty without any."""
    return ", ".join(f"{name} {count}" for name, count in by_name.items())
