"""Run folders whose truth is known, written through the columns of `recording.record`."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentload.recording.record import (
    FILE_OF,
    MANIFEST_JSON,
    SCHEMA_VERSION,
    ChunkTrace,
    LoadgenSample,
    Row,
    RunEvent,
    ScrapeSample,
    TurnRecord,
    columns,
    csv_values,
)

RUN_ID = "planted-run"


def turn(session: str = "s0", index: int = 0, **given: Any) -> TurnRecord:
    """A successful turn at `start` (default 10 s) with a TTFT of 0.5 s, unless said otherwise."""
    start = given.pop("start", 10.0)
    ttft = given.pop("ttft", 0.5)
    decode = given.pop("decode", 2.0)
    first = None if ttft is None else start + ttft
    last = None if first is None else first + decode
    values: dict[str, Any] = {
        "run_id": RUN_ID,
        "worker_id": "w0",
        "session_id": session,
        "parent_session_id": None,
        "turn_index": index,
        "turn_class": "cold" if index == 0 else "tool",
        "request_id": f"{session}-{index}",
        "stage": "steady",
        "intended_start_s": start,
        "call_start_s": start,
        "send_start_s": start,
        "send_end_s": start + 0.001,
        "headers_s": start + 0.002,
        "first_chunk_s": first,
        "last_chunk_s": last,
        "end_s": start + 0.01 if last is None else last,
        "lag_s": 0.0,
        "ttft_s": ttft,
        "ttfo_s": ttft,
        "tpot_s": None,
        "itl_p50_s": None,
        "itl_p99_s": None,
        "itl_max_s": None,
        "jitter_s": None,
        "stall_count": None,
        "e2e_s": None if last is None else last - start,
        "prompt_tokens": 100_000,
        "cached_tokens": None,
        "planned_prompt_tokens": 100_000,
        "planned_prefix_tokens": 15_000,
        "output_tokens": 101,
        "reasoning_tokens": None,
        "output_chunks": 101,
        "first_chunk_tokens": 1,
        "token_source": "usage",
        "stamp_source": "kernel",
        "merged_reads": 0,
        "append_chars": 1400,
        "server_queue_s": None,
        "server_prefill_s": None,
        "server_decode_s": None,
        "frontend_s": None,
        "turns_in_flight": 1,
        "replica": None,
        "finish_reason": "length",
        "status": "success",
        "error_class": None,
        "http_status": 200,
        "retry_after_s": None,
        "attempt": 1,
        "flags": None,
        "error_text": None,
    }
    values |= given
    tokens = values["output_tokens"]
    if values["tpot_s"] is None and last is not None and tokens and tokens > 1:
        values["tpot_s"] = decode / (tokens - 1)
    return TurnRecord(**values)


def failed(session: str, index: int, error_class: str, **given: Any) -> TurnRecord:
    empty = {"ttft": None, "output_tokens": None, "prompt_tokens": None, "finish_reason": None}
    return turn(session, index, status="error", error_class=error_class, **(empty | given))


def trace(
    of: TurnRecord, gaps_us: Sequence[int], marks: str = "", tokens: Any = None
) -> ChunkTrace:
    assert of.first_chunk_s is not None
    return ChunkTrace(of.request_id, of.first_chunk_s, tuple(gaps_us), tokens, marks)


def manifest(**given: Any) -> dict[str, Any]:
    scenario = {
        "name": "planted",
        "seed": 1,
        "context_scale": 1.0,
        "stages": [{"name": "steady", "duration_s": 60.0, "users": 4, "measured": True}],
        "slos": {"cold": {"ttft_s": 10.0}, "tool": {"ttft_s": 2.0, "tpot_s": 0.05}},
        "stalls": {"times_median": 5.0, "min_s": 0.25},
    } | given.pop("scenario", {})
    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": RUN_ID,
        "scenario": scenario,
        "arm": {"name": "base", "settings": {}},
        "target": {"base_url": "http://127.0.0.1:8000/v1", "model": "planted-coder"},
        "stages": [],
        "libraries": {},
        "workers": [{"worker_id": "w0", "host": "h", "clock_offset_s": 0.0}],
        "wall_start_unix_s": 1_700_000_000.0,
        "counts": {"planned": 1, "sent": 1, "recorded": 1, "dropped": 0, "lost": 0},
        "verdict": {"level": "valid", "reasons": []},
        "state": "complete",
    } | given


def write_rows(folder: Path, kind: type, rows: Iterable[Row]) -> None:
    with (folder / FILE_OF[kind]).open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns(kind))
        writer.writerows(map(csv_values, rows))


def write_run(
    folder: Path,
    turns: Iterable[TurnRecord],
    traces: Iterable[ChunkTrace] = (),
    scrape: Iterable[ScrapeSample] = (),
    loadgen: Iterable[LoadgenSample] = (),
    events: Iterable[RunEvent] = (),
    **of_manifest: Any,
) -> Path:
    """Write a whole run folder; keys of the manifest can be replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(manifest(**of_manifest), indent=1)
    (folder / MANIFEST_JSON).write_text(text, encoding="utf-8")
    write_rows(folder, TurnRecord, turns)
    write_rows(folder, ChunkTrace, traces)
    write_rows(folder, ScrapeSample, scrape)
    write_rows(folder, LoadgenSample, loadgen)
    write_rows(folder, RunEvent, events)
    return folder


def gauge(time_s: float, metric: str, value: float, **labels: str) -> ScrapeSample:
    text = json.dumps({"engine": "0", **labels}, sort_keys=True)
    return ScrapeSample(time_s, "http://127.0.0.1:8000/metrics", metric, text, value)


