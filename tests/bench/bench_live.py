"""What the live figures cost: CPU of the master for each second of a run, size of the messages.

    python tests/bench/bench_live.py [--workers 100] [--turns-per-s 1.0] [--seconds 30]

Each worker records turns of 300 gaps, packs its message as Locust does; the master unpacks it, adds
it, reads a second of `scrape.csv`, makes the figures with their charts, and answers one page.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgpack

from agentload.live.counting import CountingRules, LiveTurns
from agentload.live.wire import LiveReceiver, LiveSender
from agentload.recording.csvfile import header_line, row_line
from agentload.recording.meanings import ALIASES
from agentload.recording.record import SCRAPE_CSV, ScrapeSample, TurnRecord
from agentload.scenario import load
from agentload.swarm.live.board import RunBoard
from agentload.swarm.stages import plan_of_stages
from agentload.swarm.watch import WorkerWatch

SCENARIO = Path(__file__).parents[2] / "scenarios" / "steady-append.yaml"
GAPS = 300
SERIES_OF_A_PAGE = 300
CLASSES = ("tool", "tool", "tool", "tool", "user", "cold")
GOAL_SHARE = 0.02


def turn(rng: random.Random, at_s: float) -> tuple[TurnRecord, tuple[int, ...]]:
    values: dict[str, Any] = {f.name: None for f in fields(TurnRecord)}
    ttft_s = rng.lognormvariate(-0.5, 0.8)
    gaps = tuple(max(1, round(rng.gauss(20_000, 3_000))) for _ in range(GAPS))
    values |= {
        "turn_class": rng.choice(CLASSES),
        "stage": "any",
        "call_start_s": at_s,
        "status": "success",
        "ttft_s": ttft_s,
        "first_chunk_s": at_s,
        "last_chunk_s": at_s + 6.0,
        "output_tokens": GAPS + 1,
        "output_chunks": GAPS + 1,
        "prompt_tokens": 100_000,
        "cached_tokens": 97_000,
        "e2e_s": ttft_s + 6.0,
        "tpot_s": 0.02,
        "jitter_s": rng.lognormvariate(-4.5, 0.3),
        "itl_p99_s": 0.03,
        "stall_count": 0,
    }
    return TurnRecord(**values), gaps


class Master:
    """The figures' part of a master, with workers that are played."""

    def __init__(self, workers: int, folder: Path, rules: CountingRules) -> None:
        self.receiver = LiveReceiver()
        self.senders = [LiveSender(LiveTurns(rules)) for _ in range(workers)]
        for sender in self.senders:
            sender.turns.begin_stages(0.0)
        self.path = folder / SCRAPE_CSV
        self.path.write_bytes(header_line(ScrapeSample))
        self.now_s = 0.0
        scenario = load(SCENARIO)
        plan = plan_of_stages(scenario.stages)
        manifest = SimpleNamespace(
            ended_s=None, ended_by=None, measured_from_s=0.0, measured_to_s=None, verdict=None,
            arm={"name": "base"}, run_id="bench", scenario={"name": "bench"}, planned_s=600.0,
            state="running",
        )  # fmt: skip
        ranks = {str(i): i for i in range(workers)}
        run: Any = SimpleNamespace(
            manifest=manifest, folder=folder, plan=plan, watch=WorkerWatch(frozenset(ranks)),
            now_s=lambda: self.now_s,
            spec=SimpleNamespace(
                stages_from_s=0.0, model="m", ranks=ranks, scenario=lambda: scenario
            ),
        )  # fmt: skip
        status = {"in_flight": 8, "recorded": 9, "loop_lag_p99_s": 0.001, "cpu_share": 0.3}
        loading: Any = SimpleNamespace(
            live=lambda: self.receiver, statuses=lambda: dict.fromkeys(ranks, status)
        )
        self.board = RunBoard(run, SimpleNamespace(user_count=8 * workers), loading)

    def second(self, messages: list[bytes]) -> float:
        """CPU seconds that the figures of one second take."""
        began_s = time.process_time()
        for number, packed in enumerate(messages):
            seq = self.receiver.take(str(number), msgpack.loads(packed, strict_map_key=False))
            self.senders[number].answered(seq)
        snapshot = self.board.make()
        json.dumps(snapshot.to_json(history_after_s=self.now_s - 1.5))
        return time.process_time() - began_s

    def scrape(self, pages: int) -> None:
        names = [n for meaning in ("running", "waiting", "kv_usage") for n in ALIASES[meaning][:1]]
        rows = []
        for page in range(pages):
            for i in range(SERIES_OF_A_PAGE):
                name = names[i] if i < len(names) else f"vllm:something_{i}_bucket"
                labels = '{"engine":"0","model_name":"m"}'
                rows.append(ScrapeSample(self.now_s, f"http://10.0.0.{page}:8000", name, labels, i))
        with self.path.open("ab") as file:
            file.write(b"".join(map(row_line, rows)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=100)
    parser.add_argument("--turns-per-s", type=float, default=1.0, help="of each worker")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--pages", type=int, default=2, help="servers that are scraped")
    given = parser.parse_args()
    rng = random.Random(1)
    rules = CountingRules(frozenset(), 0.0, None, 2000.0, {"tool": {"ttft_s": 1.0}})
    with tempfile.TemporaryDirectory() as folder:
        master = Master(given.workers, Path(folder), rules)
        cpu_s, sizes, add_s, turns = [], [], 0.0, 0
        for second in range(given.seconds):
            master.now_s = float(second + 1)
            master.scrape(given.pages)
            messages = []
            for sender in master.senders:
                whole, part = divmod(given.turns_per_s, 1)
                for _ in range(int(whole) + (rng.random() < part)):
                    row, gaps = turn(rng, master.now_s)
                    began_s = time.process_time()
                    sender.turns.add(row, gaps)
                    add_s += time.process_time() - began_s
                    turns += 1
                messages.append(msgpack.dumps(sender.message()))
            sizes += map(len, messages)
            cpu_s.append(master.second(messages))
    settled = cpu_s[len(cpu_s) // 3 :]
    share = sum(settled) / len(settled)
    print(f"{given.workers} workers, {given.turns_per_s:g} turns/s each, {GAPS} gaps a turn")
    print(f"worker: {add_s / turns * 1e6:.0f} us a turn, {add_s / turns / GAPS * 1e6:.2f} us a gap")
    mean_kb, most_kb = sum(sizes) / len(sizes) / 1e3, max(sizes) / 1e3
    print(f"message: {mean_kb:.1f} KB a second, the largest {most_kb:.1f} KB")
    print(f"master: {share:.2%} of a core (goal: below {GOAL_SHARE:.0%})")


if __name__ == "__main__":
    main()
