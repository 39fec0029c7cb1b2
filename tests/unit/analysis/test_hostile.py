"""What people and accidents do to a run folder: a figure, or one clear error, never a traceback."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import planted
import pytest

from analysis.report.command import main

pytestmark = [pytest.mark.slow]

OK, BAD, NO_DATA = 0, 2, 3
Damage = Callable[[Path], object]


def folder(path: Path) -> Path:
    rows = [
        planted.turn(f"s{s}", i, start=10.0 + 3 * i + s / 10, cached_tokens=90_000 if i else 0)
        for s in range(3)
        for i in range(3)
    ]
    return planted.write_run(path, rows, [planted.trace(r, [20_000] * 5) for r in rows])


def cell(column: str, value: str, line: int = 2, file: str = "turns.csv") -> Damage:
    def change(run: Path) -> None:
        with (run / file).open(newline="") as stream:
            lines = list(csv.reader(stream))
        lines[line - 1][lines[0].index(column)] = value
        with (run / file).open("w", newline="") as stream:
            csv.writer(stream, lineterminator="\n").writerows(lines)

    return change


def whole(file: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda run: (run / file).write_bytes(change((run / file).read_bytes()))


def replaced(file: str, content: bytes) -> Damage:
    def write(run: Path) -> None:
        if file == "chunks.csv.gz":
            (run / "chunks.csv").unlink()
        (run / file).write_bytes(content)

    return write


def packed(change: Callable[[bytes], bytes]) -> Damage:
    def pack(run: Path) -> None:
        plain = run / "chunks.csv"
        (run / "chunks.csv.gz").write_bytes(change(gzip.compress(plain.read_bytes())))
        plain.unlink()

    return pack


def manifest(**given: Any) -> Damage:
    def change(run: Path) -> None:
        path = run / "manifest.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | given))

    return change


def scenario(**given: Any) -> Damage:
    return manifest(scenario={"name": "x", "seed": 1} | given)


def only(*rows: Any) -> Damage:
    return lambda run: planted.write_run(run, rows)


T, F = planted.turn, planted.failed

CASES: list[tuple[str, Damage, int, str]] = [
    ("not a number", cell("ttft_s", "nan"), BAD, "row 2, column ttft_s: 'nan': a finite number"),
    ("infinite", cell("e2e_s", "inf"), BAD, "column e2e_s: 'inf'"),
    ("overflowing", cell("ttft_s", "1e400"), BAD, "column ttft_s: '1e400'"),
    ("a comma in a number", cell("ttft_s", "0,5"), BAD, "column ttft_s: '0,5'"),
    ("digits put apart", cell("prompt_tokens", "100_000"), BAD, "column prompt_tokens: '100_000'"),
    ("seconds put apart", cell("ttft_s", "1_0.5"), BAD, "column ttft_s: '1_0.5': a finite number"),
    ("Arabic digits", cell("output_tokens", "\u0661\u0660"), BAD, "column output_tokens"),
    ("full-width digits", cell("first_chunk_s", "\uff15", 2, "chunks.csv"), BAD, "first_chunk_s"),
    ("a clock that jumped", cell("call_start_s", "1e9", 3), BAD,
     "row 3, column call_start_s: '1000000000.0': -3600 to 2592000 s"),
    ("a clock that jumped back", cell("end_s", "-4000", 3), BAD, "row 3, column end_s: '-4000.0'"),
    ("an end after the run's",
     lambda run: (manifest(ended_s=40.0)(run), cell("end_s", "3641", 3)(run)), BAD,
     "row 3, column end_s: '3641.0': -3600 to 3640 s"),
    ("negative tokens", cell("prompt_tokens", "-5"), BAD, "'-5': a whole number, 0 or more"),
    ("half a token", cell("prompt_tokens", "5.5"), BAD, "'5.5': a whole number, 0 or more"),
    ("more tokens than count", cell("prompt_tokens", "9" * 40), BAD, "column prompt_tokens"),
    ("a class of their own", cell("turn_class", "<script>"), BAD, "allowed are child, cold"),
    ("another spelling", cell("status", "SUCCESS"), BAD, "allowed are aborted, error, success"),
    ("no session", cell("session_id", ""), BAD, "column session_id: '': a value is needed"),
    ("another run's row", cell("run_id", "other", 3), BAD, "row 3, column run_id: 'other'"),
    ("answered before sent", cell("ttft_s", "-0.5"), OK, '"implausible": 1'),
    ("ended before begun", cell("e2e_s", "-3"), OK, '"implausible": 1'),
    ("no prompt", cell("prompt_tokens", "0", 4), OK, ""),
    ("more cached than sent", cell("cached_tokens", "99999999", 4), OK, ""),
    ("a byte order mark", whole("turns.csv", lambda b: b"\xef\xbb\xbf" + b), OK, ""),
    ("CRLF", whole("turns.csv", lambda b: b.replace(b"\n", b"\r\n")), OK, ""),
    ("blank lines", whole("turns.csv", lambda b: b.replace(b"\n", b"\n\n")), OK, ""),
    ("UTF-16", whole("turns.csv", lambda b: b.decode().encode("utf-16")), BAD, "column is missing"),
    ("semicolons", whole("turns.csv", lambda b: b.replace(b",", b";")), BAD, "a comma is needed"),
    ("zeroes", replaced("turns.csv", bytes(500)), BAD, "turns.csv"),
    ("a web page", replaced("turns.csv", b"<!doctype html><html>404"), BAD, "turns.csv"),
    ("one quote", whole("turns.csv", lambda b: b.replace(b"s0-0", b'"s0-0', 1)), BAD, "fields"),
    ("a torn end", whole("turns.csv", lambda b: b[:-30]), OK, "1 torn line"),
    ("half a header", whole("turns.csv", lambda b: b[:40]), BAD, "column is missing"),
    ("a row twice", whole("turns.csv", lambda b: b + b.split(b"\n")[1] + b"\n"), BAD, "row 11"),
    ("no turns.csv", lambda run: (run / "turns.csv").unlink(), NO_DATA, "turns.csv is missing"),
    ("gz cut in the middle", packed(lambda b: b[:60]), OK, ""),
    ("no gz", replaced("chunks.csv.gz", b"hello"), BAD, "chunks.csv.gz: is damaged"),
    ("a flipped byte", packed(lambda b: b[:40] + bytes([b[40] ^ 255]) + b[41:]), BAD, "damaged"),
    ("a gap of ages", cell("gaps_us", "9" * 20 + " 1 1 1 1", 2, "chunks.csv"), BAD, "at most"),
    ("a gap backwards", cell("gaps_us", "-1 1 1 1 1", 2, "chunks.csv"), BAD, "0 or more"),
    ("another version", manifest(schema_version=2), BAD, "schema 1 only"),
    ("true is no version", manifest(schema_version=True), BAD, "schema 1 only"),
    ("half a manifest", whole("manifest.json", lambda b: b[:100]), BAD, "is no JSON"),
    ("limits in words", scenario(slos={"tool": {"ttft_s": "fast"}}), BAD,
     "column scenario.slos.tool.ttft_s: '\"fast\"': a finite number is needed"),
    ("a limit for a class", scenario(slos={"tool": 3}), BAD, "column scenario.slos.tool: '3'"),
    ("limits in a list", scenario(slos=[1]), BAD, "column scenario.slos: '[1]'"),
    ("stalls in words", scenario(stalls={"min_s": "x"}), BAD, "column scenario.stalls.min_s"),
    ("stalls left open", scenario(stalls={"min_s": None}), OK, ""),
    ("a window that ends first", manifest(measured_from_s=1e9, measured_to_s=-1e9), NO_DATA, ""),
    ("odd reasons", manifest(verdict={"level": "suspect", "reasons": [{"a": 1}, None]}), OK, ""),
    ("odd settings", manifest(arm={"name": 5, "settings": {"block_size": [0]}}), OK, '"name": "5"'),
    ("no turns", only(), NO_DATA, "no turn was measured"),
    ("one turn", only(T("s", 1)), OK, '"n": 1'),
    ("only errors", only(*(F("s", i, "stream_cut") for i in range(5))), NO_DATA, "many-errors"),
    ("only cold turns", only(*(T(f"s{i}", 0) for i in range(5))), OK, '"cold"'),
    ("all alike", only(*(T(f"s{i}", 1) for i in range(30))), OK, '"std": 0.0'),
    ("no time at all", only(*(T(f"s{i}", 1, ttft=0.0, decode=0.0) for i in range(30))), OK, ""),
    ("no tokens told",
     only(*(T(f"s{i}", 1, prompt_tokens=None, output_tokens=None) for i in range(5))), OK, ""),
    ("a try that failed first",
     only(F("s", 1, "http_503", request_id="a"), T("s", 1, request_id="a", attempt=2)), OK,
     '"http_503": 1'),
    ("formulas", only(F("=1+1", 1, "=HYPERLINK()"), T("=cmd|x", 1)), OK, ""),
    ("control characters", only(T("a\x1b[31m\x07", 1), F("\u202e", 1, "x\x1b")), OK, ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "code", "told"), [c[1:] for c in CASES], ids=[c[0].replace(" ", "-") for c in CASES]
)
def test_a_damaged_folder_gives_figures_or_one_clear_error(
    tmp_path: Path, capsys: Any, damage: Damage, code: int, told: str
) -> None:
    run = folder(tmp_path / "run")
    damage(run)
    assert main([str(run), "--format", "json"]) == code
    printed = capsys.readouterr()
    assert told in printed.out + printed.err
    assert "Traceback" not in printed.err
    if code == BAD:
        assert printed.out == ""
    else:
        json.loads(printed.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
