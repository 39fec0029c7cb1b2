"""What it takes to merge and to analyse the shards of a simulated fleet of workers.

python tests/bench/bench_shards.py [--shards 100] [--turns 500] [--gaps 300]

Writes the shards as workers would have left them, runs `agentload merge` and `agentload report` as
processes of their own and prints their time, their largest memory and the size of the files.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from agentload.recording.manifest import (
    Judgement,
    Manifest,
    ShardEntry,
    WorkerEntry,
    write_manifest,
)
from agentload.recording.record import LoadgenSample, RunEvent, TurnRecord
from agentload.recording.recorder import SHARD_ROWS, Recorder, create_run_folder
from agentload.recording.shard import Shard, sealed, write_shard
from tests.e2e.simulated_workers import turn_template

RUN, SALT, SCENARIO = "fleet", "ab12", "5" * 64
SECONDS_PER_TURN = 15.0  # of one session: its stream and its wait


@dataclass
class Spent:
    name: str
    wall_s: float
    cpu_s: float
    rss_mb: float


def write_turns(folder: Path, worker: int, turns: int, gaps: int) -> None:
    recorder = Recorder(folder, SHARD_ROWS)
    turn, trace = turn_template(RUN, f"w{worker}", gaps)
    fields = turn.decode().rstrip("\n").split(",")
    places = [i for i, f in enumerate(TurnRecord.__dataclass_fields__) if f.endswith("_s")][:8]
    tail = trace[trace.index(b",", 33) :]
    at = fields.copy()
    for number in range(turns):
        from_s = worker % 100 / 100 + number * SECONDS_PER_TURN / 20
        request = f"{worker:08x}{number:024x}"
        at[2], at[4], at[6] = f"s-{worker:03d}{number % 20:03d}", str(number // 20), request
        for i in places:
            at[i] = f"{float(fields[i]) - 10.0 + from_s:.6f}"
        first = at[13].encode()
        recorder.append("chunks.csv", request.encode() + b"," + first + tail, 1)
        recorder.append("turns.csv", (",".join(at) + "\n").encode(), 1)
        recorder.record(LoadgenSample(from_s, f"w{worker}", 0.2, 0.001, 0.002, 20, 20, 0, 0))
    recorder.record(RunEvent(0.0, "tick", f"w{worker}", "the worker begins"))
    recorder.close()


def write_fleet(root: Path, shards: int, turns: int, gaps: int) -> Path:
    told = {"turns.csv": turns, "chunks.csv": turns, "loadgen.csv": turns, "events.csv": 1}
    workers = []
    for worker in range(shards):
        folder = root / "shards" / f"w{worker}"
        folder.mkdir(parents=True)
        write_turns(folder, worker, turns, gaps)
        client_id, host = f"pod{worker}_{worker:032x}", f"pod{worker}"
        shard = Shard(RUN, SALT, SCENARIO, f"w{worker}", worker, client_id, host, 0.0, 0.001)
        shard.planned = shard.sent = turns
        write_shard(folder, replace(shard, dropped=0, files=sealed(folder), state="complete"))
        entry = WorkerEntry(f"w{worker}", host, 0.0, 0.001, client_id=client_id, sent=turns)
        entry.planned, entry.dropped, entry.shard = turns, 0, ShardEntry("/runs", told, True)
        workers.append(entry)
    manifest = Manifest(
        run_id=RUN,
        scenario={"name": "fleet", "seed": 1, "context_scale": 1.0},
        arm={"name": "run", "settings": {}},
        target={"base_url": "http://127.0.0.1:1/v1"},
        stages=[{"name": "steady", "measured": True}],
        wall_start_unix_s=1_700_000_000.0,
        settings_sources={},
        chars_per_token=4.0,
        run_salt=SALT,
        corpus_fingerprint="0" * 16,
        workers=workers,
        rows_on="worker",
        scenario_sha256=SCENARIO,
    )
    folder = create_run_folder(root, manifest)
    Recorder(folder).close()
    manifest.counts.planned = manifest.counts.sent = manifest.counts.recorded = shards * turns
    manifest.state, manifest.verdict = "complete", Judgement("valid")
    manifest.evidence = {"turns_recorded": shards * turns}
    write_manifest(folder, manifest)
    return folder


def spent(name: str, *argv: str) -> Spent:
    begun = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", *argv], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{name}: exit code {process.returncode}\n{output}")
    cpu_s = usage.ru_utime + usage.ru_stime
    return Spent(name, time.monotonic() - begun, cpu_s, usage.ru_maxrss / 1e3)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--turns", type=int, default=500, help="of each shard")
    parser.add_argument("--gaps", type=int, default=300)
    options = parser.parse_args()
    rows = options.shards * options.turns
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        run = write_fleet(root, options.shards, options.turns, options.gaps)
        out = root / "merged"
        merge = (
            "agentload.recording.merge_command",
            str(run),
            str(root / "shards"),
            "-o",
            str(out),
        )
        steps = [
            spent("merge", *merge),
            spent("report", "agentload", "report", str(out)),
        ]
        lines = (out / "turns.csv").read_bytes().count(b"\n") - 1
        size = sum(path.stat().st_size for path in out.glob("*.csv"))
    print(
        f"{options.shards} shards of {options.turns} turns of {options.gaps} gaps: {lines:,} turns"
    )
    print(f"{size / 1e6:,.0f} MB, {size / rows:,.0f} bytes a turn")
    print(f"{'step':<10}{'wall s':>10}{'CPU s':>10}{'CPU us/turn':>14}{'RSS MB':>10}")
    for step in steps:
        per_turn = f"{step.cpu_s / rows * 1e6:.0f}"
        print(
            f"{step.name:<10}{step.wall_s:>10.1f}{step.cpu_s:>10.1f}{per_turn:>14}{step.rss_mb:>10.0f}"
        )
    return 0 if lines == rows else 1


if __name__ == "__main__":
    sys.exit(main())
