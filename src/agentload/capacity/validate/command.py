"""The command `agentload validate`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from agentload.capacity.plan.draws import at_speed, central
from agentload.capacity.plan.inputs import engine_config
from agentload.capacity.plan.what_if import parse_engine
from agentload.capacity.validate.replay import Row, Validation, validate
from agentload.console import output_console
from agentload.sim.core import EngineConfig
from agentload.sim.profiles.coefficients import CostFile, read_cost_file
from analysis.faults import BadInputError
from analysis.measured import Measured, measure

SCHEMA = "agentload.validation/1"
MISSED = 1


def main(argv: Sequence[str]) -> int:
    """Print predicted against measured.

    Exit code 0 when every pass mark is met, 1 when one is missed or nothing could be compared, 2
    for input that cannot be used.
    """
    options = _parser().parse_args(argv)
    try:
        file = read_cost_file(options.coefficients)
        measured = measure(options.run)
        config, notes = _config(file, measured, options)
        speed = measured.run.manifest.sim_speed or 1.0
        found = validate(measured, config, at_speed(central(file), speed))
    except (ValueError, BadInputError) as error:
        print(f"agentload validate: {error}", file=sys.stderr)
        return 2
    notes = [*notes, *found.notes]
    if options.json:
        print(json.dumps(_document(found, notes, file), indent=2))
    else:
        _show(found, notes, file, output_console())
    return 0 if found.passed else MISSED


def _config(
    file: CostFile, measured: Measured, options: argparse.Namespace
) -> tuple[EngineConfig, list[str]]:
    """The run's own settings over those the coefficients were measured with."""
    manifest = measured.run.manifest
    found, notes = settings_as_found({**manifest.target, **manifest.settings})
    config = engine_config(file, kv_blocks=found.pop("num_blocks", None))
    return parse_engine(config, found, options.set), notes


# EngineConfig field -> names under which a manifest may have it
_FOUND = {
    "num_blocks": ("num_gpu_blocks", "block_count", "num_blocks", "kv_blocks"),
    "block_size": ("block_size",),
    "max_model_len": ("max_model_len",),
    "max_num_seqs": ("max_num_seqs", "max-num-seqs"),
    "max_num_batched_tokens": ("max_num_batched_tokens", "max-num-batched-tokens"),
    "long_prefill_token_threshold": (
        "long_prefill_token_threshold", "long-prefill-token-threshold",
    ),
    "enable_chunked_prefill": ("enable_chunked_prefill", "enable-chunked-prefill"),
    "enable_prefix_caching": ("enable_prefix_caching", "enable-prefix-caching"),
}  # fmt: skip


def settings_as_found(settings: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """`EngineConfig` fields that a manifest tells, and a note on those it does not."""
    found: dict[str, Any] = {}
    for name, spellings in _FOUND.items():
        for spelling in spellings:
            value = settings.get(spelling)
            if isinstance(value, str) and value.isdecimal():
                value = int(value)
            if isinstance(value, bool | int):
                found[name] = value
                break
    missing = [name for name in _FOUND if name not in found]
    if not missing:
        return found, []
    text = ", ".join(missing)
    return found, [f"the run does not say {text}: taken from the coefficients' server"]


def _document(found: Validation, notes: list[str], file: CostFile) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "turns": found.turns,
        "passed": found.passed,
        "ttft_mape": found.ttft_mape,
        "rows": [{**asdict(row), "error": row.error, "passed": row.passed} for row in found.rows],
        "notes": notes,
        "not_modelled": file.not_modelled,
    }


def _show(found: Validation, notes: list[str], file: CostFile, console: Console) -> None:
    table = Table(show_edge=False, pad_edge=False)
    for name in ("figure", "turns", "predicted", "measured", "error", "mark", ""):
        table.add_column(name, justify="left" if name in ("figure", "") else "right")
    for row in found.rows:
        if row.predicted is not None and row.measured is not None:
            table.add_row(*_cells(row))
    console.print(table)
    if found.ttft_mape is not None:
        console.print(f"TTFT of single turns: mean error {found.ttft_mape:.1%}", highlight=False)
    for note in notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    text = ", ".join(file.not_modelled)
    console.print(f"Not modelled: {text}.", markup=False, highlight=False)


def _cells(row: Row) -> list[str]:
    error, passed = row.error, row.passed
    points = row.is_share
    verdict = "" if passed is None else "pass" if passed else "MISSED"
    return [
        row.figure,
        str(row.turns),
        _value(row.predicted),
        _value(row.measured),
        "-" if error is None else f"{error * 100:+.2f} points" if points else f"{error:+.1%}",
        "" if row.mark is None else f"{row.mark * 100:.0f} {'point' if points else '%'}",
        verdict,
    ]


def _value(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentload validate",
        description="Replay a run on the model and compare with what was measured in it.",
    )
    parser.add_argument("run", type=Path, metavar="RUN")
    parser.add_argument("--coefficients", type=Path, required=True, metavar="FILE")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KNOB=VALUE",
        help="an engine setting that the run does not say, as max_num_seqs=64",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true")
    return parser
