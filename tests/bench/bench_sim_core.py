"""Speed of the scheduler core on one core, in CPU time.

    python tests/bench/bench_sim_core.py [--growth]

The four workloads are coding agents with deep contexts that fit, coding agents that thrash the
KV cache, and chat at two concurrencies. `--growth` adds 10 to 1,000 sessions, on replicas of ten
and on one.
Figures from a loaded machine are lower bounds.
"""

import argparse
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from agentload.sim.core import Frontend, Offline, Replica, Turn
from agentload.sim.profiles import load_profile

FLOOR_TOKENS_PER_S = 1e6


@dataclass(frozen=True, slots=True)
class Load:
    """Sessions: first context, growth and answer in tokens, pauses and stagger in s."""

    name: str
    gpu: str
    budget: int
    sessions: int
    turns: int
    first: tuple[int, int]
    think_s: float
    stagger_s: float
    appended: int = 400
    answer: int = 300
    shared: int = 0
    seqs: int = 256
    num_blocks: int | None = None
    replicas: int = 1


H100 = ("H100-80G", 8192)
DEEP = {"first": (86000, 87000), "shared": 6000, "think_s": 10}
CHAT = {"first": (500, 1500), "appended": 200, "think_s": 0.5, "num_blocks": 65000}
LOADS = (
    Load("10 agents, 86-123K, H100", *H100, 10, 53, stagger_s=30, **DEEP),
    Load(
        "8 agents thrashing, A100-40G",
        *("A100-40G", 2048, 8, 100),
        first=(20000, 30000),
        shared=6000,
        think_s=5,
        stagger_s=2,
    ),
    Load("64 chats, H100", *H100, 64, 100, stagger_s=0.05, **CHAT),
    Load("256 chats, H100", *H100, 256, 40, stagger_s=0.02, **CHAT),
)
GROWTH = tuple(
    Load(f"{10 * n} agents, {n} x H100", *H100, 10 * n, 20, stagger_s=30 / n, replicas=n, **DEEP)
    for n in (1, 3, 10, 30, 100)
) + tuple(
    Load(f"{n} chats, 1 x H100", *H100, n, 20, stagger_s=5 / n, seqs=1024, **CHAT)
    for n in (10, 100, 1000)
)


def session(load: Load, number: int, rng: random.Random) -> Iterator[Turn]:
    """One closed-loop session that appends to its own context."""
    own = rng.randint(*load.first) - load.shared
    shared = (("shared", load.shared),) if load.shared else ()
    for _ in range(load.turns):
        answer = int(rng.expovariate(1 / load.answer)) + 1
        yield Turn((*shared, (number, own)), answer, rng.expovariate(1 / load.think_s))
        own += answer + load.appended


def run(load: Load) -> None:
    """Simulate one workload and print its line."""
    profile = load_profile(load.gpu, "Qwen2.5-7B", max_model_len=200_000)
    config = profile.engine_config(
        max_num_batched_tokens=load.budget,
        max_num_seqs=load.seqs,
        num_blocks=load.num_blocks or profile.num_blocks,
    )
    replicas = [Replica(config, profile.cost, Frontend(0.0, 0.0)) for _ in range(load.replicas)]
    offline = Offline(replicas)
    for number in range(load.sessions):
        rng = random.Random(number)
        offline.add_session(session(load, number, rng), number * load.stagger_s)
    started = time.process_time()
    results = offline.run()
    cpu_s = time.process_time() - started
    steps = sum(r.engine.counters.steps for r in replicas)
    tokens = sum(r.engine.counters.generated for r in replicas)
    print(
        f"{load.name:30s} {len(results):6d} requests {cpu_s:7.2f} CPU-s"
        f" {len(results) / cpu_s:8,.0f} requests/s {steps / cpu_s:11,.0f} steps/s"
        f" {tokens / cpu_s / 1e6:6.2f} M tokens/s"
        f" {offline.now_s * load.replicas / cpu_s:9,.0f} x real time"
        f"{'' if tokens / cpu_s >= FLOOR_TOKENS_PER_S else '  below the floor'}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--growth", action="store_true", help="more sessions and replicas, too")
    for load in LOADS + (GROWTH if parser.parse_args().growth else ()):
        run(load)


if __name__ == "__main__":
    main()
