"""The command `agentload plan`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from agentload.atomic_file import replace_text
from agentload.capacity.plan.demand import Demand, DemandError, of_scenario
from agentload.capacity.plan.inputs import PlanInputError, from_data_sheets, from_files, prices
from agentload.capacity.plan.output import as_json, show
from agentload.capacity.plan.page import render
from agentload.capacity.plan.planning import Plan, Question, make_plan
from agentload.capacity.plan.recorded import of_run
from agentload.capacity.plan.routing import ROUTINGS
from agentload.capacity.plan.search import Hardware
from agentload.capacity.plan.slo import Target, parse_slos
from agentload.capacity.plan.what_if import compare, parse_changes, print_comparison
from agentload.console import output_console
from agentload.scenario import Scenario, load, parse_override
from agentload.scenario.running import Slo
from agentload.workload.window import misfit
from analysis.faults import BadInputError
from analysis.load import Run, load_run

BOOK = 64  # sessions of a scenario that users draw from
NOTHING_MEETS = 3


def main(argv: Sequence[str]) -> int:
    """Print the plan and write it where `--out` says.

    Exit code 0, 2 for input that cannot be used, 3 when nothing that was tried is sure enough.
    """
    options = _parser().parse_args(argv)
    console = Console(stderr=True)
    try:
        _check(options)
        scenario = _scenario(options)
        run = load_run(options.run) if options.run else None
        hardware = _hardware(options)
        demand = _demand(scenario, run, hardware)
        target = Target(parse_slos(options.slo, _slos(scenario, run)), options.share)
        question = _question(options)
        if options.what_if:
            return _what_if(options, question, demand, target, hardware)
        with console.status("planning") as status:
            plan = make_plan(
                question, demand, target, hardware,
                least_turns=options.turns, progress=status.update,
            )  # fmt: skip
    except (ValueError, BadInputError) as error:
        print(f"agentload plan: {error}", file=sys.stderr)
        return 2
    return _tell(plan, options)


def _tell(plan: Plan, options: argparse.Namespace) -> int:
    if options.json:
        sys.stdout.write(as_json(plan))
    else:
        show(plan, output_console())
    if options.out:
        try:
            options.out.mkdir(parents=True, exist_ok=True)
            replace_text(options.out / "plan.json", as_json(plan))
            replace_text(options.out / "plan.html", render(plan))
        except OSError as error:
            print(f"agentload plan: {options.out}: {error.strerror}", file=sys.stderr)
            return 2
        print(f"plan: {options.out / 'plan.html'}", file=sys.stderr)
    return 0 if plan.best else NOTHING_MEETS


def _check(options: argparse.Namespace) -> None:
    """Faults of options that argparse cannot see, all at once."""
    faults = []
    if options.gpu and not options.model:
        faults.append("--gpu needs --model, one that has a data sheet")
    if options.replicas is not None and not options.what_if:
        faults.append("--replicas is for --what-if: a plan works them out")
    if options.what_if and options.replicas is None:
        faults.append("--what-if needs --replicas: how many there are today")
    if faults:
        raise PlanInputError("\n".join(faults))


def _scenario(options: argparse.Namespace) -> Scenario | None:
    if options.scenario is None:
        return None
    return load(options.scenario, dict(parse_override(text) for text in options.set))


def _hardware(options: argparse.Namespace) -> list[Hardware]:
    price = prices(options.price)
    if options.coefficients:
        return from_files(
            options.coefficients, price,
            kv_blocks=options.kv_blocks, max_model_len=options.max_model_len,
        )  # fmt: skip
    return from_data_sheets(
        options.gpu,
        options.model,
        price,
        tensor_parallel=options.tensor_parallel,
        weights=options.weights,
        max_model_len=options.max_model_len,
        vllm_version=options.vllm_version,
    )


def _demand(scenario: Scenario | None, run: Run | None, kinds: list[Hardware]) -> Demand:
    if scenario is None:
        assert run is not None  # argparse wants one of the two
        demand = of_run(run)
    else:
        shortest = min(kinds, key=lambda kind: kind.config.max_model_len)
        # Sessions would end after their first turn, and the plan be one of cold turns only.
        if problem := misfit(scenario, shortest.config.max_model_len):
            raise DemandError(f"{shortest.name}: {problem}")
        demand = of_scenario(
            scenario,
            BOOK,
            chars_per_token=scenario.starting_chars_per_token,
            max_model_len=shortest.config.max_model_len,
        )
    for kind in kinds:
        longest = min(kind.config.max_model_len, kind.kv_tokens)
        if demand.longest_tokens > longest:
            raise DemandError(
                f"{kind.name}: a turn has {demand.longest_tokens:,} tokens, and"
                f" {longest:,} are the most it takes (--max-model-len, KV cache)"
            )
    return demand


def _slos(scenario: Scenario | None, run: Run | None) -> dict[str, Slo]:
    if scenario is not None:
        return {str(name): slo for name, slo in scenario.slos.items()}
    written = run.manifest.scenario.get("slos") if run else None
    if not isinstance(written, dict):
        return {}
    return {str(name): Slo.model_validate(slo) for name, slo in written.items()}


def _question(options: argparse.Namespace) -> Question:
    sessions = options.sessions or math.ceil(options.developers * options.sessions_per_developer)
    return Question(
        sessions, options.developers, options.confidence, options.draws, options.routing,
        options.seed,
    )  # fmt: skip


def _what_if(
    options: argparse.Namespace,
    question: Question,
    demand: Demand,
    target: Target,
    hardware: list[Hardware],
) -> int:
    changes = parse_changes(options.what_if)
    for kind in hardware:
        comparison = compare(
            question, demand, target, kind, changes, options.replicas, least_turns=options.turns
        )
        print_comparison(comparison, output_console())
    return 0


def _whole(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to 1e9")
    return int(text)


def _between(low: float, high: float) -> type[float]:
    def number(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low < value < high:
            raise argparse.ArgumentTypeError(f"{text!r} is not above {low:g} and below {high:g}")
        return value

    return number  # type: ignore[return-value] # argparse takes any callable


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentload plan",
        description="The cheapest replicas and vLLM settings that meet the limits, and how sure.",
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--scenario", type=Path, metavar="FILE", help="sessions as a scenario draws")
    what.add_argument("--run", type=Path, metavar="RUN", help="sessions as a run recorded them")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="change the scenario")
    how_many = parser.add_mutually_exclusive_group(required=True)
    how_many.add_argument("--sessions", type=_whole, help="sessions at once")
    how_many.add_argument("--developers", type=_whole)
    add("--sessions-per-developer", type=_between(0, 1000), default=1.0, help="at once (1)")
    engine = parser.add_mutually_exclusive_group(required=True)
    engine.add_argument(
        "--coefficients", type=Path, action="append", metavar="FILE", help="of agentload calibrate"
    )
    engine.add_argument("--gpu", action="append", metavar="NAME", help="data sheet: prior only")
    add("--model", help="with --gpu")
    add("--tensor-parallel", type=_whole, default=1, help="with --gpu: GPUs of a replica (1)")
    add("--weights", default="", help="with --gpu: bf16 or fp8")
    add("--vllm-version", help="with --gpu: whose scheduler is modelled")
    add("--kv-blocks", type=_whole, help="with --coefficients: num_gpu_blocks of the server")
    add("--max-model-len", type=_whole)
    add("--price", action="append", default=[], metavar="GPU=MONEY", help="per GPU and hour")
    add("--slo", action="append", default=[], metavar="CLASS.LIMIT=S", help="as tool.ttft_s=2")
    add("--share", type=_between(0, 1), default=0.95, help="of turns within their limits (0.95)")
    add("--confidence", type=_between(0, 1), default=0.9, help="wanted P(meets) (0.9)")
    add("--routing", choices=tuple(ROUTINGS), default="sticky")
    add("--draws", type=_whole, default=16, help="of the step costs, each with new sessions (16)")
    add("--turns", type=_whole, default=500, help="measured turns of a simulation (500)")
    add("--seed", type=int, default=0)
    add("--what-if", action="append", default=[], metavar="KNOB=VALUE", help="change one knob")
    add("--replicas", type=_whole, help="with --what-if: today's")
    add("--out", type=Path, metavar="FOLDER", help="write plan.json and plan.html there")
    add("--json", action="store_true", help="print JSON")
    return parser
