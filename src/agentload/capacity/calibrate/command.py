"""The command `agentload calibrate`: step cost, API server and settings in force of a server."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from agentload.capacity.calibrate.gathered import Limits
from agentload.capacity.calibrate.probes import ProbeError
from agentload.capacity.cost.fit import Prior, prior_around, wide_prior
from agentload.client.settings import SettingsError, load_settings
from agentload.sim.profiles import NEWEST, ProfileError, ReplicaProfile, load_profile

DEFAULT_LIMIT_S, LONGEST_LIMIT_S = 120.0, 3600.0
DRY_GPU, DRY_MODEL = "H100-80G", "Qwen2.5-7B"


def main(argv: Sequence[str]) -> int:
    """Probe, fit, write the file. 0: written, 1: refused, 2: wrong call."""
    parser = _parser()
    given = parser.parse_args(argv)
    faults = list(_faults(given))
    if faults:
        parser.error("; ".join(faults))
    try:
        sheet = _sheet(given)
        prior = _prior(sheet)
        return _calibrate(given, prior, sheet)
    except (SettingsError, ProfileError) as error:
        print(f"agentload calibrate: {error}", file=sys.stderr)
        return 2
    except ProbeError as error:
        print(f"agentload calibrate: refused: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentload calibrate", description=__doc__)
    add = parser.add_argument
    add("--base-url", metavar="URL", help="the server; else OPENAI_BASE_URL")
    add("--api-key-file", metavar="FILE", help="file that holds the key; else OPENAI_API_KEY")
    add("--model", help="else OPENAI_MODEL, else the only one served")
    add("--ca-file", metavar="FILE", help="authority of the server's certificate (PEM)")
    add("--metrics-url", metavar="URL", help="the server's /metrics, if not beside it")
    add("--depth", type=int, default=32_768, metavar="TOKENS",
        help="context length to be planned for (default %(default)s)")  # fmt: skip
    add("--limit-s", type=float, default=DEFAULT_LIMIT_S, metavar="S",
        help="stop probing after so long (default %(default)s)")  # fmt: skip
    add("--out", type=Path, default=Path("step-cost.json"), metavar="FILE",
        help="the step-cost file to write (default %(default)s)")  # fmt: skip
    add("--gpu", help="data sheet for the prior; without it hardly anything is assumed")
    add("--model-sheet", metavar="NAME", help="the model's data sheet, with --gpu")
    add("--tensor-parallel", type=int, default=1, metavar="N", help="GPUs of a replica")
    add("--max-num-batched-tokens", type=int, metavar="N", help="in force, if you know it")
    add("--long-prefill-token-threshold", type=int, metavar="N", help="in force, if you know it")
    add("--async-scheduling", action=argparse.BooleanOptionalAction,
        help="in force, if you know it; else taken to be the release's default")  # fmt: skip
    add("--no-held-out", action="store_true", help="leave out the probe that checks the fit")
    add("--allow-busy", action="store_true", help="go on beside another load; widens intervals")
    add("--dry-run", action="store_true", help="calibrate the embedded simulator instead")
    return parser


def _faults(given: argparse.Namespace) -> list[str]:
    faults = []
    if given.depth < 600:
        faults.append(f"--depth {given.depth} must be at least 600")
    if not 10 <= given.limit_s <= LONGEST_LIMIT_S:
        faults.append(f"--limit-s {given.limit_s:g} must be from 10 to {LONGEST_LIMIT_S:g}")
    if (given.gpu is None) != (given.model_sheet is None):
        faults.append("--gpu and --model-sheet go together")
    if given.max_num_batched_tokens is not None and given.max_num_batched_tokens < 2:
        faults.append(f"--max-num-batched-tokens {given.max_num_batched_tokens} is below 2")
    if not given.out.absolute().parent.is_dir():
        faults.append(f"--out {given.out}: its folder does not exist")
    if given.dry_run and given.base_url:
        faults.append("--dry-run starts its own server: leave out --base-url")
    return faults


def _sheet(given: argparse.Namespace) -> ReplicaProfile | None:
    if given.gpu is None and not given.dry_run:
        return None
    gpu, model = given.gpu or DRY_GPU, given.model_sheet or DRY_MODEL
    return load_profile(gpu, model, tensor_parallel=given.tensor_parallel, vllm_version=NEWEST)


def _prior(sheet: ReplicaProfile | None) -> Prior:
    if sheet is None:
        return wide_prior()
    cost = sheet.cost
    values = {name: getattr(cost, name) for name in ("c0", "c1", "c2", "c3", "c4")}
    subject = sheet.cost_file.subject
    return prior_around(values, 2.0, f"data sheets of {subject['gpu']} and {subject['model']}")


def _calibrate(given: argparse.Namespace, prior: Prior, sheet: ReplicaProfile | None) -> int:
    server: AbstractContextManager[str | None] = nullcontext(given.base_url)
    if given.dry_run and sheet is not None:
        from agentload.capacity.calibrate.dry import simulator

        server = simulator(sheet, given.depth)
    with server as base_url:
        flags = {"base_url": base_url, "model": given.model, "api_key_file": given.api_key_file}
        settings, _ = load_settings({**flags, "ca_file": given.ca_file}, os.environ, None)
        # Before anything that sends is imported: TLS and sockets must be patched first.
        from gevent import monkey

        monkey.patch_all()
        from agentload.capacity.calibrate.session import Session, Wishes

        wishes = Wishes(
            depth=given.depth,
            limit_s=given.limit_s,
            metrics_url=given.metrics_url,
            limits=Limits(
                token_budget=given.max_num_batched_tokens,
                threshold=given.long_prefill_token_threshold,
                async_scheduling=given.async_scheduling,
            ),
            held_out=not given.no_held_out,
            allow_busy=given.allow_busy,
        )
        session = Session(settings, prior, wishes, _teller())
        file = session.run()
    file.write(given.out)
    for line in session.lines():
        print(line)
    if given.dry_run and sheet is not None:
        from agentload.capacity.calibrate.printing import step_lines, truth_lines

        truth = {n: sheet.cost_file.coefficient(n).value for n in ("c0", "c1", "c2", "c3", "c4")}
        if file.form == "linear":  # else the coefficients mean something else
            print("\n".join(truth_lines(file, truth)))
        print("\n".join(step_lines(file, sheet.cost)))
    print(f"written: {given.out}")
    return 0


def _teller() -> Callable[[str], None]:
    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
