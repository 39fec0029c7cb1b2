"""What recording costs: a turn on its worker, a row on the master, a page in the scraper.

python tests/bench/bench_recording.py [METRICS_PAGE]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgpack

from agentload.client.result import StreamResult
from agentload.clock import MonotonicClock, RunClock
from agentload.recording.metrics_page import samples
from agentload.recording.recorder import SHARD_ROWS, Recorder
from agentload.recording.relay import ShardReceiver, ShardSender
from agentload.recording.turn_rows import TurnContext, turn_rows
from agentload.turn_metrics import StallRule
from agentload.workload.turn import Turn

MS = 1_000_000
GAPS = 300
TURNS = 2_000
CLOCK = MonotonicClock()


def best_ms(work: Callable[[], None], tries: int = 5) -> float:
    """Wall milliseconds of the quickest try: the machine may be busy with other things."""
    found = []
    for _ in range(tries):
        before = CLOCK.now_ns()
        work()
        found.append((CLOCK.now_ns() - before) / MS)
    return min(found)


def result() -> StreamResult:
    stamps = [2_000 * MS + i * 20 * MS + i * 7_001 % 900_000 for i in range(GAPS + 1)]
    return StreamResult(
        status="success", call_start_ns=MS, send_start_ns=2 * MS, send_end_ns=3 * MS,
        end_ns=stamps[-1], chunk_ns=stamps, merged=[False] * len(stamps), stamp_source="kernel",
        output_tokens=GAPS + 1, prompt_tokens=100_000, token_source="usage",
    )  # fmt: skip


def record_turns(recorder: Recorder, count: int) -> None:
    turn = Turn("s1-000001", None, 3, "tool", "tool", 0.3, 9, (), 1400, 300, 100_000, 99_000)
    run_clock = RunClock(0, 0.0)
    for i in range(count):
        context = TurnContext("run", "w0", f"{i:032x}", "steady", 0, 5, 1, StallRule())
        row, trace = turn_rows(turn, result(), context, run_clock, [(5 * MS, 6 * MS)] * 3)
        recorder.record(row)
        if trace is not None:
            recorder.record(trace)


def bench_turn(folder: Path) -> None:
    recorder = Recorder(folder, SHARD_ROWS)
    cost = best_ms(lambda: record_turns(recorder, 200)) / 200
    print(f"one turn of {GAPS} gaps on its worker       {cost * 1e3:8.0f} us")


def bench_master(folder: Path) -> None:
    shard, target = folder / "shard", folder / "target"
    shard.mkdir()
    target.mkdir()
    record_turns(Recorder(shard, SHARD_ROWS), TURNS)
    sender = ShardSender(shard, "run", "w0")
    receiver = ShardReceiver(Recorder(target), "run")
    spent_ns = size = 0
    more = True
    while more:
        packed = msgpack.dumps(sender.batch(0, {"sent": TURNS}))
        size += len(packed)
        before = CLOCK.now_ns()
        answer = receiver.receive(msgpack.loads(packed, raw=False), 0)
        spent_ns += CLOCK.now_ns() - before
        more = sender.answered(answer)
    ms = spent_ns / MS / TURNS * 1_000
    print(f"1,000 turns of {GAPS} gaps on the master     {ms:8.2f} ms")
    print(f"bytes of a turn on the wire                {size / TURNS:8.0f}")
    print(f"share of a core at 2,000 turns/s           {ms * 2 / 1_000:8.1%}")


def bench_page(page: str) -> None:
    count = len(list(samples(page, "e", 0.0)))
    ms = best_ms(lambda: list(samples(page, "e", 0.0)) and None)
    print(f"a page of {len(page):,} bytes, {count} samples kept   {ms:8.1f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path, nargs="*", help="a saved /metrics page")
    pages = parser.parse_args().page
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary)
        (root / "turn").mkdir()
        bench_turn(root / "turn")
        bench_master(root)
    for page in pages:
        bench_page(page.read_text(encoding="utf-8"))
