"""Public failures around the event stream (kind A, B05), in virtual time."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.sse_case import FOLDER, Played, load, measured, played, words

CASES = [path for path in sorted(FOLDER.glob("*.yaml")) if load(path)["input"]["type"] == "sse"]


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_expected_values(path: Path) -> None:
    case = load(path)
    got = words(measured(played(case["input"])))
    tolerance = case["expected"]["tolerance"]
    for name, value in case["expected"]["values"].items():
        expected = pytest.approx(value, abs=tolerance) if _is_number(value) else value
        assert got[name] == expected, name


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_known_wrong_values_do_not_come_out(path: Path) -> None:
    case = load(path)
    got = words(measured(played(case["input"])))
    for wrong in case.get("wrong", []):
        assert any(
            got[name] != pytest.approx(value, abs=1e-9) if _is_number(value) else got[name] != value
            for name, value in wrong["values"].items()
        )


def test_a_cut_stream_is_the_same_error_when_the_close_looks_clean() -> None:
    data = load(FOLDER / "A13-stream-cut-midway.yaml")["input"]
    for how in ("clean", "incomplete_chunked"):
        data["end"]["how"] = how
        assert words(measured(played(data)))["error"] == "stream_cut"


def test_the_servers_error_text_is_kept() -> None:
    data = load(FOLDER / "A12-error-object-inside-a-200.yaml")["input"]
    assert measured(played(data)).error_text == "engine stopped (code 500)"


def _is_number(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(v, (int, float)) for v in value)
    return isinstance(value, (int, float)) and not isinstance(value, bool)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CASES), st.data())
def test_any_split_of_the_bytes_gives_the_same_answer(path: Path, data: st.DataObject) -> None:
    whole = played({k: v for k, v in load(path)["input"].items() if k != "client"})
    body = bytes(whole.body)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=40)))
    edges = [0, *cuts, len(body)]
    split = Played(headers=whole.headers, end_ns=whole.end_ns, clean_end=whole.clean_end)
    for at, (start, stop) in enumerate(itertools.pairwise(edges)):
        split.body += body[start:stop]
        split.reads.add(at, b"", stop)
    assert _untimed(split) == _untimed(whole)


def _untimed(exchange: Played) -> dict[str, Any]:
    timed = ("ttft_s", "ttft_content_s", "gaps_s", "tpot_s", "e2e_s", "flags", "itl_usable")
    return {k: v for k, v in words(measured(exchange)).items() if k not in timed}
