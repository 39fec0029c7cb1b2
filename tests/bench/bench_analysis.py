"""Prints time and peak memory of `agentload report` on made-up runs of growing size.

python tests/bench/bench_analysis.py [TURNS ...]      default: 10000 100000 1000000

Every turn has 300 gaps. The folder is made in the system's folder for temporary files (1M turns:
about 2.5 GB) and removed afterwards. The report runs in a process of its own, whose peak resident
memory is what is printed.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from agentload.clock import NS_PER_S, MonotonicClock
from agentload.recording.record import SCHEMA_VERSION, ScrapeSample, TurnRecord, columns

GAPS = 300
TEMPLATES = 64  # distinct gap lists; parsing them costs the same as if all were distinct
TURNS_PER_SESSION = 40
RUN_SECONDS = 3600.0

REPORT = "import sys; from analysis.report.command import main; sys.exit(main(sys.argv[1:]))"


def turn_row(i: int, rng: random.Random, names: dict[str, int]) -> list[str]:
    start = RUN_SECONDS * rng.random()
    ttft, decode = rng.lognormvariate(-1.0, 0.8), GAPS * 0.02
    session, index = divmod(i, TURNS_PER_SESSION)
    row = [""] * len(names)
    cells = {
        "run_id": "bench",
        "worker_id": f"w{session % 16}",
        "session_id": f"s{session}",
        "turn_index": index,
        "turn_class": "cold" if index == 0 else "tool",
        "request_id": f"{i:08x}-{rng.getrandbits(64):016x}",
        "stage": "steady",
        "intended_start_s": f"{start:.6f}",
        "call_start_s": f"{start:.6f}",
        "send_start_s": f"{start:.6f}",
        "send_end_s": f"{start + 0.001:.6f}",
        "first_chunk_s": f"{start + ttft:.6f}",
        "last_chunk_s": f"{start + ttft + decode:.6f}",
        "end_s": f"{start + ttft + decode:.6f}",
        "lag_s": "0.000100",
        "ttft_s": f"{ttft:.6f}",
        "ttfo_s": f"{ttft:.6f}",
        "tpot_s": f"{decode / GAPS:.6f}",
        "e2e_s": f"{ttft + decode:.6f}",
        "prompt_tokens": 100_000 + index * 700,
        "cached_tokens": 99_000 + index * 700 if index else 15_000,
        "output_tokens": GAPS + 1,
        "output_chunks": GAPS + 1,
        "append_chars": 1400,
        "server_queue_s": f"{ttft * 0.2:.6f}",
        "server_prefill_s": f"{ttft * 0.5:.6f}",
        "frontend_s": f"{ttft * 0.3 - 0.001:.6f}",
        "status": "success",
        "attempt": 1,
    }
    for name, value in cells.items():
        row[names[name]] = str(value)
    return row


def gap_lists(rng: random.Random) -> list[str]:
    def gap() -> int:
        return rng.randint(8_000, 40_000) if rng.random() > 0.002 else rng.randint(300_000, 900_000)

    return [" ".join(str(gap()) for _ in range(GAPS)) for _ in range(TEMPLATES)]


def rows(turns: int) -> Iterator[tuple[list[str], str]]:
    """(row of turns.csv, line of chunks.csv) of each turn."""
    rng = random.Random(1)
    names = {name: i for i, name in enumerate(columns(TurnRecord))}
    lists = gap_lists(rng)
    for i in range(turns):
        row = turn_row(i, rng, names)
        first = row[names["first_chunk_s"]]
        yield row, f"{row[names['request_id']]},{first},{lists[i % TEMPLATES]},,\n"


def make(folder: Path, turns: int) -> None:
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "run_id": "bench",
        "state": "complete",
        "scenario": {"name": "bench", "seed": 1, "slos": {"tool": {"ttft_s": 2.0}}},
        "arm": {"name": "bench", "settings": {}},
        "target": {},
        "verdict": {"level": "valid", "reasons": []},
        "measured_from_s": 0.0,
        "measured_to_s": RUN_SECONDS,
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with (
        (folder / "turns.csv").open("w", encoding="utf-8", newline="") as turn_file,
        (folder / "chunks.csv").open("w", encoding="utf-8") as chunk_file,
        (folder / "scrape.csv").open("w", encoding="utf-8", newline="") as scrape_file,
    ):
        writer = csv.writer(turn_file, lineterminator="\n")
        writer.writerow(columns(TurnRecord))
        chunk_file.write("request_id,first_chunk_s,gaps_us,chunk_tokens,gap_marks\n")
        for row, chunks in rows(turns):
            writer.writerow(row)
            chunk_file.write(chunks)
        scrape = csv.writer(scrape_file, lineterminator="\n")
        scrape.writerow(columns(ScrapeSample))
        for second in range(int(RUN_SECONDS)):
            for metric, value in (("running", 30), ("waiting", 2)):
                name = f"vllm:num_requests_{metric}"
                scrape.writerow([f"{second}.0", "http://h/metrics", name, "{}", str(value)])


def report(folder: Path) -> tuple[float, float]:
    """(seconds, peak resident MB) of the report in a process of its own."""
    clock = MonotonicClock()
    began_ns = clock.now_ns()
    process = subprocess.Popen(
        [sys.executable, "-c", REPORT, str(folder)], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    seconds = (clock.now_ns() - began_ns) / NS_PER_S
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"the report failed: {os.waitstatus_to_exitcode(status)}")
    return seconds, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("turns", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    sizes = parser.parse_args().turns
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'turns':>9} {'gaps':>12} {'seconds':>8} {'us/gap':>7} {'peak MB':>8}")
    for turns in sizes:
        with tempfile.TemporaryDirectory() as name:
            make(Path(name), turns)
            seconds, peak = report(Path(name))
        gaps = turns * GAPS
        print(f"{turns:9,} {gaps:12,} {seconds:8.1f} {seconds / gaps * 1e6:7.2f} {peak:8.0f}")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    main()
