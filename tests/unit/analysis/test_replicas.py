"""Replicas in a run whose truth is known: imbalance, moves, and their price in cache hits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentload.recording.record import ScrapeSample, TurnRecord
from analysis.diagnosis import diagnose
from analysis.measured import measure
from analysis.replicas import Replicas, replicas
from analysis.report.replicas import replicas_of, told
from analysis.results import analyse
from tests.unit.analysis import planted

A, B = "10.0.0.7:8000", "10.0.0.9:8000"
PROMPT, GROWN = 10_000, 1_000


def turns(plan: dict[str, str], kept: float = 1.0) -> list[TurnRecord]:
    """One session for each entry; each letter is the replica of one of its turns.

    A turn on the replica of the turn before finds `kept` of that turn's tokens cached, one on the
    other replica finds none.
    """
    rows = []
    for number, (session, letters) in enumerate(plan.items()):
        for i, letter in enumerate(letters):
            prompt = PROMPT + i * GROWN
            stays = i > 0 and letters[i - 1] == letter
            rows.append(
                planted.turn(
                    session,
                    i,
                    start=10.0 + 5 * i + number * 0.1,
                    replica={"a": A, "b": B, "-": None}[letter],
                    prompt_tokens=prompt,
                    planned_prompt_tokens=prompt,
                    planned_prefix_tokens=prompt - GROWN if i else 0,
                    cached_tokens=round(kept * (prompt - GROWN)) if stays else 0,
                    output_tokens=GROWN,
                )
            )
    return rows


def page(host: str, time_s: float, asked: float, hit: float) -> list[ScrapeSample]:
    endpoint, labels = f"http://{host}/metrics", '{"engine":"0"}'
    values = {"vllm:prefix_cache_queries_total": asked, "vllm:prefix_cache_hits_total": hit}
    return [ScrapeSample(time_s, endpoint, name, labels, v) for name, v in values.items()]


def found(
    folder: Path, rows: list[TurnRecord], scrape: list[ScrapeSample] | None = None
) -> Replicas | None:
    return replicas(measure(planted.write_run(folder, rows, scrape=scrape or [])))


def test_a_session_that_moves_pays_what_it_would_have_found(tmp_path: Path) -> None:
    # 10,000 11,000 12,000 13,000: turn 1 stays, turn 2 moves away from 11,000 tokens, turn 3 stays
    told_ = found(tmp_path, turns({"s0": "aabb", "s1": "bbbb"}))
    assert told_ is not None
    assert told_.moves is not None
    assert (told_.moves.followed, told_.moves.moved) == (6, 1)
    assert told_.moves.lost_tokens == pytest.approx(11_000)
    assert told_.moves.file_rows == (4,)  # line 1 is the header
    assert told_.moves.lost_share == pytest.approx(11_000 / (2 * 46_000))
    by_name = {row.name: row for row in told_.rows}
    assert (by_name[A].turns, by_name[A].sessions, by_name[A].prompt_tokens) == (2, 1, 21_000)
    assert (by_name[B].turns, by_name[B].sessions, by_name[B].prompt_tokens) == (6, 2, 71_000)
    assert told_.imbalance == pytest.approx(71_000 / 46_000)


def test_the_price_is_measured_against_those_that_stayed(tmp_path: Path) -> None:
    """A cache that keeps only half anyway has only half to lose."""
    told_ = found(tmp_path, turns({"s0": "aab", "s1": "bbb"}, kept=0.5))
    assert told_ is not None
    assert told_.moves is not None
    assert told_.moves.lost_tokens == pytest.approx(0.5 * 11_000)


def test_without_names_in_the_answers_the_pages_tell(tmp_path: Path) -> None:
    scrape = [
        *page(A, 9.0, 0, 0),
        *page(B, 9.0, 100, 50),
        *page(A, 30.0, 30_000, 24_000),
        *page(B, 30.0, 10_100, 2_050),
    ]
    told_ = found(tmp_path, turns({"s0": "----", "s1": "----"}), scrape)
    assert told_ is not None
    assert told_.moves is None
    assert [(r.name, r.turns, r.asked_tokens, r.hit) for r in told_.rows] == [
        (A, None, 30_000, 0.8),
        (B, None, 10_000, 0.2),
    ]
    assert told_.imbalance == pytest.approx(1.5)
    assert "no answer names it" in told(told_)


def test_pages_join_the_turns_only_under_the_same_names(tmp_path: Path) -> None:
    scrape = [*page(A, 9.0, 0, 0), *page(B, 9.0, 0, 0), *page(A, 30.0, 8, 4), *page(B, 30.0, 8, 2)]
    rows = turns({"s0": "aab", "s1": "bbb"})
    joined = found(tmp_path / "joined", rows, scrape)
    assert joined is not None
    assert [(r.name, r.turns, r.hit) for r in joined.rows] == [(A, 2, 0.5), (B, 4, 0.25)]
    pods = [replace(row, replica="pod-a" if row.replica == A else "pod-b") for row in rows]
    apart = found(tmp_path / "apart", pods, scrape)
    assert apart is not None
    assert [(r.name, r.turns, r.hit) for r in apart.rows] == [
        ("pod-a", 2, None),
        ("pod-b", 4, None),
    ]


def test_one_replica_is_no_table(tmp_path: Path) -> None:
    assert found(tmp_path / "one", turns({"s0": "aaa"})) is None
    assert found(tmp_path / "none", turns({"s0": "---"})) is None


@pytest.mark.slow
def test_the_report_shows_replicas_and_says_what_to_do(tmp_path: Path) -> None:
    wandering = {f"s{n}": "abab" if n % 2 else "baba" for n in range(10)}
    results = analyse([planted.write_run(tmp_path / "run", turns(wandering))])
    (table,) = replicas_of(results)
    assert [row[1:5] for row in table.rows] == [
        [A, "20", "10", "50.0 %"],
        [B, "20", "10", "50.0 %"],
    ]
    assert "100.0 % of 30 turns were answered by another replica" in table.note
    findings = {one.name: one for one in diagnose(results)}
    assert "sessions-change-replica" in findings
    assert "30 of 30 turns" in findings["sessions-change-replica"].evidence
    assert "replicas-uneven" not in findings
    kept = {f"s{n}": "aaaa" if n < 8 else "bbbb" for n in range(10)}
    results = analyse([planted.write_run(tmp_path / "kept", turns(kept))])
    names = [one.name for one in diagnose(results)]
    assert "replicas-uneven" in names
    assert "sessions-change-replica" not in names
