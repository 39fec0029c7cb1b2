"""The command `agentload fit`: the step cost from finished runs, and what they cannot tell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentload.capacity.calibrate.printing import coefficient_lines, in_force_lines
from agentload.capacity.cost.engine import engine_of
from agentload.capacity.cost.estimate import (
    FRONTEND_BASE_S,
    FRONTEND_PER_TOKEN_S,
    Estimate,
    cost_file,
    delays,
    frontend_belief,
)
from agentload.capacity.cost.fit import Prior, fit_form, prior_around, wide_prior
from agentload.capacity.cost.form import Observations, joined
from agentload.capacity.cost.posterior import believe, condition_number
from agentload.capacity.fit.inputs import seen_turns
from agentload.capacity.fit.run import RunFit, Seen, fit_run
from agentload.capacity.validate.command import settings_as_found
from agentload.sim.profiles import (
    NEWEST,
    CostFile,
    InForce,
    ProfileError,
    version_profile,
)
from agentload.sim.profiles import prior as sheet_prior
from analysis.faults import BadInputError
from analysis.load import Run, load_run


def main(argv: Sequence[str]) -> int:
    """Fit, print, write. 0: written, 2: input that cannot be used."""
    parser = _parser()
    given = parser.parse_args(argv)
    if not given.out.absolute().parent.is_dir():
        parser.error(f"--out {given.out}: its folder does not exist")
    try:
        prior = _prior(given)
        runs = [load_run(folder) for folder in given.runs]
        file, lines = fitted(runs, prior, given.vllm_version)
    except (ValueError, BadInputError) as error:
        print(f"agentload fit: {error}", file=sys.stderr)
        return 2
    file.write(given.out)
    for line in lines:
        print(line)
    print(f"written: {given.out}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentload fit", description=__doc__)
    add = parser.add_argument
    add("runs", nargs="+", type=Path, metavar="RUN", help="run folders of one server's settings")
    add("--out", type=Path, default=Path("step-cost.json"), metavar="FILE",
        help="the step-cost file to write (default %(default)s)")  # fmt: skip
    add("--gpu", help="data sheet for the prior; without it hardly anything is assumed")
    add("--model-sheet", metavar="NAME", help="the model's data sheet, with --gpu")
    add("--vllm-version", default=None, metavar="V", help="of the server, if the run lacks it")
    return parser


def _prior(given: argparse.Namespace) -> Prior:
    if (given.gpu is None) != (given.model_sheet is None):
        raise ValueError("--gpu and --model-sheet go together")
    if given.gpu is None:
        return wide_prior()
    sheet = sheet_prior(given.gpu, given.model_sheet)
    values = {name: sheet.coefficient(name).value for name in ("c0", "c1", "c2", "c3", "c4")}
    return prior_around(values, 2.0, f"data sheets of {given.gpu} and {given.model_sheet}")


@dataclass(frozen=True, slots=True)
class _Part:
    """One run: its turns and what its manifest says of the server."""

    seen: list[Seen]
    in_force: InForce
    profile: str
    told_profile: bool


def fitted(
    runs: Sequence[Run], prior: Prior, version: str | None = None
) -> tuple[CostFile, list[str]]:
    """The file, and what to print. Raises ValueError for a run that cannot be fitted."""
    parts = [_part(run, version) for run in runs]
    waits = _frontend_delays(parts)
    frontend = frontend_belief(waits, 120) if waits is not None else None
    base_s, per_token_s = FRONTEND_BASE_S, FRONTEND_PER_TOKEN_S
    if frontend is not None:
        base_s, per_token_s = (float(value) for value in frontend.fit.theta[:2])
    fits = [
        fit_run(part.seen, engine_of(part.in_force, part.profile), prior, (base_s, per_token_s))
        for part in parts
    ]
    at = joined([fit.at for fit in fits])
    best = fit_form(at, prior, "linear")
    step = believe(at, prior, best)
    found = Estimate(step, frontend, {"linear": best.chi2}, condition_number(at, best), prior)
    depth = max(one.prompt_tokens for part in parts for one in part.seen)
    file = cost_file(
        found,
        measured="fitted",
        subject={"runs": ", ".join(run.manifest.run_id for run in runs)},
        source=f"{len(at)} windows of {sum(f.turns for f in fits)} turns; prior: {prior.source}",
        depth_tokens=depth,
        in_force=parts[0].in_force,
        version_profile=parts[0].profile if parts[0].told_profile else None,
    )
    return file, list(_lines(file, found, fits, parts))


def _part(run: Run, version: str | None) -> _Part:
    told = {**run.manifest.target, **run.manifest.settings}
    found, _ = settings_as_found(told)
    settings = InForce(
        max_num_batched_tokens=found.get("max_num_batched_tokens"),
        long_prefill_token_threshold=found.get("long_prefill_token_threshold"),
        chunked_prefill=found.get("enable_chunked_prefill"),
        prefix_caching=found.get("enable_prefix_caching"),
        max_num_seqs=found.get("max_num_seqs"),
        kv_blocks=found.get("num_blocks"),
        block_size=found.get("block_size"),
        max_model_len=found.get("max_model_len"),
    )
    release = version or told.get("vllm_version") or told.get("version")
    try:
        profile, known = version_profile(str(release)).name, release is not None
    except ProfileError:
        profile, known = NEWEST, False
    return _Part(seen_turns(run, settings.block_size or 16), settings, profile, known)


def _frontend_delays(parts: Sequence[_Part]) -> Observations | None:
    """From turns whose server told its own times; the rest of TTFT is the API server's."""
    told = [
        (one.prompt_tokens, one.frontend_s)
        for part in parts
        for one in part.seen
        if one.frontend_s is not None and one.frontend_s > 0
    ]
    if len(told) < 5:
        return None
    tokens, seconds = zip(*told, strict=True)
    return delays(tokens, seconds, [2e-3 + 0.1 * s for s in seconds])


def _lines(
    file: CostFile,
    found: Estimate,
    fits: Sequence[RunFit],
    parts: Sequence[_Part],
) -> Iterator[str]:
    for fit in fits:
        state = "settled" if fit.settled else "did NOT settle"
        yield f"{fit.turns} turns, {len(fit.at)} windows: {state} after {fit.rounds} rounds"
    own = sum(one.prefill_s is not None for part in parts for one in part.seen)
    if not own:
        yield "no turn has the server's own times: the wait in its queue is part of what is fitted"
    if not all(part.told_profile for part in parts):
        yield f"warning: the run does not tell vLLM's version: profile {NEWEST} is assumed"
    yield from coefficient_lines(file, found)
    yield from in_force_lines(file)
    yield "only the linear form is fitted: whole turns cannot tell it from the roofline"
    yield f"not modelled: {'; '.join(file.not_modelled)}"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
