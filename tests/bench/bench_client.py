"""The measuring client beside the openai SDK's `create(stream=True)`, one table.

    python tests/bench/bench_client.py [--realtime] [--only TEXT]

Needs cc, Linux and two cores (server on core 0, client on core 1). `--realtime` runs both in the
real-time class for the seconds of each figure, which other work on the machine then cannot
disturb; without it compare the ratios only.
"""

import argparse
import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RECORD = struct.Struct("<IIQ")
BODY_DONE = 0xFFFFFFFF
SERVER_CORE, CLIENT_CORE = 0, 1
BIG_KB = 430


@dataclass
class Truth:
    """When the server sent each token of each request, and when it had the whole request."""

    tokens_ns: dict[int, dict[int, int]]
    body_done_ns: dict[int, int]


@dataclass
class Measured:
    """One load: what the client said, against the truth."""

    said: dict[str, Any]
    truth: Truth
    process_cpu_s: float  # of the whole process, start and end too

    def chunks_in_window(self) -> int:
        """Chunks the client has handled in the window: a saturated one handles fewer than came."""
        start, stop = self.said["window_ns"]
        stamps = (ns for turn in self.said["turns"] for ns in turn["stamps_ns"])
        return sum(start <= ns < stop for ns in stamps)

    def us_per_chunk(self) -> float:
        return float(self.said["cpu_s"]) * 1e6 / self.chunks_in_window()

    def cpu_share(self) -> float:
        start, stop = self.said["window_ns"]
        return float(self.said["cpu_s"]) / ((stop - start) / 1e9)

    def gap_errors_ms(self) -> list[float]:
        """|gap by the client - gap by the server| of every gap the client calls usable."""
        errors = []
        for turn, sent in self._turns():
            stamps, usable = turn["stamps_ns"], turn["gap_ok"]
            for at in range(1, len(stamps)):
                if usable[at]:
                    true_ns = sent[at] - sent[at - 1]
                    errors.append(abs(stamps[at] - stamps[at - 1] - true_ns) / 1e6)
        return sorted(errors)

    def share_left_out(self) -> float:
        usable = [ok for turn, _ in self._turns() for ok in turn["gap_ok"][1:]]
        return usable.count(False) / len(usable)

    def ttft_errors_ms(self) -> list[float]:
        """TTFT from send start, less the server's time from the last byte to the first token."""
        errors = []
        for turn, sent in self._turns():
            true_ns = sent[0] - self.truth.body_done_ns[turn["request"]]
            errors.append((turn["stamps_ns"][0] - turn["send_start_ns"] - true_ns) / 1e6)
        return sorted(errors)

    def false_zeros(self) -> float:
        """Share of gaps below a tenth of a true gap that is at least 5 ms."""
        zeros = total = 0
        for turn, sent in self._turns():
            for at, (a, b) in enumerate(pairwise(turn["stamps_ns"]), 1):
                if turn["gap_ok"][at] and sent[at] - sent[at - 1] >= 5_000_000:
                    total += 1
                    zeros += b - a < 0.1 * (sent[at] - sent[at - 1])
        return zeros / total if total else 0.0

    def _turns(self) -> Iterator[tuple[dict[str, Any], list[int]]]:
        for turn in self.said["turns"]:
            sent = self.truth.tokens_ns.get(turn["request"], {})
            if turn["error"] is None and len(sent) == len(turn["stamps_ns"]):
                yield turn, [sent[index] for index in range(len(sent))]


def quantile(values: list[float], q: float) -> float:
    """Linear interpolation on sorted values."""
    place = (len(values) - 1) * q
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)


