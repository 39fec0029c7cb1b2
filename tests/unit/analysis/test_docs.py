"""Every column, figure and finding has its line in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from agentload.recording.record import (
    ChunkTrace,
    LoadgenSample,
    RunEvent,
    ScrapeSample,
    TurnRecord,
    columns,
)
from analysis import diagnosis
from analysis.statistics import STATISTICS

DOCS = Path(__file__).parents[3] / "docs"


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("record", [TurnRecord, ChunkTrace, ScrapeSample, LoadgenSample, RunEvent])
def test_every_column_is_documented(record: type) -> None:
    documented = set(re.findall(r"`([a-z0-9_]+)`", text("run-folder.md")))
    assert set(columns(record)) <= documented


def test_every_figure_of_the_gate_is_documented() -> None:
    for statistic in STATISTICS:
        assert f"`{statistic.name}`" in text("reading-a-report.md")


def test_every_finding_is_documented() -> None:
    sources = "".join(
        path.read_text(encoding="utf-8") for path in Path(diagnosis.__file__).parent.glob("*.py")
    )
    names = set(re.findall(r'^\s+"([a-z]+(?:-[a-z]+)+)",$', sources, re.MULTILINE))
    assert len(names) > 15
    missing = {name for name in names if name not in text("reading-a-report.md")}
    assert missing == set()


def test_every_key_of_the_summary_is_documented() -> None:
    golden = Path(__file__).parents[2] / "goldens" / "summary-keys.txt"
    paths = [
        re.sub(
            r"(settings|classes)\.\*(?:(?<=settings\.\*).*)?", r"\1", line
        )  # named by the run, not by the schema
        for line in golden.read_text(encoding="utf-8").split()
    ]
    keys = {key for path in paths for key in re.findall(r"[a-z0-9_]+", path)}
    words = re.findall(r"`([^`\n]+)`", text("summary-json.md"))
    documented = {key for word in words for key in re.findall(r"[a-z0-9_]+", word)}
    assert len(keys) > 100
    assert keys - documented == set()
