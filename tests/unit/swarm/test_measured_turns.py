"""Turns of measured stages, read while they are written."""

from __future__ import annotations

from pathlib import Path

from agentload.recording.csvfile import csv_line, header_line
from agentload.recording.record import TurnRecord, columns
from agentload.swarm.measured_turns import MeasuredTurns


def line(stage: str, status: str, ttft_s: str) -> bytes:
    known = {"stage": stage, "status": status, "ttft_s": ttft_s, "error_text": 'a "b", c'}
    return csv_line([known.get(name, "") for name in columns(TurnRecord)])


def test_each_finished_turn_of_a_measured_stage_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "turns.csv"
    path.write_bytes(header_line(TurnRecord) + line("warm_up", "success", "9.0"))
    measured = MeasuredTurns(path, frozenset({"steady", "peak"}))
    measured.read()
    assert (measured.turns, measured.ttfts_s) == (0, [])
    whole = (
        line("steady", "success", "0.5") + line("peak", "error", "") + line("peak", "aborted", "1")
    )
    torn = line("steady", "success", "0.25")
    with path.open("ab") as file:
        file.write(whole + torn[:20])
    measured.read()
    assert (measured.turns, measured.ttfts_s) == (2, [0.5])
    with path.open("ab") as file:
        file.write(torn[20:])
    measured.read()
    measured.read()
    assert (measured.turns, measured.ttfts_s) == (3, [0.5, 0.25])