class Bench:
    def __init__(self, folder: Path, realtime: bool) -> None:
        self._folder = folder
        self._realtime = realtime
        self._server = folder / "mock_server"
        source = HERE / "mock_server.c"
        subprocess.run(["cc", "-O2", "-o", self._server, source], check=True)

    @contextmanager
    def server(self, realtime: bool, **options: Any) -> Iterator[str]:
        words = [f"{name}={value}" for name, value in options.items()]
        command = ["taskset", "-c", str(SERVER_CORE), str(self._server), str(self.log), *words]
        if realtime:
            command = ["chrt", "-r", "20", *command]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
            process.send_signal(signal.SIGTERM)
            if process.wait(20):
                raise RuntimeError("the mock server failed")

    @property
    def log(self) -> Path:
        return self._folder / "log"

    def load(self, variant: str, server: dict[str, Any], hog: bool = False, **job: Any) -> Measured:
        """One load in a process of its own; `hog` starves the client's core meanwhile."""
        realtime = self._realtime and not hog
        with self.server(self._realtime, **server) as base_url:
            job = {
                "variant": variant,
                "base_url": base_url,
                "core": CLIENT_CORE,
                "realtime": realtime,
                "kind": "sessions",
                "sessions": 1,
                "body_kb": 2,
                "spread_s": 0.0,
                "pause_s": 0.0,
                "edge_s": 1.5,
                **job,
            }
            with busy_core(CLIENT_CORE if hog else None), tree_cpu() as spent:
                done = subprocess.run(
                    [sys.executable, str(HERE / "client_load.py"), json.dumps(job)],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
        return Measured(json.loads(done.stdout), self._truth(), spent[0])

    def _truth(self) -> Truth:
        truth = Truth({}, {})
        for request, index, ns in RECORD.iter_unpack(self.log.read_bytes()):
            if index == BODY_DONE:
                truth.body_done_ns[request] = ns
            else:
                truth.tokens_ns.setdefault(request, {})[index] = ns
        return truth


@contextmanager
def tree_cpu() -> Iterator[list[float]]:
    """CPU seconds of the children that end inside, with their own children."""
    spent: list[float] = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    yield spent
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@contextmanager
def busy_core(core: int | None) -> Iterator[None]:
    """Another process that computes all the time on the core."""
    if core is None:
        yield
        return
    command = ["taskset", "-c", str(core), sys.executable, "-c", "while True: pass"]
    with subprocess.Popen(command) as process:
        yield
        process.kill()


# Each session makes one turn; they start within 2 s, as users that a test spawns.
ONCE = {"pause_s": 60, "spread_s": 2.0, "edge_s": 3.0}
Row = tuple[str, str, str, str, str]  # goal, agentload, openai SDK, ratio, bound


def requests_rows(bench: Bench) -> Iterator[Row]:
    server = {"ttft_ms": 1, "tps": 2000, "tokens": 2, "mode": "together"}
    ours, sdk = (
        bench.load(variant, server, kind="requests", body_kb=BIG_KB, repeats=repeats).said
        for variant, repeats in (("agentload", 40), ("openai", 8))
    )
    a, b = ours["cpu_ms_min"], sdk["cpu_ms_min"]
    yield (
        f"CPU per {BIG_KB} KB request, least (median)",
        f"{a:.2f} ms ({ours['cpu_ms_median']:.2f})",
        f"{b:.0f} ms ({sdk['cpu_ms_median']:.0f})",
        f"{b / a:.0f} x",
        "<= 2 ms, >= 60 x",
    )


def chunk_rows(bench: Bench) -> Iterator[Row]:
    server = {"ttft_ms": 500, "tps": 50, "tokens": 450, "mode": "burst"}
    plan = {"seconds": 10, "freezes": False, **ONCE}
    ours = bench.load("agentload", server, sessions=200, **plan).us_per_chunk()
    # Two hundred streams saturate the SDK: it then reads several chunks at once, which makes each
    # cheaper and its times worthless. Fifty is what it can follow.
    for sessions in (50, 200):
        sdk = bench.load("openai", server, sessions=sessions, **plan)
        yield (
            f"CPU per chunk, 200 streams x 50/s in bursts (SDK: {sessions})",
            f"{ours:.1f} us",
            f"{sdk.us_per_chunk():.0f} us ({sdk.cpu_share():.0%} of the core)",
            f"{sdk.us_per_chunk() / ours:.1f} x",
            "<= 25 us, >= 8 x" if sessions == 50 else "",
        )


def itl_rows(bench: Bench) -> Iterator[Row]:
    server = {"ttft_ms": 500, "tps": 50, "tokens": 450, "mode": "burst"}
    plan = {"seconds": 10, **ONCE}
    sdk = bench.load("openai", server, sessions=50, **plan).gap_errors_ms()
    for sessions in (50, 200, 500):
        ours = bench.load("agentload", server, sessions=sessions, **plan)
        errors = ours.gap_errors_ms()
        yield (
            f"ITL error p99, {sessions} streams in bursts (SDK: 50)",
            f"{quantile(errors, 0.99):.3f} ms",
            f"{quantile(sdk, 0.99):.1f} ms",
            f"{quantile(sdk, 0.99) / quantile(errors, 0.99):.0f} x",
            "<= 0.1 ms",
        )
        yield (
            f"gaps left out as merged, {sessions} streams",
            f"{ours.share_left_out():.4%}",
            "",
            "",
            "<= 0.1 %",
        )
    user = bench.load("agentload-user", server, sessions=50, **plan).gap_errors_ms()
    yield (
        "ITL error p99, 50 streams, user stamps",
        f"{quantile(user, 0.99):.2f} ms",
        f"{quantile(sdk, 0.99):.1f} ms",
        f"{quantile(sdk, 0.99) / quantile(user, 0.99):.1f} x",
        "<= 2 ms",
    )


def mix_rows(bench: Bench) -> Iterator[Row]:
    server = {"ttft_ms": 1000, "tps": 50, "tokens": 350, "mode": "together"}
    cycle_s = 1.0 + 350 / 50 + 1.5
    plan = {"body_kb": BIG_KB, "pause_s": 1.5, "spread_s": cycle_s, "edge_s": cycle_s}
    sdk = bench.load("openai", server, sessions=20, seconds=2.5 * cycle_s, **plan)
    sdk_ttft = sdk.ttft_errors_ms()
    for sessions, bound in ((200, "<= 35 %"), (500, "<= 75 %")):
        ours = bench.load("agentload", server, sessions=sessions, seconds=3.5 * cycle_s, **plan)
        ttft, gaps = ours.ttft_errors_ms(), ours.gap_errors_ms()
        per_session = sdk.cpu_share() / 20 * sessions
        yield (
            f"agent mix, {sessions} sessions: CPU of a core (SDK: from 20)",
            f"{ours.cpu_share():.0%}",
            f"{per_session:.0%}",
            f"{per_session / ours.cpu_share():.0f} x",
            bound,
        )
        yield (
            f"agent mix, {sessions} sessions: TTFT error p50 / p99",
            f"{quantile(ttft, 0.5):.2f} / {quantile(ttft, 0.99):.2f} ms",
            f"{quantile(sdk_ttft, 0.5):.0f} / {quantile(sdk_ttft, 0.99):.0f} ms",
            f"{quantile(sdk_ttft, 0.5) / quantile(ttft, 0.5):.0f} x",
            "<= 1 / 5 ms" if sessions == 200 else "",
        )
        yield (
            f"agent mix, {sessions} sessions: ITL error p99, false zeros",
            f"{quantile(gaps, 0.99):.3f} ms, {ours.false_zeros():.3%}",
            f"{quantile(sdk.gap_errors_ms(), 0.99):.0f} ms, {sdk.false_zeros():.0%}",
            "",
            "<= 0.1 ms",
        )
        yield (
            f"agent mix, {sessions} sessions: longest freeze",
            f"{ours.said['freeze_ms']:.1f} ms",
            f"{sdk.said['freeze_ms']:.0f} ms",
            f"{sdk.said['freeze_ms'] / ours.said['freeze_ms']:.0f} x",
            "<= 5 ms",
        )
        kb = (ours.said["resident_kb"] - ours.said["before_kb"]) / sessions
        sdk_kb = (sdk.said["resident_kb"] - sdk.said["before_kb"]) / 20
        yield (
            f"memory per session, {sessions} sessions (bytes of the body shared)",
            f"{kb:.0f} KB",
            f"{sdk_kb:.0f} KB",
            f"{sdk_kb / kb:.1f} x",
            "<= 150 KB",
        )


def starved_rows(bench: Bench) -> Iterator[Row]:
    server = {"ttft_ms": 500, "tps": 50, "tokens": 450, "mode": "spread"}
    # As many as the SDK can carry on half a core.
    plan = {"sessions": 20, "seconds": 10, "hog": True, **ONCE}
    sdk = bench.load("openai", server, **plan).gap_errors_ms()
    user = bench.load("agentload-user", server, **plan)
    ours = bench.load("agentload", server, **plan)
    for name, measured in (("kernel stamps", ours), ("user stamps", user)):
        errors = measured.gap_errors_ms()
        yield (
            f"starved core, 20 streams, {name}: ITL error p99 (left out)",
            f"{quantile(errors, 0.99):.3f} ms ({measured.share_left_out():.1%})",
            f"{quantile(sdk, 0.99):.1f} ms",
            f"{quantile(sdk, 0.99) / quantile(errors, 0.99):.0f} x",
            "right or left out" if measured is ours else "",
        )


PARTS = {
    "request": requests_rows,
    "chunk": chunk_rows,
    "itl": itl_rows,
    "mix": mix_rows,
    "starved": starved_rows,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--realtime", action="store_true")
    parser.add_argument("--only", choices=PARTS, action="append")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f}, real-time class: {options.realtime}\n")
    print("| goal | agentload | openai SDK | ratio | bound |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder), options.realtime)
        for name in options.only or PARTS:
            for row in PARTS[name](bench):
                print("| " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()