@dataclass
class Server:
    """A small batch scheduler, one step after another: enough to plant queueing and stalls.

    A step costs `step_s` and `prefill_s_per_token` for each prompt token in it. Chunked, a step
    takes at most `budget` prompt tokens; not chunked, it takes one whole prompt.
    """

    chunked: bool = True
    prefix_cache: bool = True
    budget: int = 2048
    max_seqs: int = 64
    step_s: float = 0.015
    prefill_s_per_token: float = 1 / 20_000
    frontend_s_per_token: float = 2e-7
    frontend_base_s: float = 0.0
    keeps: Callable[[int, random.Random], int] = lambda prompt, _: prompt - 400
    kv_slots: float = 12.0  # running requests that fill the KV cache
    wait_s: float = 1.0
    sessions: int = 6
    turns_each: int = 6
    seed: int = 1
    context: tuple[int, int] = (60_000, 120_000)
    output: tuple[int, int] = (60, 200)
    stagger_s: float = 1.0
    now_s: float = 0.0
    rows: list[TurnRecord] = field(default_factory=list)
    traces: list[ChunkTrace] = field(default_factory=list)
    scrape: list[ScrapeSample] = field(default_factory=list)
    loadgen: list[LoadgenSample] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)

    def run(self) -> Server:
        rng = random.Random(self.seed)
        due = [
            (2.0 + i * self.stagger_s, i, 0, rng.randint(*self.context))
            for i in range(self.sessions)
        ]
        waiting: list[_Live] = []
        running: list[_Live] = []
        scraped = 0.0
        while due or waiting or running:
            if not waiting and not running:
                self.now_s = max(self.now_s, min(due)[0])
            for item in sorted(d for d in due if d[0] <= self.now_s):
                due.remove(item)
                waiting.append(self._arrive(item, rng))
            while waiting and len(running) < self.max_seqs:
                live = waiting.pop(0)
                live.scheduled_s = self.now_s
                running.append(live)
            for live in self._step(running):
                running.remove(live)
                self._record(live, due, rng)
            while scraped <= self.now_s:
                self._scrape(scraped, len(running), len(waiting))
                scraped += 1.0
        return self

    def _arrive(self, item: tuple[float, int, int, int], rng: random.Random) -> _Live:
        start, session, index, prompt = item
        cached = self.keeps(prompt, rng) if index and self.prefix_cache else 0
        return _Live(start, session, index, prompt, cached, rng.randint(*self.output))

    def _step(self, running: list[_Live]) -> list[_Live]:
        prompt_tokens, room = 0, self.budget
        for live in running:
            if live.left and (room > 0 if self.chunked else prompt_tokens == 0):
                take = min(live.left, room) if self.chunked else live.left
                live.left -= take
                room -= take
                prompt_tokens += take
        self.now_s += self.step_s + prompt_tokens * self.prefill_s_per_token
        done = []
        for live in running:
            if live.left == 0:
                live.stamps.append(self.now_s)
                if len(live.stamps) == live.output:
                    done.append(live)
        return done

    def _record(self, live: _Live, due: list, rng: random.Random) -> None:
        lead = live.prompt * self.frontend_s_per_token + self.frontend_base_s
        start = live.start_s - lead
        first, last = live.stamps[0], live.stamps[-1]
        row = turn(
            f"s{live.session}",
            live.index,
            start=start,
            ttft=first - start,
            decode=last - first,
            prompt_tokens=live.prompt,
            cached_tokens=live.cached,
            planned_prefix_tokens=live.prompt - 750 if live.index else 15_000,
            output_tokens=live.output,
            output_chunks=live.output,
            server_queue_s=live.scheduled_s - live.start_s,
            server_prefill_s=first - live.scheduled_s,
            server_decode_s=last - first,
            frontend_s=lead - 0.001,
        )
        self.rows.append(row)
        gaps = [round((b - a) * 1e6) for a, b in zip(live.stamps, live.stamps[1:], strict=False)]
        self.traces.append(trace(row, gaps))
        if live.index + 1 < self.turns_each:
            wait = self.wait_s * rng.uniform(0.5, 1.5)
            due.append((self.now_s + wait, live.session, live.index + 1, live.prompt + 750))

    def _scrape(self, at_s: float, running: int, waiting: int) -> None:
        self.scrape += [
            gauge(at_s, "vllm:num_requests_running", running),
            gauge(at_s, "vllm:num_requests_waiting", waiting),
            gauge(at_s, "vllm:kv_cache_usage_perc", min(1.0, running / self.kv_slots)),
        ]

    def write(self, folder: Path, arm: str, **of_manifest: Any) -> Path:
        settings = {
            "enable_chunked_prefill": self.chunked,
            "enable_prefix_caching": self.prefix_cache,
            "max_num_batched_tokens": self.budget if self.chunked else 131_072,
            "max_num_seqs": self.max_seqs,
        } | of_manifest.pop("settings", {})
        run_id = f"{folder.name}-{arm}"
        rows = [replace(row, run_id=run_id) for row in self.rows]
        return write_run(
            folder,
            rows,
            self.traces,
            self.scrape,
            self.loadgen,
            self.events,
            **(
                {
                    "run_id": run_id,
                    "arm": {"name": arm, "settings": settings},
                    "measured_from_s": 0.0,
                    "scenario": {"seed": self.seed},
                }
                | of_manifest
            ),
        )


@dataclass
class _Live:
    start_s: float
    session: int
    index: int
    prompt: int
    cached: int
    output: int
    scheduled_s: float = 0.0
    stamps: list[float] = field(default_factory=list)
    left: int = 0

    def __post_init__(self) -> None:
        self.left = self.prompt - self.cached
