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

from agentload.capacity.calibrate.probes import Ask, Heard
from agentload.capacity.cost.engine import engine_of
from agentload.sim.profiles import NEWEST, CostFile, InForce, read_cost_file
from tests.vllm.knob_workload import Seen, figures, measured, predicted
from tests.vllm.server import CLIENT_CPUS, MODEL, ServerError, on_cpus, running_server

MAX_MODEL_LEN, DEPTH, LIMIT_S = 20_480, 16_384, 120
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
                     "--max-num-batched-tokens", str(setting.in_force["max_num_batched_tokens"]),
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


def _heard(path: Path) -> list[Heard]:
    rows = json.loads(path.read_text())
    for row in rows:
        row["ask"] = Ask(**row["ask"])
    return [Heard(**row) for row in rows]


def _predicted(heard: list[Heard], file: CostFile, setting: Setting) -> list[Seen]:
    found = {**file.in_force.model_dump(), **setting.in_force, "max_model_len": MAX_MODEL_LEN}
    config = engine_of(InForce(**found), file.version_profile or NEWEST)
    return predicted(heard, config, file.step_cost(), file.make_frontend())


def _table(file: CostFile, settings: Sequence[Setting], folder: Path) -> Iterator[str]:
    """Markdown: a row a figure and setting, errors of the prediction."""
    yield f"Step cost: {file.form}, profile {file.version_profile}; {file.source}"
    yield ""
    yield "| setting | figure | measured | predicted | error |"
    yield "|---|---|---:|---:|---:|"
    for setting in settings:
        path = _seen_path(setting, folder)
        if not path.exists():
            yield f"| {setting.name} | not measured | | | |"
            continue
        heard = _heard(path)
        by_model = dict(figures(_predicted(heard, file, setting)))
        for name, value in figures(measured(heard)):
            guess = by_model[name]
            error = f"{(guess - value) * 100:+.1f} points" if name == "hit rate" else (
                f"{guess / value - 1:+.1%}" if value else "n/a"
            )  # fmt: skip
            digits = 3 if name == "hit rate" else 1
            yield f"| {setting.name} | {name} | {value:.{digits}f} | {guess:.{digits}f} | {error} |"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
