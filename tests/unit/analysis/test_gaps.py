"""Gap figures from the stream against plain formulas on the same gaps."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import planted
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentload import turn_metrics as tm
from analysis.faults import BadInputError, FaultLog
from analysis.gap_histogram import DENSE_US, GapHistogram
from analysis.gaps import GapPass, read_gaps
from analysis.measured import measure
from analysis.turn_places import TurnKeys

GAPS = st.lists(st.integers(0, 3 * DENSE_US), max_size=40)


def gap_pass(tmp_path: Path, traces: list, tokens: list[float] | None = None) -> GapPass:
    """All traces as turns of group 0, in order."""
    planted.write_run(tmp_path, [], traces)
    keys = TurnKeys(
        pd.Series([t.request_id for t in traces]).astype("category"),
        np.ones(len(traces), dtype=bool),
        np.zeros(len(traces), dtype=int),
        np.array(tokens if tokens is not None else [math.nan] * len(traces)),
    )
    log = FaultLog()
    found = read_gaps(tmp_path / "chunks.csv", keys, tm.StallRule(), log)
    log.raise_if_any()
    return found


@given(GAPS.filter(bool), st.floats(0, 1))
def test_a_histogram_gives_exact_statistics(gaps: list[int], q: float) -> None:
    hist = GapHistogram()
    for part in (gaps[::2], gaps[1::2]):
        hist.add(np.array(part, dtype=np.int64))
    seconds = np.array(gaps) / 1e6
    assert hist.count == len(gaps)
    assert hist.percentile(q) == pytest.approx(float(np.quantile(seconds, q)), abs=1e-9)
    assert hist.mean() == pytest.approx(float(seconds.mean()))
    assert hist.range_s() == (seconds.min(), seconds.max())
    if len(gaps) > 1:
        assert hist.std() == pytest.approx(float(seconds.std(ddof=1)), abs=1e-9)
    assert hist.count_above(0.25) == int((seconds > 0.25).sum())


def test_an_empty_histogram_knows_nothing() -> None:
    hist = GapHistogram()
    assert (hist.count, hist.percentile(0.5), hist.mean(), hist.std(), hist.range_s()) == (
        0,
        None,
        None,
        None,
        None,
    )


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None
)
@given(turns=st.lists(st.tuples(GAPS, st.integers(0, 2**32)), min_size=1, max_size=6))
def test_streamed_figures_equal_the_formulas_of_a_turn(
    tmp_path: Path, turns: list[tuple[list[int], int]]
) -> None:
    traces = []
    for i, (gaps, seed) in enumerate(turns):
        marks = "".join(np.random.default_rng(seed).choice(list("....ml"), len(gaps)))
        traces.append(planted.trace(planted.turn(f"s{i}"), gaps, marks if seed % 3 else ""))
    found = gap_pass(tmp_path, traces).per_turn
    for i, t in enumerate(traces):
        usable = tm.usable_gaps_s(t.gaps_us, t.gap_marks)
        expected = tm.gap_figures(usable)
        assert found.gaps[i] == len(usable)
        for column, value in [
            (found.p50_s, expected.itl_p50_s),
            (found.p99_s, expected.itl_p99_s),
            (found.max_s, expected.itl_max_s),
            (found.jitter_s, expected.jitter_s),
            (found.stall_count, expected.stall_count),
            (found.stall_s, expected.stall_s),
        ]:
            assert column[i] == pytest.approx(value if value is not None else math.nan, nan_ok=True)


def test_stalls_know_when_they_began_and_whose_they_are(tmp_path: Path) -> None:
    calm = planted.trace(planted.turn("s0"), [20_000] * 10)
    hit = planted.trace(planted.turn("s1", start=30.0), [20_000] * 5 + [700_000] + [20_000] * 5)
    found = gap_pass(tmp_path, [calm, hit]).stalls
    assert found.turn.tolist() == [1]
    assert found.start_s.tolist() == [pytest.approx(30.5 + 0.1)]
    assert found.length_s.tolist() == [pytest.approx(0.7)]


def test_gaps_that_the_client_spoiled_are_no_stalls(tmp_path: Path) -> None:
    late = planted.trace(planted.turn("s0"), [20_000] * 9 + [5_000_000], "." * 9 + "l")
    found = gap_pass(tmp_path, [late])
    assert found.stalls.length_s.tolist() == []
    assert found.per_turn.late.tolist() == [1.0]
    assert found.raw[0].count == 9


@pytest.mark.parametrize(
    ("gaps", "marks", "tokens", "expected"),
    [
        ([30_000, 30_000], "", (1, 3, 1), [10_000] * 3 + [30_000]),
        # the second and third chunk came in one read: four tokens after the first gap
        ([40_000, 5, 20_000], ".m.", (1, 1, 3, 1), [10_000] * 4 + [20_000]),
        # a merged first gap belongs to the first chunk
        ([3, 20_000], "m.", (1, 1, 2), [10_000] * 2),
        ([40_000, 20_000], "l.", (1, 2, 1), [20_000]),
    ],
)
def test_gaps_per_token(
    tmp_path: Path, gaps: list[int], marks: str, tokens: tuple[int, ...], expected: list[int]
) -> None:
    trace = planted.trace(planted.turn("s0"), gaps, marks, tokens)
    after_another = planted.trace(planted.turn("s1"), [7_000], "", (1, 1))
    found = gap_pass(tmp_path, [after_another, trace]).per_token[0]
    values, counts = found.points()
    pooled = np.repeat(np.rint(values * 1e6).astype(int), counts)
    assert pooled.tolist() == sorted([7_000, *expected])


def test_without_token_counts_a_chunk_is_a_token_only_where_the_numbers_agree(
    tmp_path: Path,
) -> None:
    traces = [planted.trace(planted.turn(f"s{i}"), [10_000] * 9) for i in range(3)]
    found = gap_pass(tmp_path, traces, tokens=[10.0, 11.0, 25.0])
    assert found.per_token[0].count == 18
    assert found.turns_without_token_counts == 1


def test_rows_of_turns_that_do_not_count_are_passed_over(tmp_path: Path) -> None:
    rows = [planted.turn("s0"), planted.failed("s1", 0, "stream_cut")]
    other = planted.trace(planted.turn("s9"), [10_000] * 5)
    planted.write_run(tmp_path, rows, [planted.trace(rows[0], [20_000] * 4), other])
    ids = pd.Series(["s0-0", "s1-0"]).astype("category")
    keys = TurnKeys(ids, np.ones(2, dtype=bool), np.array([0, -1]), np.zeros(2))
    found = read_gaps(tmp_path / "chunks.csv", keys, tm.StallRule(), FaultLog())
    assert found.raw[0].count == 4
    assert found.unknown_rows == 1


def test_attempts_with_one_request_id_have_their_rows_in_order(tmp_path: Path) -> None:
    """The first try had no stream, the second was cut, the third is whole."""
    tries = [
        planted.failed("s0", 1, "http_503", request_id="r"),
        planted.turn("s0", 1, request_id="r", attempt=2, status="error", error_class="stream_cut"),
        planted.turn("s0", 1, request_id="r", attempt=3, start=20.0),
    ]
    other = planted.turn("s1", 1, request_id="q")
    traces = [
        planted.trace(tries[1], [500_000] * 3),
        planted.trace(other, [30_000] * 3),
        planted.trace(tries[2], [20_000] * 4),
    ]
    folder = planted.write_run(tmp_path / "run", [*tries, other], traces)
    found = measure(folder).gaps
    assert found.per_turn.max_s.tolist() == pytest.approx(
        [math.nan] * 2 + [0.02, 0.03], nan_ok=True
    )
    assert sum(hist.count for hist in found.raw.values()) == 7


def test_a_row_of_gaps_more_than_streams_is_a_fault(tmp_path: Path) -> None:
    row = planted.turn("s0", 1)
    traces = [planted.trace(row, [20_000] * 3), planted.trace(row, [20_000] * 3)]
    folder = planted.write_run(tmp_path / "run", [row], traces)
    with pytest.raises(BadInputError, match="row 3, column request_id: 's0-1': more rows"):
        measure(folder)
    kept = measure(folder, keep_good_rows=True)
    assert sum(hist.count for hist in kept.gaps.raw.values()) == 3
    assert "1 faulty rows left out" in kept.notes[-1]
