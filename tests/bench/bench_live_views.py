"""What the views of the live figures cost beside the page: terminal and Prometheus.

    python tests/bench/bench_live_views.py [--rounds 300]

CPU time of one drawing of the block (once a second), of the same as a table of rich, of the plain
line (every ten seconds), of a page for Prometheus (each scrape), and of a span's attributes. No
other greenlet runs meanwhile, so each is also a delay; of the page, only its longest part.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from agentload.live.openmetrics import exposition, parts
from agentload.live.snapshot import ClassFigures, LatencyFigures, LoadFigures, Point, Snapshot
from agentload.recording.record import TurnRecord
from agentload.swarm.live.console import block, plain_line
from agentload.swarm.live.terminal import block_text
from agentload.swarm.spans import row_attributes

CLASSES = ("cold", "tool", "user", "child", "rebuild", "T2+", "all")


def full() -> Snapshot:
    """A snapshot in which everything was measured."""
    latency = LatencyFigures(1000, 0.1, 0.2, 0.3, 0.4, 100.0)
    times = dict.fromkeys(("ttft", "itl", "jitter", "e2e", "tpot"), latency)
    shown: dict[str, Any] = {"cache_hit_ratio": 0.9, "slo_share": 0.9, "slo_judged": 9, "stalls": 1}
    errors = {"timeout_read": 2, "http_503": 1}
    classes = tuple(
        ClassFigures(name, "base", 9, errors_by_class=errors, prompt_tokens=9, **times, **shown)
        for name in CLASSES
    )
    load = LoadFigures("good", "valid", (), 0.001, 0.2, 100)
    return Snapshot(
        "run", "/runs/run", "base", "demo", "model", "running", 60.0, "high", 50.0, 30.0, 90.0,
        64, 64, 12, 900, load, classes, history=(Point(60.0, 64, 12, 0.1, 0.2, 0.3),),
    )  # fmt: skip


def table() -> Table:
    found = Table(box=None)
    for name in ("turns", "ended", "errors", "P50", "P99", "P50", "P99", "hits", "tok/s"):
        found.add_column(name, justify="right")
    for name in CLASSES:
        found.add_row(name, *["123 ms"] * 8)
    return found


def row() -> TurnRecord:
    values: dict[str, Any] = {f.name: 1.0 for f in fields(TurnRecord)}
    return TurnRecord(**values)


def us_each(work: Callable[[], object], rounds: int) -> float:
    work()
    began_s = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - began_s) / rounds * 1e6


def parts_us(snapshot: Snapshot) -> list[float]:
    """Of each part of the page for Prometheus, the least of twenty; others run in between."""
    found: list[list[float]] = []
    for _ in range(20):
        times, before = [], time.process_time()
        for _part in parts(snapshot):
            now = time.process_time()
            times.append((now - before) * 1e6)
            before = now
        found.append(times)
    return [min(each) for each in zip(*found, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    rounds = parser.parse_args().rounds
    snapshot, one = full(), row()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(file=nowhere, force_terminal=True, width=80, height=40, highlight=False)
        with Live(console=console, auto_refresh=False, redirect_stdout=False) as live:
            costs = {
                "block, text only": us_each(lambda: block(snapshot), rounds),
                "block, drawn": us_each(
                    lambda: live.update(block_text(snapshot, 79), refresh=True), rounds
                ),
                "a table of rich, drawn": us_each(
                    lambda: live.update(table(), refresh=True), rounds // 10
                ),
                "plain line": us_each(lambda: plain_line(snapshot), rounds),
                "page for Prometheus": us_each(lambda: exposition(snapshot), rounds),
                "attributes of a span": us_each(lambda: row_attributes(one), rounds),
            }
    for name, cost_us in costs.items():
        print(f"{name:24} {cost_us:10.0f} us")
    longest_us = max(parts_us(snapshot))
    print(f"{'its longest part':24} {longest_us:10.0f} us")
    size = len(exposition(snapshot))
    print(f"{'page for Prometheus':24} {size / 1e3:10.1f} KB")


if __name__ == "__main__":
    main()
