"""Seeded workloads of what is hard: little memory, shared prefixes, clients that go away."""

import random
from typing import Any

from tests.sim.workloads import Workload

BLOCK = 16
COST = {"c0": 0.01, "c1": 1e-4, "c2": 2e-5, "c3": 4e-8, "c4": 2e-9}


def random_workload(seed: int) -> Workload:
    """Sessions and settings drawn together; the same seed gives the same workload."""
    rng = random.Random(seed)
    count = rng.choice((2, 3, 5, 8, 12, 20, 30, 60))
    turns = max(1, rng.choice((60, 120, 160)) // count)
    kind = rng.choice(("none", "shared", "shared", "forks", "tree"))
    scale = {
        "first": rng.choice((100, 300, 1000, 3000)),
        "output": rng.choice((3, 20, 80, 200)),
        "appended": rng.choice((5, 60, 200, 600)),
    }
    think_s = rng.choice((0.01, 0.05, 0.5, 3.0))
    spread_s = rng.choice((0.0, 0.5, 3.0))
    leave = rng.choice((0, 0, 0.1, 0.3))
    sessions = []
    for number in range(count):
        above = _above(rng, kind)
        tail, rows = rng.randint(20, scale["first"]), []
        for _ in range(turns):
            output = rng.randint(1, scale["output"])
            row: dict[str, Any] = {
                "path": [*above, [f"session {number}", tail]],
                "output": output,
                "think_s": rng.expovariate(1 / think_s),
            }
            if rng.random() < leave:
                row["abort_after_s"] = rng.expovariate(1 / rng.choice((0.02, 0.2, 2)))
            rows.append(row)
            tail += output + rng.randint(1, scale["appended"])
        sessions.append({"t0": rng.uniform(0, spread_s), "turns": rows})
    if count > 2 and rng.random() < 0.3:
        _send_alike(sessions[0], sessions[1])
    return {"cfg": _settings(rng, sessions), "cost": COST, "sessions": sessions}


def _above(rng: random.Random, kind: str) -> list[list[Any]]:
    """Segments over a session's own: none, one of all, a deep fork, or levels of a tree."""
    if kind == "shared":
        return [["shared", BLOCK * 60]]
    if kind == "forks":
        return [["root", BLOCK * 80], [f"branch {rng.randrange(3)}", BLOCK * rng.choice((5, 30))]]
    if kind == "tree":
        levels = range(rng.choice((1, 2, 3)))
        return [
            ["root", BLOCK * 10],
            *([f"level {depth} {rng.randrange(2)}", BLOCK * 8] for depth in levels),
        ]
    return []


def _send_alike(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Let two sessions send the same prompts, so that both compute and generate one chain."""
    for one, other in zip(first["turns"], second["turns"], strict=True):
        other["path"] = one["path"]
        other["output"] = min(one["output"], other["output"])


def _settings(rng: random.Random, sessions: list[dict[str, Any]]) -> dict[str, Any]:
    longest = max(
        sum(tokens for _, tokens in turn["path"]) + turn["output"]
        for session in sessions
        for turn in session["turns"]
    )
    seqs = rng.choice((2, 4, 16, 64, 256))
    budget = max(seqs, rng.choice((64, 250, 256, 300, 512, 1000, 2048, 8192)))
    chunked = rng.random() < 0.8
    return {
        "max_num_seqs": seqs,
        "max_batched": budget if chunked else max(seqs, longest + rng.choice((1, 300))),
        "chunked": chunked,
        "prefix_cache": rng.random() < 0.85,
        "num_blocks": -(-longest // BLOCK) + rng.choice((3, 20, 20, 100, 1000)),
        "long_prefill_threshold": rng.choice((0, 0, 17, 64, 64, 512)),
        "reserve_full_isl": rng.random() < 0.6,
        "async_sched": rng.random() < 0.6,
    }
