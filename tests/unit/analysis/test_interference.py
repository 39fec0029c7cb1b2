"""Stalled seconds inside other turns' prefills, on timelines drawn by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import planted
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.interference import Coverage, Interference, interference, stall_check
from analysis.measured import measure

STALL = [20_000] * 10 + [2_000_000] + [20_000] * 10  # from 0.2 s after the first chunk, for 2 s


def victim(session: str = "victim", start: float = 10.0, **given: Any) -> tuple[Any, Any]:
    row = planted.turn(session, 1, start=start, ttft=1.0, decode=2.4, cached_tokens=99_900, **given)
    return row, planted.trace(row, STALL)  # stalled from start + 1.2 to start + 3.2


def prefill(session: str, start: float, end: float, tokens: int, **given: Any) -> Any:
    return planted.turn(
        session,
        0,
        start=start,
        ttft=end - start,
        server_prefill_s=end - start,
        cached_tokens=100_000 - tokens,
        **given,
    )


def found(folder: Path, rows: list, traces: list, to_s: float = 100.0) -> Interference:
    run = measure(planted.write_run(folder, rows, traces, measured_from_s=0.0, measured_to_s=to_s))
    result = interference(run)
    assert result is not None
    return result


def test_half_of_a_stall_inside_a_prefill_is_half_explained(tmp_path: Path) -> None:
    row, trace = victim()  # stalled 11.2 to 13.2
    rows = [row, prefill("big", 10.2, 12.2, 90_000)]
    result = found(tmp_path, rows, [trace])
    assert (result.stalls, result.stall_s) == (1, pytest.approx(2.0))
    assert result.explained_share == pytest.approx(0.5)
    assert result.chance_share is not None
    assert result.chance_share < 0.1  # 2 s of prefill in 100 s of run
    by_size = {s.low: s.explained_s for s in result.by_size if s.explained_s > 1e-9}
    assert by_size == {32_768.0: pytest.approx(1.0)}


def test_overlapping_prefills_explain_a_second_once_and_the_larger_one_gets_it(
    tmp_path: Path,
) -> None:
    row, trace = victim()
    rows = [row, prefill("small", 11.2, 13.2, 4_000), prefill("large", 11.2, 12.2, 90_000)]
    result = found(tmp_path, rows, [trace])
    assert result.explained_s == pytest.approx(2.0)
    by_size = {s.low: s.explained_s for s in result.by_size if s.explained_s > 1e-9}
    assert by_size == {2_048.0: pytest.approx(1.0), 32_768.0: pytest.approx(1.0)}


def test_a_prefill_on_another_replica_explains_nothing(tmp_path: Path) -> None:
    row, trace = victim(replica="r0")
    other = prefill("big", 11.2, 13.2, 90_000, replica="r1")
    assert found(tmp_path, [row, other], [trace]).explained_s == 0.0


def test_a_tiny_prefill_explains_nothing(tmp_path: Path) -> None:
    row, trace = victim()
    assert found(tmp_path, [row, prefill("tiny", 11.2, 13.2, 100)], [trace]).explained_s == 0.0


def test_where_prefills_never_end_chance_explains_as_much(tmp_path: Path) -> None:
    row, trace = victim()
    rows = [row, *(prefill(f"p{i}", 2.0 * i, 2.0 * i + 2.0, 50_000) for i in range(50))]
    result = found(tmp_path, rows, [trace])
    assert result.explained_share == pytest.approx(1.0)
    assert result.chance_share == pytest.approx(1.0, abs=0.03)


def test_without_stalls_there_is_no_share(tmp_path: Path) -> None:
    row = planted.turn("s0", 1)
    result = found(tmp_path, [row], [planted.trace(row, [20_000] * 10)])
    assert (result.stalls, result.explained_share, result.chance_share) == (0, None, None)


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(1, 10)), max_size=12),
    st.integers(0, 60),
    st.integers(0, 20),
)
def test_coverage_counts_every_covered_second_once(
    intervals: list[tuple[int, int]], start: int, length: int
) -> None:
    starts = np.array([float(a) for a, _ in intervals])
    ends = np.array([float(a + n) for a, n in intervals])
    covered = {t for a, n in intervals for t in range(a, a + n)}
    expected = sum(t in covered for t in range(start, start + length))
    result = Coverage(starts, ends).between(
        np.array([float(start)]), np.array([float(start + length)])
    )
    assert result.tolist() == [pytest.approx(expected)]


@pytest.mark.parametrize(("server_gaps", "confirmed"), [(40.0, True), (0.0, False)])
def test_the_servers_own_gaps_confirm_the_clients(
    tmp_path: Path, server_gaps: float, confirmed: bool
) -> None:
    pairs = [victim(f"v{i}") for i in range(10)]
    name = "vllm:inter_token_latency_seconds"
    scrape = []
    for t, scale in ((0.0, 0.0), (90.0, 1.0)):
        for le, value in (("0.1", 1000.0), ("0.3", 1000.0), ("+Inf", 1000.0 + server_gaps)):
            scrape.append(planted.gauge(t, f"{name}_bucket", value * scale, le=le))
        scrape.append(planted.gauge(t, f"{name}_sum", 60.0 * scale))
        scrape.append(planted.gauge(t, f"{name}_count", (1000.0 + server_gaps) * scale))
    folder = planted.write_run(tmp_path, [r for r, _ in pairs], [t for _, t in pairs], scrape)
    result = stall_check(measure(folder))
    assert result is not None
    assert (result.bound_s, result.client_gaps, result.server_gaps) == (0.3, 10, server_gaps)
    assert result.confirmed is confirmed
