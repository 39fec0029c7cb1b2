"""The live figures as text for a terminal, and as one line for a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentload.live.snapshot import ALL, LATER, ClassFigures, Light, Snapshot
from agentload.swarm.web.tab import duration, share

Line = tuple[str, str]  # text, style of rich

WIDTH = 79  # the last column stays free: some terminals wrap there
_NONE = "–"
_STYLES: dict[Light, str] = {"good": "green", "warn": "yellow", "bad": "red", "unknown": ""}
_HEAD = ("turns", "ended", "errors", "TTFT P50", "P99", "ITL P50", "P99", "hits", "tok/s")
_SIZES = (8, 7, 7, 9, 8, 8, 8, 7, 8)
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60


def block(s: Snapshot, width: int = WIDTH) -> list[Line]:
    """Lines no longer than `width`, each with its style."""
    lines = [
        (_head(s), "bold"),
        (_cells(_HEAD), "dim"),
        *((_cells(_row(c)), "red" if c.errors else "") for c in s.classes),
        (_server(s), ""),
        (_load(s), _STYLES[s.load.light]),
        *((f"  {reason}", _STYLES[s.load.light]) for reason in s.load.reasons),
    ]
    return [
        (text if len(text) <= width else text[: width - 1] + "…", style) for text, style in lines
    ]


def plain_line(s: Snapshot) -> str:
    """The same in one line: times are of all classes but cold where there are several."""
    shown = s.figures(LATER) or s.figures(ALL)
    parts = [_head(s)]
    if shown is not None:
        every = s.figures(ALL) or shown
        parts += [
            f"{every.turns} turns",
            f"{every.errors} errors",
            f"{shown.turn_class} TTFT P50 {duration(shown.ttft.p50_s)}"
            f" P99 {duration(shown.ttft.p99_s)}",
            f"ITL P50 {duration(shown.itl.p50_s)} P99 {duration(shown.itl.p99_s)}",
        ]
    return ", ".join([*parts, _server(s), _load(s)])


def clock_time(seconds: float) -> str:
    """12:34, 1:02:03, or 2d 01:02:03."""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, _DAY_S)
    hours, rest = divmod(rest, _HOUR_S)
    minutes, rest = divmod(rest, _MINUTE_S)
    text = f"{minutes:02}:{rest:02}"
    if days:
        return f"{days}d {hours:02}:{text}"
    return f"{hours}:{text}" if hours else text


def _head(s: Snapshot) -> str:
    stage = f" ({s.stage})" if s.stage and s.stage != s.state else ""
    parts = [f"{s.arm}: {s.state.replace('_', '-')}{stage} {clock_time(s.now_s)}"]
    if s.eta_s is not None:
        parts.append(f"left {clock_time(s.eta_s)}")
    return ", ".join([*parts, f"users {s.users}/{s.target_users}", f"{s.in_flight} in flight"])


def _row(c: ClassFigures) -> tuple[str, ...]:
    rate = _NONE if c.output_tokens_per_s is None else f"{c.output_tokens_per_s:.1f}"
    return (
        *(c.turn_class, str(c.turns), str(c.errors)),
        *(duration(c.ttft.p50_s), duration(c.ttft.p99_s)),
        *(duration(c.itl.p50_s), duration(c.itl.p99_s)),
        *(share(c.cache_hit_ratio), rate),
    )


def _cells(texts: Sequence[str]) -> str:
    first, *rest = zip(texts, _SIZES, strict=True)
    return first[0].ljust(first[1]) + " ".join(("", *(t.rjust(n) for t, n in rest)))[1:]


def _server(s: Snapshot) -> str:
    return "server: " + (", ".join(_server_parts(s)) or "nothing scraped")


def _server_parts(s: Snapshot) -> Iterator[str]:
    server = s.server
    if server.running is not None:
        yield f"{server.running:.0f} running"
    if server.waiting is not None:
        yield f"{server.waiting:.0f} waiting"
    if server.kv_usage is not None:
        yield f"KV {server.kv_usage:.0%}"
    if server.prefix_hit_ratio is not None:
        yield f"hits {server.prefix_hit_ratio:.1%}"
    if server.preemptions:
        yield f"{server.preemptions:.0f} preemptions"


def _load(s: Snapshot) -> str:
    return "load: " + ", ".join(_load_parts(s))


def _load_parts(s: Snapshot) -> Iterator[str]:
    load = s.load
    yield load.level or "verdict unknown"
    if load.loop_lag_p99_s is not None:
        yield f"loop lag P99 {duration(load.loop_lag_p99_s)}"
    if load.cpu_share is not None:
        yield f"CPU {load.cpu_share:.0%}"
    if load.workers:
        yield f"{load.workers - load.workers_missing} of {load.workers} workers"
    every = s.figures(ALL)
    if every is not None and every.slo_share is not None:
        yield f"SLO {every.slo_share:.1%}"
