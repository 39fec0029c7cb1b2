"""Runs whose rows stay with their workers: the same as any other run once they are merged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from agentload.recording.merge_command import main as merge
from analysis.load import load_run
from tests.e2e.locust_process import Bench, RunFolder
from tests.e2e.test_locust_distributed import planned_turns

pytestmark = pytest.mark.slow

ON_WORKERS = ("--headless", "--record-on", "worker")
SHORT = ("-u", "4", "-r", "4", "-t", "3s")


def collected(bench: Bench, run: RunFolder) -> Path:
    """The shards, taken off the workers as if they were other machines."""
    there = bench.runs.parent / "collected"
    shutil.move(run.path / "shards", there)
    return there


def test_the_same_seed_gives_the_same_rows_recorded_on_either_side(bench: Bench) -> None:
    master, workers = bench.distributed(2, *ON_WORKERS, *SHORT, "--run-id", "kept")
    assert master.wait() == 0, master.output
    assert [worker.wait() for worker in workers] == [0, 0]
    (kept,) = bench.folders()
    manifest = kept.manifest
    assert manifest["verdict"]["level"] != "invalid", kept.reasons
    assert kept.rows() == kept.rows("chunks.csv") == []
    told = {w["worker_id"]: w["shard"] for w in manifest["workers"]}
    assert all(shard["complete"] for shard in told.values())
    turns = sum(shard["rows"]["turns.csv"] for shard in told.values())
    counts = manifest["counts"]
    assert counts["sent"] == counts["recorded"] == turns > 10
    assert counts["lost"] == 0
    assert not list(bench.spool.rglob("*.csv"))

    out = bench.runs.parent / "merged"
    shards = collected(bench, kept)
    (first, second) = sorted(shards.iterdir())
    assert merge([str(kept.path), str(first), "-o", str(out)]) == 3
    assert merge([str(kept.path), str(first), str(second), "-o", str(out)]) == 0
    merged = RunFolder(out)
    assert merged.manifest["counts"] == counts
    assert merged.manifest["verdict"] == manifest["verdict"]
    assert len(merged.rows()) == turns
    ids = {row["request_id"] for row in merged.rows()}
    assert {row["request_id"] for row in merged.rows("chunks.csv")} == ids
    assert {row["worker_id"] for row in merged.rows("loadgen.csv")} == {"w0", "w1"}
    assert {"stages_begin", "run_ends"} <= merged.events().keys()
    assert merged.rows("scrape.csv") == kept.rows("scrape.csv") != []
    assert len(load_run(out).turns) == turns

    master, _ = bench.distributed(2, "--headless", *SHORT, "--run-id", "ordinary")
    assert master.wait() == 0, master.output
    ordinary = bench.folders()[1]
    of_kept, of_ordinary = planned_turns(merged), planned_turns(ordinary)
    first_sessions = {f"s7-{user:06d}" for user in range(4)}
    assert first_sessions <= of_kept.keys() & of_ordinary.keys()
    for session in of_kept.keys() & of_ordinary.keys():
        both = min(len(of_kept[session]), len(of_ordinary[session]))
        assert of_kept[session][:both] == of_ordinary[session][:both]
        assert both > 1 or session not in first_sessions


def test_the_shard_of_a_killed_worker_is_merged_and_its_death_stays_named(bench: Bench) -> None:
    long = ("-u", "4", "-r", "4", "-t", "7s")
    master, workers = bench.distributed(2, *ON_WORKERS, *long)
    shards = bench.kept_shards(turns=5)
    workers[0].process.kill()
    assert master.wait() == 3, master.output
    run = bench.folder()
    (lost,) = [w for w in run.manifest["workers"] if w["lost_at_s"] is not None]
    assert not lost["shard"]["complete"]
    assert f"worker lost: {lost['worker_id']}" in run.reasons
    states = [json.loads((s / "shard.json").read_text(encoding="utf-8"))["state"] for s in shards]
    assert sorted(states) == ["complete", "running"]
    rows = {row["request_id"] for shard in shards for row in RunFolder(shard).rows()}
    out = bench.runs.parent / "merged"
    assert merge([str(run.path), "-o", str(out)]) == 0
    merged = RunFolder(out)
    assert {row["request_id"] for row in merged.rows()} == rows
    counts = merged.manifest["counts"]
    assert counts["recorded"] == len(rows) >= run.manifest["counts"]["recorded"]
    assert counts["lost"] == counts["sent"] - len(rows)
    assert (
        f"{lost['worker_id']} ({lost['client_id']}): it did not end with the run" in merged.reasons
    )
    assert merged.manifest["verdict"]["level"] == "invalid"


def test_rows_a_killed_worker_had_not_delivered_are_merged_into_an_ordinary_run(
    bench: Bench,
) -> None:
    """Master and worker die; the shards in the spool are all there is."""
    master, workers = bench.distributed(2, "--headless", "-u", "4", "-r", "4", "-t", "60s")
    run = bench.running_folder(rows=10)
    for locust in (master, *workers):
        locust.kill_group()
    shards = sorted(path.parent for path in bench.spool.rglob("shard.json"))
    assert len(shards) == 2
    rows = {row["request_id"] for shard in shards for row in RunFolder(shard).rows()}
    out = bench.runs.parent / "merged"
    assert merge([str(run.path), *map(str, shards), "-o", str(out)]) == 0
    merged = RunFolder(out)
    assert {row["request_id"] for row in merged.rows()} == rows
    assert len(merged.rows()) == len(rows) >= len(run.rows())
    assert merged.manifest["state"] == "interrupted"
    assert len(load_run(out).turns) == len(rows)
