"""A shard says whose it is, and its worker's counts reach the master without the rows."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from agentload.recording.csvfile import header_line
from agentload.recording.record import EVENTS_CSV, RunEvent
from agentload.recording.recorder import SHARD_ROWS, Recorder
from agentload.recording.relay import RESEND_AFTER_NS, ShardReceiver, ShardSender
from agentload.recording.shard import (
    Seal,
    Shard,
    ShardError,
    read_shard,
    sealed,
    shard_folder_name,
    write_shard,
)

SHARD = Shard("r1", "ab12", "5" * 64, "w0", 0, "host_12345678", "host")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    recorder = Recorder(tmp_path, SHARD_ROWS)
    recorder.record(RunEvent(1.0, "tick", "w0", "x"))
    recorder.record(RunEvent(2.0, "tick", "w0", "x"))
    recorder.close()
    return tmp_path


def test_a_seal_is_of_the_whole_file_and_the_header_is_no_row(folder: Path) -> None:
    rows = b"1.000000,tick,w0,x\n2.000000,tick,w0,x\n"
    whole = header_line(RunEvent) + rows
    assert (folder / EVENTS_CSV).read_bytes() == whole
    seals = sealed(folder)
    assert seals[EVENTS_CSV] == Seal(2, len(whole), zlib.crc32(whole))
    assert seals["turns.csv"].rows == 0


def test_a_shard_is_read_as_it_was_written(folder: Path) -> None:
    write_shard(folder, SHARD)
    assert read_shard(folder) == SHARD
    whole_shard = Shard(
        "r1", "", "5" * 64, "w3", 3, "host_2", "host", -12.5, 0.001, 9, 8, 1, sealed(folder),
        "complete",
    )  # fmt: skip
    write_shard(folder, whole_shard)
    assert read_shard(folder) == whole_shard


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"schema_version": 2}, "schema_version 2: allowed is 1"),
        ({"run_id": ""}, "run_id '': a text is needed"),
        ({"run_id": "a\nb"}, "run_id 'a\\nb'"),
        ({"rank": -1, "host": 7}, "rank -1: a whole number is needed"),
        ({"rank": True}, "rank True"),
        ({"clock_offset_s": "x"}, "clock_offset_s 'x': a finite number or null"),
        ({"state": "done"}, "state 'done': one of running, complete, interrupted"),
        ({"state": "complete"}, "the seals of a complete shard are needed"),
        ({"files": {"turns.csv": {}}}, "rows, size_bytes and crc32 of turns.csv"),
    ],
)
def test_faults_of_a_description_are_named(
    folder: Path, changes: dict[str, Any], told: str
) -> None:
    write_shard(folder, SHARD)
    raw = json.loads((folder / "shard.json").read_text(encoding="utf-8"))
    (folder / "shard.json").write_text(json.dumps(raw | changes), encoding="utf-8")
    with pytest.raises(ShardError) as caught:
        read_shard(folder)
    assert told in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", "nul", "[" * 50_000])
def test_what_is_no_description_is_refused(folder: Path, text: str) -> None:
    (folder / "shard.json").write_text(text, encoding="utf-8")
    with pytest.raises(ShardError, match=r"shard\.json"):
        read_shard(folder)


def test_a_huge_description_is_not_read(folder: Path) -> None:
    (folder / "shard.json").write_bytes(b" " * 1_000_001)
    with pytest.raises(ShardError, match="more than 1,000,000 bytes"):
        read_shard(folder)


def test_late_workers_of_one_rank_have_folders_of_their_own() -> None:
    names = {shard_folder_name("w4", f"host_{end}") for end in ("aaaaaaaa", "bbbbbbbb")}
    assert len(names) == 2


# -- rows that stay -------------------------------------------------------------------------------


def status(rows: int, final: bool = False) -> dict[str, Any]:
    kept = {"turns.csv": rows, "events.csv": 1}
    return {"final": final, "kept_in": "/there", "kept_rows": kept, "sent": rows}


@pytest.fixture
def receiver(tmp_path: Path) -> ShardReceiver:
    (tmp_path / "master").mkdir()
    return ShardReceiver(Recorder(tmp_path / "master"), "r1")


def test_counts_arrive_and_rows_stay(folder: Path, receiver: ShardReceiver) -> None:
    sender = ShardSender(folder, "r1", "c0", keeps_rows=True)
    first = sender.batch(0, status(5))
    assert first is not None
    assert first["parts"] == []
    assert not sender.answered(receiver.receive(first, 0))
    assert not sender.delivered
    assert sender.undelivered_rows() == 0
    assert receiver.kept_turns() == 5
    assert receiver.deliveries["c0"].kept_in == "/there"
    assert not receiver.deliveries["c0"].complete


def test_a_worker_that_keeps_its_rows_is_done_when_its_last_counts_were_answered(
    folder: Path, receiver: ShardReceiver
) -> None:
    sender = ShardSender(folder, "r1", "c0", keeps_rows=True)
    under_way = sender.batch(0, status(5))
    assert sender.batch(1, status(7, final=True)) is None
    sender.answered(receiver.receive(under_way, 0))
    assert not sender.delivered
    last = sender.batch(2, status(7, final=True))
    assert last is not None
    again = sender.batch(2 + RESEND_AFTER_NS, status(7, final=True))
    sender.answered(receiver.receive(last, 3))
    assert receiver.deliveries["c0"].complete
    assert receiver.kept_turns() == 7
    assert sender.delivered
    assert again is not None


@pytest.mark.parametrize("rows", [None, -3, "7", 2.5, [1]])
def test_nonsense_in_place_of_a_count_counts_as_none(receiver: ShardReceiver, rows: Any) -> None:
    sender_status = {**status(0), "kept_rows": {"turns.csv": rows}}
    message = {
        "run_id": "r1", "worker_id": "c0", "seq": 1, "columns": 0, "parts": [],
        "status": sender_status, "token": "",
    }  # fmt: skip
    receiver.receive(message, 0)
    assert receiver.kept_turns() == 0
