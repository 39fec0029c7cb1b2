"""What the rows of many workers cost the real Locust master, beside Locust's own messages.

python tests/bench/bench_master.py [--rows 2000] [--gaps 300] [--workers 20] [--seconds 20]

One master on one core; the workers are simulated by this process on the others. In one run, one
after the other: Locust's own messages (heartbeats, statistics), those with the signs of life that
each worker sends once a second, with rows in them, and the same rows as lists of numbers in a
message that nobody writes down; then the same with --record-on worker. `x` is a multiple of the
first. Ends with an error when a row was lost.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.locust_process import LOCUSTFILE, Bench, RunFolder, free_port
from tests.e2e.sim_process import Sim
from tests.e2e.simulated_workers import Fleet

FLOAT_ROWS = Path(__file__).with_name("float_rows.py")
TICK_HZ = os.sysconf("SC_CLK_TCK")
CORES = os.sched_getaffinity(0)


@dataclass
class Phase:
    name: str
    seconds: float
    cpu_s: float
    rows: int
    rss_mb: tuple[float, float]  # at its begin, its largest

    @property
    def share(self) -> float:
        return self.cpu_s / self.seconds

    def ms_per_1000(self, idle: Phase) -> float | None:
        """CPU beyond that of a second without rows."""
        return 1e6 * (self.cpu_s - idle.share * self.seconds) / self.rows if self.rows else None


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK_HZ


def rss_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(fleet: Fleet, pid: int, name: str, seconds: float) -> Phase:
    fleet.run_for(2.0)
    rows, before = fleet.made + fleet.float_rows, cpu_s(pid)
    begun, sizes = time.monotonic(), [rss_mb(pid)]
    while time.monotonic() - begun < seconds:
        fleet.run_for(0.5)
        sizes.append(rss_mb(pid))
    took = time.monotonic() - begun
    made = fleet.made + fleet.float_rows - rows
    return Phase(name, took, cpu_s(pid) - before, made, (sizes[0], max(sizes)))


def phases(fleet: Fleet, pid: int, rows_per_s: float, seconds: float) -> list[Phase]:
    fleet.quiet = True
    found = [measure(fleet, pid, "Locust's own messages", seconds)]
    fleet.quiet = False
    found.append(measure(fleet, pid, "+ signs of life", seconds))
    fleet.change_rate(rows_per_s)
    if fleet.keep_rows:
        return [*found, measure(fleet, pid, "+ counts of rows", seconds)]
    found.append(measure(fleet, pid, "+ rows, as CSV", 2 * seconds))
    fleet.change_rate(0)
    fleet.run_until(lambda: not any(any(p.waiting.values()) for p in fleet.peers), "acks", 60)
    fleet.as_floats = True
    fleet.change_rate(rows_per_s)
    found.append(measure(fleet, pid, "+ rows, as lists", seconds))
    fleet.change_rate(0)
    fleet.as_floats = False
    return found


def show(found: list[Phase]) -> None:
    locust, idle, ours = found[:3]
    own = ours.ms_per_1000(idle) or 0.0
    for phase in found:
        cost = phase.ms_per_1000(idle)
        ratio = f"{cost / own:.2f}" if cost is not None and own >= 1 else ""
        told = "" if cost is None else f"{cost:.1f}"
        rss = f"{phase.rss_mb[0]:.0f} to {phase.rss_mb[1]:.0f}"
        print(
            f"{phase.name:<24}{phase.rows / phase.seconds:>8.0f}{phase.share:>8.1%}"
            f"{phase.share / locust.share:>8.1f}{told:>10}{ratio:>8}{rss:>14}"
        )
    if own >= 1:
        print(f"a core full of these rows: {1e6 * (1 - idle.share) / own:,.0f} rows/s")


def run(options: argparse.Namespace, rows_on: str, folder: Path, base_url: str) -> bool:
    """Whether every row that was made is where it belongs."""
    bench, port = Bench(folder, base_url), free_port()
    master = bench.owner(
        "--headless", "--master", "--master-bind-port", str(port), "--record-on", rows_on,
        "--expect-workers", str(options.workers), "--expect-workers-max-wait", "120",
        "-u", str(options.workers), "-r", str(options.workers), "-t", "3600s",
        "--metrics-url", "none", "--set", "chars_per_token=4.0", "-f", f"{LOCUSTFILE},{FLOAT_ROWS}",
    )  # fmt: skip
    pid = master.process.pid
    os.sched_setaffinity(pid, {min(CORES)})
    fleet = Fleet(port, options.workers, 0.0, options.gaps)
    fleet.keep_rows = rows_on == "worker"
    try:
        fleet.run_until(lambda: all(p.spec for p in fleet.peers), "the run begins", 300)
        found = phases(fleet, pid, options.rows, options.seconds)
        master.process.terminate()
        fleet.run_until(lambda: all(p.quit for p in fleet.peers), "the end", 120)
        master.wait()
    except AssertionError:
        print(master.output, file=sys.stderr)
        raise
    finally:
        fleet.close()
        bench.close()
    show(found)
    return nothing_lost(bench.folder(), fleet.made, rows_on)


def nothing_lost(run: RunFolder, made: int, rows_on: str) -> bool:
    files = [
        (run.path / name).read_bytes().count(b"\n") - 1 for name in ("turns.csv", "chunks.csv")
    ]
    counts = run.manifest["counts"]
    print(f"turns made {made:,}; rows in the files {files}; counts {counts}\n")
    here = made if rows_on == "master" else 0
    return files == [here, here] and counts["recorded"] == made and counts["lost"] == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=float, default=2_000.0)
    parser.add_argument("--gaps", type=int, default=300)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    os.sched_setaffinity(0, CORES - {min(CORES)} or CORES)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # a socket a worker, and more
    print(f"{options.workers} workers, {options.gaps} gaps a row")
    heads = ("rows/s", "core", "x idle", "ms/1,000", "ratio", "RSS MB")
    print(
        f"{'phase':<24}"
        + "".join(f"{h:>{w}}" for h, w in zip(heads, (8, 8, 8, 10, 8, 14), strict=True))
    )
    with tempfile.TemporaryDirectory() as temporary, Sim() as sim:
        url = f"http://127.0.0.1:{sim.port}"
        kept = [run(options, on, Path(temporary) / on, url) for on in ("master", "worker")]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
