"""The report as a reader gets it: whole, offline, escaped, without secrets."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import planted
import pytest
from simulated import World

from analysis.report.command import NO_DATA, main
from analysis.results import analyse

HOSTILE = "<script>alert(1)</script>&\"'`$x_"
GOLDENS = Path(__file__).parents[2] / "goldens"


class Page(HTMLParser):
    """Tags, attributes and visible text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("href", "src", "srcset")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def two_arms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the report of two arms."""
    base = tmp_path_factory.mktemp("arms")
    given: dict[str, Any] = {"sessions": 12, "turns_each": 10, "budget": 2048}
    World(chunked=True, **given).run().write(base / "1", "chunked")
    World(chunked=False, **given).run().write(base / "2", "whole")
    assert main([str(base), "--out", str(base)]) == 0
    return base


@pytest.mark.slow
def test_a_report_of_two_arms_is_one_file_that_needs_no_network(
    two_arms: Path,
) -> None:
    text = (two_arms / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.links
    assert all(link.startswith("data:image/svg+xml;base64,") for link in page.links)
    assert "script" not in page.tags
    assert not re.search(r"url\(|@import|https?://(?!127\.0\.0\.1|www\.w3\.org)", text)
    words = " ".join(page.text)
    assert words.index("Load generator: valid") < words.index("The answer")
    assert words.index("The answer") < words.index("Findings") < words.index("The figures")
    assert "Chunked prefill is off" in words


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes_and_the_table(tmp_path: Path, capsys: Any) -> None:
    folder = planted.write_run(tmp_path / "run", [planted.turn("s0", 1, ttft=0.321)])
    for name in ("a", "b"):
        assert main([str(folder), "--out", str(tmp_path / name)]) == 0
    for name in ("report.html", "summary.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    shown = capsys.readouterr().out
    assert re.search(r"^tool +1 +321 ms\* +max 321 ms", shown, re.MULTILINE)
    assert str(tmp_path / "b" / "report.html") in shown.replace("\n", "")


def paths_of(value: Any, prefix: str = "") -> set[str]:
    """The keys of a summary as dotted paths; members of lists and of named maps are one."""
    if isinstance(value, dict):
        named = prefix.endswith((".classes", ".settings", ".differing_settings", "errors_by_class"))
        parts = (paths_of(v, f"{prefix}.{'*' if named else k}") for k, v in value.items())
        return set().union(*parts) if value else {prefix}
    if isinstance(value, list):
        return set().union(*(paths_of(v, f"{prefix}[]") for v in value)) if value else set()
    return {prefix}


@pytest.mark.slow
def test_the_keys_of_the_summary_stay_as_they_are(two_arms: Path) -> None:
    """Readers rely on them. To change them on purpose, delete the golden and run this again."""
    summary = json.loads((two_arms / "summary.json").read_text(encoding="utf-8"))
    found = "\n".join(sorted(paths_of(summary))) + "\n"
    golden = GOLDENS / "summary-keys.txt"
    if not golden.exists():
        golden.write_text(found, encoding="utf-8")
        pytest.fail(f"{golden.name} was missing and has been written: look at it, run again")
    assert found == golden.read_text(encoding="utf-8")


@pytest.mark.slow
def test_what_comes_from_files_is_text_never_markup(tmp_path: Path) -> None:
    rows = [
        planted.turn("_<b>s</b>", 1, ttft=0.3),
        planted.failed("s1", 1, HOSTILE, error_text=HOSTILE),
    ]
    folder = planted.write_run(
        tmp_path / "run",
        rows,
        [planted.trace(rows[0], [20_000] * 5 + [900_000])],
        arm={"name": HOSTILE, "settings": {HOSTILE: HOSTILE}},
        scenario={"name": HOSTILE},
        target={"model": HOSTILE, "base_url": HOSTILE},
        verdict={"level": "suspect", "reasons": [HOSTILE]},
    )
    assert main([str(folder)]) == 0
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert "script" not in page.tags
    assert "b" not in page.tags
    assert HOSTILE in " ".join(page.text)


@pytest.mark.slow
def test_secrets_of_the_inputs_are_in_no_output(tmp_path: Path, capsys: Any) -> None:
    row = planted.failed("s0", 0, "auth", error_text="key sk-abcdefgh12345678 refused")
    folder = planted.write_run(
        tmp_path / "run",
        [row, planted.turn("s1", 1)],
        target={"base_url": "http://me:hunter2@h:8000/v1", "model": "m"},
        arm={"name": "base", "settings": {"api_key": "opensesame", "hf_token": "open2"}},
    )
    for form in ("html", "md", "json"):
        assert main([str(folder), "--format", form]) == 0
    printed = capsys.readouterr()
    seen = printed.out + printed.err
    for name in ("report.html", "summary.json"):
        seen += (folder / name).read_text(encoding="utf-8")
    for secret in ("sk-abcdefgh12345678", "hunter2", "opensesame", "open2"):
        assert secret not in seen


@pytest.mark.slow
def test_scales_of_context_and_time_are_stated(tmp_path: Path) -> None:
    folder = planted.write_run(
        tmp_path / "run",
        [planted.turn("s0", 1)],
        scenario={"context_scale": 0.1},
        target={"sim_speed": 12.0, "model": "m"},
    )
    main([str(folder)])
    words = " ".join(Page((folder / "report.html").read_text(encoding="utf-8")).text)
    assert "Contexts are scaled by 0.1" in words
    assert "simulator at 12 × real time" in words


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verdict", "level"),
    [
        (
            {"level": "invalid", "reasons": ["3 turns were sent but are not in turns.csv"]},
            "invalid",
        ),
        (None, "unknown"),
    ],
)
def test_a_bad_verdict_stands_above_all(tmp_path: Path, verdict: Any, level: str) -> None:
    folder = planted.write_run(tmp_path / "run", [planted.turn("s0", 1)], verdict=verdict)
    main([str(folder)])
    words = " ".join(Page((folder / "report.html").read_text(encoding="utf-8")).text)
    assert f"Load generator: {level}" in words
    if verdict:
        assert verdict["reasons"][0] in words


def test_a_folder_that_cannot_be_read_writes_nothing(tmp_path: Path, capsys: Any) -> None:
    good = planted.write_run(tmp_path / "good", [planted.turn("s0", 1)])
    assert main([str(good), str(tmp_path / "none"), "--out", str(tmp_path / "out")]) == 2
    assert "is no folder" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_unknown_base_names_the_arms_there_are(tmp_path: Path, capsys: Any) -> None:
    good = planted.write_run(tmp_path / "good", [planted.turn("s0", 1)])
    assert main([str(good), "--base", "nope"]) == 2
    assert "no arm 'nope'; there are: base" in capsys.readouterr().err


@pytest.mark.slow
def test_no_data_is_said_and_the_rest_is_written(tmp_path: Path, capsys: Any) -> None:
    empty = planted.write_run(tmp_path / "empty", [], arm={"name": "empty"})
    full = planted.write_run(tmp_path / "full", [planted.turn("s0", 1)], arm={"name": "full"})
    assert main([str(empty)]) == NO_DATA
    assert "no turn was measured" in capsys.readouterr().err
    assert main([str(empty), str(full)]) == 0
    results = analyse([empty, full])
    assert results.comparison is not None
    assert results.comparison.differences == ()
    assert "no turn in common" in (empty / "report.html").read_text(encoding="utf-8")


def test_the_folder_of_an_experiment_stands_for_its_runs(tmp_path: Path, capsys: Any) -> None:
    for name in ("b", "a"):
        row = planted.turn("s0", 1)
        planted.write_run(tmp_path / name, [row], arm={"name": name})
    (tmp_path / "notes").mkdir()
    assert main([str(tmp_path), "--format", "json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [arm["name"] for arm in summary["arms"]] == ["a", "b"]


def test_markdown_for_a_pull_request(tmp_path: Path) -> None:
    row = planted.turn("s0", 1, ttft=0.25)
    folder = planted.write_run(tmp_path / "run", [row], arm={"name": "a|b<i>"})
    out = tmp_path / "report.md"
    assert main([str(folder), "--format", "md", "--out", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    assert text.startswith("**Load generator: valid.**")
    (line,) = [line for line in text.splitlines() if line.startswith("| a\\|b&lt;i>")]
    assert "| 250 ms" in line
    finding = next(line for line in text.splitlines() if line.startswith("- **"))
    assert "*Next:*" in finding
    assert "*Expected:*" in finding
    assert not (folder / "report.html").exists()


def test_locusts_own_csvs_give_what_they_can(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "x_stats.csv").write_text(
        "Type,Name,Request Count,Failure Count,Median Response Time,Average Response Time,"
        "Min Response Time,Max Response Time,Average Content Size,Requests/s,Failures/s,"
        "50%,66%,75%,80%,90%,95%,98%,99%,99.9%,99.99%,100%\n"
        "POST,chat,9,1,490,500,100,880,2048.0,0.5,0.0,490,600,600,700,800,890,890,890,890,890,890\n"
        "TTFT,ttft,8,0,10,10,1,20,0.0,0.5,0.0,10,10,10,10,10,10,10,10,10,10,20\n"
        ",Aggregated,17,1,490,500,1,880,2048.0,1.0,0.0,490,600,600,700,800,890,890,890,890,890,890\n",
        encoding="utf-8",
    )
    assert main([str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "POST" in shown
    assert "880 ms" in shown
    assert "890 ms" not in shown
    assert "5% off" in shown
    assert "TTFT ttft" in shown
