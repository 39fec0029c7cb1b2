"""Every planted fault is found, and nothing else: the confusion table.

The servers are the simulator's engine core. Faults of the server and of the load are planted in
what it runs with, those on the way and in the client in what the client records of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import planted
import pytest
from simulated import World

from agentload.recording.record import LoadgenSample, RunEvent
from analysis import diagnosis
from analysis.diagnosis import diagnose
from analysis.finding import Finding
from analysis.results import analyse


def without_history(share: int, world: World) -> World:
    """Every `share`-th turn was answered from an empty cache."""
    for i, r in enumerate(world.rows):
        if r.turn_index and i % share == 0:
            world.rows[i] = replace(r, cached_tokens=0)
    return world


def loses_the_tail(world: World) -> World:
    world.rows = [
        replace(r, cached_tokens=int(r.cached_tokens * 0.94)) if r.cached_tokens else r
        for r in world.rows
    ]
    return world


def shares_more_than_planned(world: World) -> World:
    world.rows = [
        replace(r, planned_prefix_tokens=r.prompt_tokens // 2)
        if r.turn_index and r.prompt_tokens
        else r
        for r in world.rows
    ]
    return world


def refused(error_class: str, world: World) -> World:
    """A gateway answers every tenth turn itself."""
    world.rows = [
        planted.failed(r.session_id, int(r.turn_index), error_class, start=r.call_start_s)
        if i % 10 == 0
        else r
        for i, r in enumerate(world.rows)
    ]
    return world


def buffered(world: World) -> World:
    """A proxy hands out each answer when it is whole."""
    for i, (row, trace) in enumerate(zip(world.rows, world.traces, strict=True)):
        assert row.last_chunk_s is not None
        ttft = row.last_chunk_s - row.call_start_s
        world.rows[i] = replace(
            row, first_chunk_s=row.last_chunk_s, ttft_s=ttft, tpot_s=None, flags="buffered_stream"
        )
        gaps = (100,) * len(trace.gaps_us)
        world.traces[i] = replace(trace, first_chunk_s=row.last_chunk_s, gaps_us=gaps)
    return world


def without_usage(world: World) -> World:
    world.rows = [replace(r, cached_tokens=None) for r in world.rows]
    world.scrape = [s for s in world.scrape if "prefix_cache" not in s.metric]
    return world


def starved_client(world: World) -> World:
    world.loadgen = [LoadgenSample(float(t), "w0", 0.99, 0.02, 0.4, 9, 5, 0, 0) for t in range(60)]
    return world


def missing_worker(world: World) -> World:
    world.events = [
        RunEvent(10.0, "worker_missing", None, "host_w1"),
        RunEvent(25.0, "worker_returned", None, "host_w1"),
    ]
    return world


def stalls_on_the_way(world: World) -> World:
    """A gap of a second in every answer, at the client only."""
    world.traces = [
        replace(t, gaps_us=(*t.gaps_us[:5], 1_000_000, *t.gaps_us[6:])) for t in world.traces
    ]
    return world


def as_it_is(world: World) -> World:
    return world


@dataclass(frozen=True, slots=True)
class Plant:
    """A fault, the finding it must give (none for a healthy run), and how it is planted."""

    name: str
    expected: str
    world: dict[str, Any] = field(default_factory=dict)
    seen: Callable[[World], World] = as_it_is
    manifest: dict[str, Any] = field(default_factory=dict)


LONG_WAITS = {"wait_s": 60.0, "stagger_s": 9.0, "budget": 512}
SMALL_MEMORY = {
    "num_blocks": 1500,
    "context": (600, 1000),
    "shared_tokens": 320,
    "output": (300, 600),
    "wait_s": 0.5,
    "append_tokens": 50,
}
MEANT = {"enable_chunked_prefill": True, "max_num_batched_tokens": 1024}

PLANTS = (
    Plant("healthy", ""),
    Plant("healthy, another seed", "", {"seed": 11}),
    Plant("healthy, other sizes", "",
          {"context": (20_000, 60_000), "sessions": 7, "turns_each": 20}),
    Plant("healthy, sparse", "", {"wait_s": 6.0, "sessions": 8, "turns_each": 16}),
    Plant("slow tokenizer", "tokenization-bound", {"frontend_s_per_token": 5e-6}),
    Plant("far away", "network-bound", {"frontend_base_s": 0.4}),
    Plant("gaps on the way", "network-bound", seen=stalls_on_the_way),
    Plant("two slots", "queue-bound", {"max_seqs": 2, "wait_s": 0.5}),
    Plant("slow prefill", "prefill-bound",
          {"prefill_s_per_token": 1 / 6000, "budget": 128, "stagger_s": 80.0}),
    Plant("cache off", "cache-off", {**LONG_WAITS, "prefix_cache": False}),
    Plant("date in front", "cache-dynamic-prefix", {**LONG_WAITS, "changing_front": True}),
    Plant("date in front, as planned", "cache-dynamic-prefix (expected)",
          {**LONG_WAITS, "changing_front": True, "planned_front": True}),
    Plant("too little memory for all", "cache-eviction",
          {"num_blocks": 40_000, "wait_s": 30.0, "stagger_s": 9.0, "budget": 512}),
    Plant("far too little memory", "cache-eviction",
          {"num_blocks": 33_000, "wait_s": 30.0, "stagger_s": 9.0, "budget": 512}),
    Plant("three turns evicted", "hits-below-plan",
          seen=lambda w: without_history(41, w)),
    Plant("a tail re-encoded", "hits-below-plan", seen=loses_the_tail),
    Plant("another's prompts", "hits-above-plan", seen=shares_more_than_planned),
    Plant("large blocks", "cache-block-too-large",
          {"context": (300, 500), "shared_tokens": 0, "block_size": 16_384, "num_blocks": 400}),
    Plant("not chunked", "chunking-off", {"chunked": False}),
    Plant("chunks of 32K", "chunk-too-large", {"budget": 32_768}),
    Plant("chunking does not act", "not-in-force", {"chunked": False},
          manifest={"settings": MEANT}),
    Plant("slow decode", "decode-bound", {"step_s": 0.08, "budget": 4096}),
    Plant("memory nearly full", "kv-cliff-near",
          {"num_blocks": 54_000, "output": (300, 500), "wait_s": 0.3}),
    Plant("memory too small for growth", "preemption-storm", SMALL_MEMORY),
    Plant("429 from a gateway", "rate-limited", seen=lambda w: refused("rate_limited", w)),
    Plant("streams cut", "many-errors", seen=lambda w: refused("stream_cut", w)),
    Plant("buffered", "buffering-proxy", seen=buffered),
    Plant("no cached tokens", "cache-unknown", seen=without_usage),
    Plant("starved client", "client-bound", seen=starved_client),
    Plant("worker missing", "workers-missing", seen=missing_worker),
    Plant("server restarted", "server-restarted",
          {"restart_at_s": 80.0, "wait_s": 30.0, "stagger_s": 20.0}),
    Plant("arm before filled the cache", "warm-start", {"repeats": 2}),
    Plant("healthy, two replicas", "", {"replicas": 2, "sessions": 10}),
    Plant("turns go round robin", "sessions-change-replica",
          {"replicas": 2, "route": "turn", "sessions": 10, **LONG_WAITS}),
    Plant("one replica has nearly all", "replicas-uneven",
          {"replicas": 2, "route": "first", "sessions": 8, "turns_each": 16}),
    Plant("short run", "too-few-samples", {"sessions": 4, "turns_each": 6}),
)  # fmt: skip


def shown(finding: Finding) -> str:
    expected = finding.severity == "expected"
    return f"{finding.name} (expected)" if expected else finding.name


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Finding]]:
    """What is found in each planted run."""
    base = tmp_path_factory.mktemp("planted")
    findings = {}
    for i, plant in enumerate(PLANTS):
        world = plant.seen(World(**plant.world).run())
        folder = world.write(base / str(i), "base", **plant.manifest)
        findings[plant.name] = diagnose(analyse([folder]))
    return findings


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_planted_fault_is_found_and_nothing_else(found: dict[str, list[Finding]]) -> None:
    """The confusion table: a row for each run, an X where the finding is the planted one, an F
    where it is a false one, and - where the planted one is missing.
    """
    names = sorted({p.expected for p in PLANTS if p.expected})
    columns = {name: i + 1 for i, name in enumerate(names)}
    lines, wrong = [f"{i:3} {name}" for name, i in columns.items()], []
    for plant in PLANTS:
        got = [shown(f) for f in found[plant.name]]
        marks = ["X" if n == plant.expected else "F" for n in got if n in names]
        cells = ["·"] * len(names)
        for name, mark in zip([n for n in got if n in names], marks, strict=True):
            cells[columns[name] - 1] = mark
        if plant.expected and plant.expected not in got:
            cells[columns[plant.expected] - 1] = "-"
        lines.append(f"{plant.name:28} {' '.join(cells)}")
        if got != ([plant.expected] if plant.expected else []):
            wrong.append((plant.name, [(f.name, f.evidence) for f in found[plant.name]]))
    print("\n".join(lines))
    assert wrong == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_finding_has_numbers_rows_and_the_next_thing_with_its_effect(
    found: dict[str, list[Finding]],
) -> None:
    for plant in PLANTS:
        for finding in found[plant.name]:
            told = (plant.name, finding)
            assert any(char.isdigit() for char in finding.evidence), told
            assert any(char.isdigit() for char in finding.effect) or finding.name in NO_SIZE, told
            assert len(finding.advice) > 20, told
            assert finding.rows, told
            assert min(finding.rows) > 1, told  # line 1 is the header
            assert "–" not in finding.evidence + finding.effect, told
            assert "nan" not in finding.evidence + finding.effect, told


NO_SIZE = ("cache-unknown",)  # tells what is not known; no time changes


def names_in_the_sources() -> set[str]:
    sources = Path(diagnosis.__file__).parent.glob("*.py")
    text = "".join(p.read_text(encoding="utf-8") for p in sources)
    return set(re.findall(r'^\s+"([a-z]+(?:-[a-z]+)+)",$', text, re.MULTILINE))


def test_every_finding_has_a_planted_fault() -> None:
    """Names stand in the sources as the first argument of a finding or of a reason."""
    planted_names = {plant.expected.split(" ")[0] for plant in PLANTS if plant.expected}
    assert names_in_the_sources() == planted_names


def test_what_follows_from_a_finding_names_findings_there_are() -> None:
    names = names_in_the_sources()
    assert set(diagnosis.CAUSES) <= names
    assert {cause for causes in diagnosis.CAUSES.values() for cause in causes} <= names


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_follows_from_another_finding_is_told_with_it(
    found: dict[str, list[Finding]],
) -> None:
    (storm,) = found["memory too small for growth"]
    assert "of the tokens that" in storm.evidence
    assert "is queue" in storm.evidence
