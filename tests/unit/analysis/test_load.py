"""Run folders as they come: whole, torn, edited, mixed up, hostile."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import planted
import pytest

from analysis.faults import SHOWN_FAULTS, BadInputError
from analysis.load import load_run
from analysis.measured import measure


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = [planted.turn("s0", 0), planted.turn("s0", 1, start=20.0), planted.turn("s1", 0)]
    traces = [planted.trace(row, [20_000] * 100) for row in rows]
    return planted.write_run(tmp_path / "run", rows, traces)


def faults_of(folder: Path) -> list[str]:
    with pytest.raises(BadInputError) as caught:
        measure(folder)
    return str(caught.value).splitlines()


def edit(path: Path, old: str, new: str, count: int = 1) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, count), encoding="utf-8")


def test_a_whole_folder_gives_its_rows_and_no_notes(folder: Path) -> None:
    run = load_run(folder)
    assert list(run.turns["request_id"]) == ["s0-0", "s0-1", "s1-0"]
    assert run.turns["cached_tokens"].isna().all()
    assert list(run.turns["file_row"]) == [2, 3, 4]
    assert run.notes == ()


def test_a_spreadsheet_may_add_a_mark_quotes_and_crlf(folder: Path) -> None:
    path = folder / "turns.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    quoted = [",".join(f'"{cell}"' for cell in line.split(",")) for line in lines]
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(quoted).encode() + b"\r\n")
    assert list(load_run(folder).turns["ttft_s"]) == [0.5, 0.5, 0.5]


def test_semicolons_get_an_error_of_their_own(folder: Path) -> None:
    path = folder / "turns.csv"
    path.write_text(path.read_text(encoding="utf-8").replace(",", ";"), encoding="utf-8")
    assert faults_of(folder)[0] == (
        "turns.csv, row 1: fields are separated by ';', a comma is needed: save as CSV"
    )


def test_every_bad_value_is_named_at_once(folder: Path) -> None:
    path = folder / "turns.csv"
    header, first, second, third = path.read_text(encoding="utf-8").splitlines()
    cells = {name: i for i, name in enumerate(header.split(","))}

    def with_cell(line: str, name: str, value: str) -> str:
        parts = line.split(",")
        parts[cells[name]] = value
        return ",".join(parts)

    bad = [
        with_cell(first, "ttft_s", "nan"),
        with_cell(second, "prompt_tokens", "12.5"),
        with_cell(third, "turn_class", "warm"),
    ]
    path.write_text("\n".join([header, *bad]) + "\n", encoding="utf-8")
    assert faults_of(folder) == [
        "turns.csv, row 4, column turn_class: 'warm': allowed are child, cold, rebuild, tool, user",
        "turns.csv, row 2, column ttft_s: 'nan': a finite number, or nothing, is needed",
        "turns.csv, row 3, column prompt_tokens: '12.5': a whole number, 0 or more, or nothing, "
        "is needed",
        "--keep-good-rows: leaves faulty rows out and counts them",
    ]
    path.write_text("\n".join([header, first, *bad[1:]]) + "\n", encoding="utf-8")
    kept = measure(folder, keep_good_rows=True)
    assert list(kept.turns["request_id"]) == ["s0-0"]
    assert "row 3, column prompt_tokens" in kept.notes[0]


def test_many_faults_are_counted_and_the_first_are_shown(folder: Path) -> None:
    rows = [planted.turn(f"s{i}", 0, finish_reason=None) for i in range(100)]
    planted.write_run(folder, rows)
    path = folder / "turns.csv"
    path.write_text(path.read_text(encoding="utf-8").replace("planted-run", "other"), "utf-8")
    lines = faults_of(folder)
    assert lines[0] == (
        "turns.csv, row 2, column run_id: 'other': a row of another run; this folder is planted-run"
    )
    assert lines[-1] == f"... and {100 - SHOWN_FAULTS} more"


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("ttft_s", "ttft", "turns.csv, row 1, column ttft_s: column is missing"),
        ("run_id", "run_id,mood", "turns.csv, row 1, column mood: unknown column"),
        ("ttfo_s", "ttft_s", "turns.csv, row 1, column ttft_s: column is there more than once"),
    ],
)
def test_a_header_that_does_not_fit_is_named(folder: Path, old: str, new: str, text: str) -> None:
    edit(folder / "turns.csv", old, new)
    assert text in faults_of(folder)


def test_a_row_of_the_wrong_width_is_named(folder: Path) -> None:
    edit(folder / "turns.csv", ",s0-1,", ",s0-1,,", 1)
    assert faults_of(folder)[0] == "turns.csv, row 3: 53 fields, the header has 52"


def test_the_same_request_twice_is_named(folder: Path) -> None:
    path = folder / "turns.csv"
    text = path.read_text(encoding="utf-8")
    path.write_text(text + text.splitlines()[1] + "\n", encoding="utf-8")
    assert faults_of(folder)[0] == (
        "turns.csv, row 5, column request_id: 's0-0': the same request was there before"
    )
    assert len(load_run(folder, keep_good_rows=True).turns) == 3


def test_bytes_that_are_no_utf8_are_named(folder: Path) -> None:
    path = folder / "turns.csv"
    path.write_bytes(path.read_bytes().replace(b",s1,", b",s\xff1,"))
    assert faults_of(folder)[0] == (
        "turns.csv, row 4, column session_id: 's\\\\udcff1': is not UTF-8"
    )


def test_a_torn_last_line_is_left_out_and_counted(folder: Path) -> None:
    path = folder / "turns.csv"
    path.write_bytes(path.read_bytes()[:-40])
    run = load_run(folder)
    assert len(run.turns) == 2
    assert run.notes == ("turns.csv: 1 torn line at the end left out",)


def test_a_run_that_was_killed_is_called_interrupted(folder: Path) -> None:
    """A last line without its line end is not trusted then: its last number may be cut short."""
    edit(folder / "manifest.json", '"complete"', '"running"')
    path = folder / "turns.csv"
    path.write_bytes(path.read_bytes()[:-1])
    run = load_run(folder)
    assert run.manifest.state == "interrupted"
    assert len(run.turns) == 2
    assert run.notes[0].startswith("the run is interrupted")


def test_a_run_whose_process_lives_is_running(folder: Path) -> None:
    edit(folder / "manifest.json", '"complete"', f'"running", "pid": {os.getpid()}')
    assert load_run(folder).manifest.state == "running"


@pytest.mark.parametrize("text", ["", "header"])
def test_no_rows_are_no_data_not_an_error(folder: Path, text: str) -> None:
    path = folder / "turns.csv"
    header = path.read_text(encoding="utf-8").splitlines()[0]
    path.write_text(header + "\n" if text else "", encoding="utf-8")
    assert len(load_run(folder).turns) == 0


def test_missing_files_are_said_and_the_rest_is_read(folder: Path) -> None:
    for name in ("chunks.csv", "scrape.csv", "loadgen.csv"):
        (folder / name).unlink()
    measured = measure(folder)
    assert measured.notes == ("loadgen.csv is missing",)
    assert measured.run.chunks_path is None


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "manifest.json: is no JSON: Expecting property name"),
        ("[]", "manifest.json: holds no object"),
        (
            '{"schema_version": 1, "arm": ' + '{"a": ' * 600 + "1" + "}" * 601,
            "manifest.json: is nested too deeply",
        ),
        (
            '{"schema_version": 99}',
            "manifest.json, column schema_version: '99': this version reads run folders of "
            "schema 1 only",
        ),
        ('{"schema_version": 1, "state": "complete", "run_id": 7}', "column run_id: '7'"),
        ('{"schema_version": 1, "state": "done", "run_id": "r"}', "allowed are running, complete"),
        (
            '{"schema_version": 1, "state": "complete", "run_id": "r", "arm": []}',
            "column arm: '[]': an object is needed",
        ),
    ],
)
def test_a_faulty_manifest_is_named(folder: Path, text: str, fault: str) -> None:
    (folder / "manifest.json").write_text(text, encoding="utf-8")
    assert fault in faults_of(folder)[0]


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    assert "is no folder" in faults_of(tmp_path / "nothing")[0]
    assert "holds no manifest.json" in faults_of(tmp_path)[0]


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("s0-0,10.5,1 x,,", "column gaps_us: '1 x': whole microseconds, 0 or more, are needed"),
        ("s0-0,10.5,1 -2,,", "column gaps_us: '1 -2'"),
        ("s0-0,10.5,1 2,,.", "column gap_marks: '.': one of . m l for each of the 2 gaps"),
        ("s0-0,10.5,1 2,,.z", "column gap_marks: '.z'"),
        ("s0-0,10.5,1 2,1 1,", "column chunk_tokens: '1 1': 3 whole numbers are needed"),
        ("s0-0,soon,1 2,,", "column first_chunk_s: 'soon': a finite number is needed"),
        (",10.5,1 2,,", "column request_id: '': a value is needed"),
    ],
)
def test_a_bad_chunk_row_is_named(folder: Path, row: str, fault: str) -> None:
    (folder / "chunks.csv").write_text(
        "request_id,first_chunk_s,gaps_us,chunk_tokens,gap_marks\n" + row + "\n", "utf-8"
    )
    assert faults_of(folder)[0].startswith("chunks.csv, row 2, " + fault)


def test_chunks_may_be_compressed_and_torn(folder: Path) -> None:
    plain = folder / "chunks.csv"
    packed = gzip.compress(plain.read_bytes())
    plain.unlink()
    (folder / "chunks.csv.gz").write_bytes(packed)
    assert measure(folder).gaps.per_turn.gaps.tolist() == [100.0, 100.0, 100.0]
    (folder / "chunks.csv.gz").write_bytes(packed[: len(packed) // 2])
    assert len(measure(folder).turns) == 3


def test_secrets_in_the_manifest_and_in_error_texts_are_removed(tmp_path: Path) -> None:
    row = planted.failed("s0", 0, "auth", error_text="refused: Bearer abcdef123456 is wrong")
    folder = planted.write_run(
        tmp_path / "run",
        [row],
        target={"base_url": "http://user:hunter2@host:8000/v1", "api_key": "sk-verysecret99"},
        arm={
            "name": "base",
            "settings": {
                "max_num_batched_tokens": 2048,
                "command": ["vllm", "serve", "--api-key", "topsecret", "--port", "1"],
                "Authorization": "xyzzy",
            },
        },
    )
    run = load_run(folder)
    seen = json.dumps([run.manifest.target, run.manifest.settings, run.turns["error_text"][0]])
    for secret in ("hunter2", "verysecret", "topsecret", "xyzzy", "abcdef123456"):
        assert secret not in seen
    assert run.manifest.settings["max_num_batched_tokens"] == 2048
