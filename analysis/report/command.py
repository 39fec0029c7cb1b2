"""The command `agentload report`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agentload.atomic_file import replace_text
from agentload.console import output_console
from agentload.recording.record import MANIFEST_JSON
from analysis.diagnosis import diagnose
from analysis.faults import BadInputError
from analysis.finding import Finding
from analysis.report import locust
from analysis.report.html import as_markdown, render
from analysis.report.summary import summary_text
from analysis.report.table import print_arms
from analysis.results import Results, analyse

NO_DATA = 3


def main(argv: Sequence[str]) -> int:
    """Analyse run folders and write the report.

    Exit code 0, 2 for input that cannot be read, 3 when no turn was measured (the report is
    written all the same).
    """
    options = _parser().parse_args(argv)
    try:
        if all(map(is_locust_only, options.runs)):
            return _locust(options.runs)
        options.runs = [folder for path in options.runs for folder in run_folders(path)]
        results = analyse(options.runs, base=options.base, keep_good_rows=options.keep_good_rows)
    except (BadInputError, ValueError) as error:
        print(f"agentload report: {error}", file=sys.stderr)
        return 2
    target = options.out or options.runs[0]
    try:
        _write(results, options.format, target)
    except OSError as error:
        print(f"agentload report: {target}: {error.strerror}", file=sys.stderr)
        return 2
    if not results.has_data:
        print("agentload report: no turn was measured", file=sys.stderr)
        return NO_DATA
    return 0


def run_folders(path: Path) -> list[Path]:
    """`path`, or the run folders in it when it is the folder of an experiment."""
    if (path / MANIFEST_JSON).exists() or not path.is_dir():
        return [path]
    return sorted(p.parent for p in path.glob(f"*/{MANIFEST_JSON}")) or [path]


def is_locust_only(path: Path) -> bool:
    """Whether there is no run folder, but CSV files of Locust."""
    return not (path / MANIFEST_JSON).exists() and bool(locust.stats_files(path))


def _locust(paths: Sequence[Path]) -> int:
    console = output_console()
    found = [locust.show(file, console) for path in paths for file in locust.stats_files(path)]
    return 0 if any(found) else NO_DATA


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentload report",
        description="Tables, findings and a report of one or several run folders.",
        epilog="Runs of the same arm are pooled; several arms are compared turn by turn.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help="a run folder, the folder of an experiment, or Locust's own *_stats.csv",
    )
    parser.add_argument("--format", choices=("html", "md", "json"), default="html")
    parser.add_argument(
        "--out",
        type=Path,
        help="folder (html) or file (md, json); default: the first run folder, or standard output",
    )
    parser.add_argument("--base", metavar="ARM", help="arm the others are compared with")
    parser.add_argument(
        "--keep-good-rows", action="store_true", help="leave faulty rows out, and count them"
    )
    return parser


def _write(results: Results, form: str, target: Path) -> None:
    """HTML writes `report.html` and `summary.json` and prints the table; others print or write."""
    findings = diagnose(results)
    if form == "html":
        if target.suffix == ".html":
            folder, name = target.parent, target.name
        else:
            folder, name = target, "report.html"
        write_report(results, findings, folder, name)
        console = output_console()
        print_arms([(arm.arm, list(arm.classes)) for arm in results.arms], console)
        for finding in findings:
            arm = f" ({finding.arm})" if len(results.arms) > 1 else ""
            console.print(f"{finding.title}{arm}. {finding.evidence}", markup=False)
        console.print(f"report: {folder / name}", markup=False)
        return
    text = as_markdown(results, findings) if form == "md" else summary_text(results, findings)
    if target.is_dir():
        sys.stdout.write(text)
    else:
        replace_text(target, text)


def write_report(
    results: Results, findings: Sequence[Finding], folder: Path, name: str = "report.html"
) -> None:
    """Write the page and `summary.json` into a folder, when both could be made."""
    page, numbers = render(results, findings), summary_text(results, findings)
    folder.mkdir(parents=True, exist_ok=True)
    replace_text(folder / "summary.json", numbers)
    replace_text(folder / name, page)
