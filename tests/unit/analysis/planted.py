"""Run folders whose truth is known, written through the columns of `recording.record`."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Sequence
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
