"""Calibrates a real vLLM at one setting, predicts others, runs them, prints the errors.

    python -m tests.vllm.knob_validation [--out FOLDER] [--only NAME ...] [--start-limit-s S]

About ten minutes on two otherwise idle cores: one CPU for the server, the rest for the client.
FOLDER keeps what was measured; a second run with the same FOLDER goes on where the first stopped,
and prints the table from what is there. Nothing is fitted to the settings that are predicted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentload.capacity.calibrate.probes import Ask, Heard
from agentload.capacity.cost.engine import engine_of
from agentload.capacity.plan.draws import CostDraw, central, drawn
from agentload.sim.core import EngineConfig
from agentload.sim.profiles import NEWEST, CostFile, InForce, read_cost_file
from tests.vllm.knob_workload import figures, measured, predicted
from tests.vllm.server import CLIENT_CPUS, MODEL, ServerError, on_cpus, running_server

MAX_MODEL_LEN, DEPTH, LIMIT_S = 20_480, 16_384, 120
DRAWS = 60  # of the coefficients, for the intervals
SPACING_OF_TURN = 0.7  # of what a turn takes beside others
# Wide enough that matrix multiplication decides what a step takes. With the usual width of 64 it is
# what oneDNN does once for each number of tokens in a step, 5 to 10 ms, which no formula here has.
HIDDEN_SIZE = 768


@dataclass(frozen=True, slots=True)
class Setting:
    """A server's flags, and what they put in force."""

    name: str
    flags: tuple[str, ...]
    in_force: dict[str, Any] = field(default_factory=dict)


def _setting(name: str, seqs: int = 16, budget: int = 2048, *, chunked: bool = True) -> Setting:
    switch = "--enable-chunked-prefill" if chunked else "--no-enable-chunked-prefill"
    flags = (
        *("--max-num-seqs", str(seqs), "--max-num-batched-tokens", str(budget), switch),
        *("--max-model-len", str(MAX_MODEL_LEN), "--enable-prompt-tokens-details"),
    )
    in_force = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": budget,
        "chunked_prefill": chunked,
        "long_prefill_token_threshold": 0,
        "async_scheduling": False,  # vLLM's CPU build never schedules ahead
    }
    return Setting(name, flags, in_force)


BASE = _setting("calibrated: 16 sequences, budget 2048")
SETTINGS = (
    BASE,
    _setting("2 sequences", seqs=2),
    _setting("4 sequences", seqs=4),
    _setting("budget 512", budget=512),
    _setting("budget 8192", budget=8192),
    _setting("not chunked", budget=MAX_MODEL_LEN, chunked=False),
)


def main(argv: Sequence[str]) -> int:
    given = _parser().parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    costs = given.out / "step-cost.json"
    chosen = [s for s in SETTINGS if not given.only or s is BASE or s.name in given.only]
    for setting in chosen:
        try:
            _measure(setting, given, costs)
        except (ServerError, subprocess.CalledProcessError) as error:
            print(f"{setting.name}: not measured: {error}", file=sys.stderr)
            if setting is BASE:
                return 1
    print("\n".join(_table(read_cost_file(costs), chosen, given.out)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--out", type=Path, default=Path("knob-validation"), help="default %(default)s")
    add("--only", action="append", metavar="NAME", help="these settings and the calibrated one")
    add("--start-limit-s", type=float, default=300.0, help="for a server's start")
    return parser


def _measure(setting: Setting, given: argparse.Namespace, costs: Path) -> None:
    """Run a setting unless its folder has it; the base one is calibrated first."""
    seen = _seen_path(setting, given.out)
    if seen.exists() and costs.exists():
        return
    log = given.out / f"{_slug(setting)}.log"
    print(f"{setting.name}: starting", file=sys.stderr, flush=True)
    with running_server(
        log, setting.flags, hidden_size=HIDDEN_SIZE, start_limit_s=given.start_limit_s
    ) as server:
        url = server.openai_url
        if setting is BASE and not costs.exists():
            _run(["tests.vllm.knob_load", url], None)
            with (given.out / "calibrate.txt").open("w") as text:
                _run(
                    ["agentload.capacity.calibrate.command", "--base-url", url, "--model", MODEL,
                     "--depth", str(DEPTH), "--limit-s", str(LIMIT_S), "--no-async-scheduling",
                     "--out", str(costs)], text,
                )  # fmt: skip
        spacing = _spacing_s(read_cost_file(costs))
        _run(["tests.vllm.knob_load", url, f"{spacing:.4f}", str(seen)], None)


def _run(module: list[str], out: Any) -> None:
    command = [*on_cpus(CLIENT_CPUS), sys.executable, "-m", *module]
    subprocess.run(command, check=True, stdout=out, timeout=900)


def _spacing_s(file: CostFile) -> float:
    cost = file.step_cost()
    turn_s = cost.step_s(400, 1, 6000, 400 * 6000) + 120 * cost.step_s(0, 3, 18_000, 0)
    return max(0.05, SPACING_OF_TURN * turn_s)


def _slug(setting: Setting) -> str:
    return "".join(c if c.isalnum() else "-" for c in setting.name)


def _seen_path(setting: Setting, folder: Path) -> Path:
    return folder / f"{_slug(setting)}.json"


def _heard(path: Path) -> list[list[Heard]]:
    """The rounds of a setting."""
    rounds = json.loads(path.read_text())
    return [[Heard(**{**row, "ask": Ask(**row["ask"])}) for row in part] for part in rounds]


def _predicted(rounds: list[list[Heard]], config: EngineConfig, draw: CostDraw) -> dict[str, float]:
    seen = [predicted(part, config, draw.cost, draw.frontend()) for part in rounds]
    return {
        name: value * (draw.ttft_factor if name.startswith("TTFT") else 1.0)
        for name, value in figures(seen)
    }


def _table(file: CostFile, settings: Sequence[Setting], folder: Path) -> Iterator[str]:
    """Markdown: a row a figure and setting, with the prediction's error and its 90 % interval."""
    yield f"Step cost: {file.form}, profile {file.version_profile}; {file.source}"
    yield ""
    yield "| setting | figure | measured | predicted | error | 90 % interval | inside |"
    yield "|---|---|---:|---:|---:|---:|---|"
    inside = []
    for setting in settings:
        path = _seen_path(setting, folder)
        if not path.exists():
            yield f"| {setting.name} | not measured | | | | | |"
            continue
        rounds = _heard(path)
        found = {**file.in_force.model_dump(), **setting.in_force, "max_model_len": MAX_MODEL_LEN}
        config = engine_of(InForce(**found), file.version_profile or NEWEST)
        guess = _predicted(rounds, config, central(file))
        draws = [_predicted(rounds, config, draw) for draw in drawn(file, DRAWS, seed=0)]
        for name, value in figures([measured(part) for part in rounds]):
            low, high = (float(q) for q in np.quantile([d[name] for d in draws], (0.05, 0.95)))
            rate = name == "hit rate"
            digits = 3 if rate else 1
            error = (
                f"{(guess[name] - value) * 100:+.1f} points"
                if rate
                else (f"{guess[name] / value - 1:+.1%}" if value else "n/a")
            )
            inside.append(low - 0.01 <= value <= high + 0.01 if rate else low <= value <= high)
            yield (
                f"| {setting.name} | {name} | {value:.{digits}f} | {guess[name]:.{digits}f} "
                f"| {error} | {low:.{digits}f} to {high:.{digits}f} "
                f"| {'yes' if inside[-1] else 'no'} |"
            )
    yield ""
    yield f"{sum(inside)} of {len(inside)} figures lie inside (a hit rate: within 1 point)."


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
