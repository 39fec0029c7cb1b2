"""Rows reach the master complete and once, whatever gets lost on the way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentload.recording.csvfile import header_line
from agentload.recording.record import EVENTS_CSV, FILE_OF, RunEvent
from agentload.recording.recorder import SHARD_ROWS, Recorder
from agentload.recording.relay import (
    COLUMNS_CRC,
    HEADER_BYTES,
    RESEND_AFTER_NS,
    SHARD_FILES,
    ShardReceiver,
    ShardSender,
)


class Pair:
    """A worker's shard with its sender, and the master's folder with its receiver."""

    def __init__(self, root: Path) -> None:
        self.shard = root / "shard"
        self.master = root / "master"
        self.shard.mkdir(parents=True)
        self.master.mkdir(parents=True)
        self.written = Recorder(self.shard, SHARD_ROWS)
        self.sender = ShardSender(self.shard, "r1", "w0")
        self.receiver = ShardReceiver(Recorder(self.master), "r1")
        self.number = 0

    def write(self, rows: int) -> None:
        for _ in range(rows):
            self.number += 1
            self.written.record(RunEvent(float(self.number), "tick", "w0", "x"))

    def received(self) -> list[float]:
        lines = (self.master / EVENTS_CSV).read_text(encoding="utf-8").splitlines()[1:]
        return [float(line.split(",")[0]) for line in lines]


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_a_batch_is_acknowledged_and_only_new_rows_follow(pair: Pair) -> None:
    pair.write(3)
    first = pair.sender.batch(0, {})
    assert first is not None
    assert not pair.sender.answered(pair.receiver.receive(first, 0))
    pair.write(1)
    second = pair.sender.batch(1, {})
    assert second is not None
    assert [part[2].count(b"\n") for part in second["parts"]] == [1]
    pair.sender.answered(pair.receiver.receive(second, 1))
    assert pair.received() == [1, 2, 3, 4]
    assert pair.sender.delivered
    assert pair.sender.undelivered_rows() == 0


def test_the_next_batch_waits_for_the_answer_and_then_repeats(pair: Pair) -> None:
    pair.write(2)
    lost = pair.sender.batch(0, {})
    assert lost is not None
    assert pair.sender.batch(RESEND_AFTER_NS - 1, {}) is None
    again = pair.sender.batch(RESEND_AFTER_NS, {})
    assert again is not None
    assert again["parts"] == lost["parts"]
    assert pair.sender.undelivered_rows() == 2


def test_a_batch_that_arrives_twice_is_written_once(pair: Pair) -> None:
    pair.write(2)
    batch = pair.sender.batch(0, {})
    pair.receiver.receive(batch, 0)
    pair.receiver.receive(batch, 0)
    assert pair.received() == [1, 2]


def test_a_repeat_with_more_rows_adds_only_the_new_ones(pair: Pair) -> None:
    pair.write(2)
    pair.receiver.receive(pair.sender.batch(0, {}), 0)  # its answer is lost
    pair.write(2)
    again = pair.sender.batch(RESEND_AFTER_NS, {})
    pair.sender.answered(pair.receiver.receive(again, 0))
    assert pair.received() == [1, 2, 3, 4]
    assert pair.sender.delivered


def test_rows_after_a_gap_are_not_taken_and_the_answer_says_where_to_begin(pair: Pair) -> None:
    pair.write(2)
    pair.sender.acked[EVENTS_CSV] = 20  # as if another master had taken the first row
    answer = pair.receiver.receive(pair.sender.batch(0, {}), 0)
    assert answer["offsets"][EVENTS_CSV] == 0
    assert pair.sender.answered(answer)
    pair.sender.answered(pair.receiver.receive(pair.sender.batch(1, {}), 1))
    assert pair.received() == [1, 2]


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["ok", "batch lost", "answer lost", "twice"])),
        min_size=1,
        max_size=25,
    )
)
def test_any_mix_of_losses_ends_with_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, str]]
) -> None:
    pair = Pair(tmp_path_factory.mktemp("pair"))
    now = 0
    for rows, fate in [*steps, (0, "ok"), (0, "ok")]:
        pair.write(rows)
        now += RESEND_AFTER_NS
        batch = pair.sender.batch(now, {})
        assert batch is not None
        if fate == "batch lost":
            continue
        answer = pair.receiver.receive(batch, now)
        if fate == "twice":
            answer = pair.receiver.receive(batch, now)
        if fate != "answer lost":
            pair.sender.answered(answer)
    assert pair.received() == list(range(1, pair.number + 1))
    assert pair.sender.delivered


def test_a_backlog_goes_in_pieces_of_whole_rows(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentload.recording.relay.BATCH_BYTES", 50)
    pair.write(20)
    batches = 0
    more = True
    while more:
        batch = pair.sender.batch(batches, {})
        assert batch is not None
        assert all(part[2].endswith(b"\n") for part in batch["parts"])
        more = pair.sender.answered(pair.receiver.receive(batch, 0))
        batches += 1
    assert batches > 5
    assert pair.received() == list(range(1, 21))


def test_a_row_longer_than_a_batch_still_goes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentload.recording.relay.BATCH_BYTES", 50)
    pair.written.record(RunEvent(1.0, "tick", "w0", "x" * 500))
    pair.sender.answered(pair.receiver.receive(pair.sender.batch(0, {}), 0))
    assert pair.sender.delivered


def test_a_worker_is_complete_when_all_it_had_at_its_end_arrived(pair: Pair) -> None:
    pair.write(2)
    pair.sender.answered(pair.receiver.receive(pair.sender.batch(0, {}), 0))
    assert not pair.receiver.deliveries["w0"].complete
    pair.write(1)
    final = pair.sender.batch(1, {"final": True})
    assert final is not None
    pair.receiver.receive({**final, "parts": []}, 1)
    assert not pair.receiver.deliveries["w0"].complete
    pair.receiver.receive(final, 1)
    assert pair.receiver.deliveries["w0"].complete


def test_what_a_killed_worker_left_on_disk_is_taken_without_its_torn_line(pair: Pair) -> None:
    pair.write(2)
    pair.receiver.receive(pair.sender.batch(0, {}), 0)
    pair.write(3)
    with (pair.shard / EVENTS_CSV).open("ab") as file:
        file.write(b"6.000000,ti")
    assert pair.receiver.take_shard("w0", pair.shard) == 3
    assert pair.received() == [1, 2, 3, 4, 5]
    assert pair.receiver.take_shard("w0", pair.shard) == 0
    assert pair.receiver.take_shard("w1", pair.shard / "nowhere") == 0


GOOD: dict[str, Any] = {
    "run_id": "r1",
    "worker_id": "w0",
    "seq": 1,
    "columns": COLUMNS_CRC,
    "parts": [[EVENTS_CSV, 0, b"1.0,k,,d\n"]],
    "status": {},
}


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        [],
        {},
        {**GOOD, "run_id": "r2"},
        {**GOOD, "worker_id": 3},
        {**GOOD, "parts": None},
        {**GOOD, "status": []},
        {**GOOD, "parts": [["../../etc/passwd", 0, b"x\n"]]},
        {**GOOD, "parts": [["scrape.csv", 0, b"x\n"]]},
        {**GOOD, "parts": [[EVENTS_CSV, -1, b"x\n"]]},
        {**GOOD, "parts": [[EVENTS_CSV, 0, "x\n"]]},
        {**GOOD, "parts": [[EVENTS_CSV, 0, b"no line end"]]},
        {**GOOD, "parts": [7]},
    ],
)
def test_a_message_of_another_shape_is_refused_and_writes_nothing(pair: Pair, message: Any) -> None:
    answer = pair.receiver.receive(message, 0)
    assert answer["refused"]
    assert pair.received() == []
    assert pair.receiver.deliveries == {}


def test_a_worker_of_another_version_is_refused(pair: Pair) -> None:
    answer = pair.receiver.receive({**GOOD, "columns": 1}, 0)
    assert "different versions" in answer["refused"]
    assert pair.received() == []
    pair.write(1)
    pair.sender.batch(0, {})
    assert not pair.sender.answered(answer)
    assert pair.sender.refused


def test_an_answer_of_another_run_changes_nothing(pair: Pair) -> None:
    pair.write(1)
    pair.sender.batch(0, {})
    assert not pair.sender.answered({"run_id": "r0", "seq": 1, "offsets": {EVENTS_CSV: 99}})
    assert pair.sender.acked[EVENTS_CSV] == 0


def test_sizes_count_from_the_first_row(pair: Pair) -> None:
    assert set(HEADER_BYTES) == set(SHARD_FILES)
    assert pair.sender.sizes() == dict.fromkeys(SHARD_FILES, 0)


def row_of(name: str, *, fields: int | None = None) -> bytes:
    """One row of this file, or of one with another number of columns."""
    count = fields or HEADER[name].count(b",") + 1
    return b",".join([b"x"] * count) + b"\n"


HEADER = {FILE_OF[t]: header_line(t) for t in SHARD_ROWS}


@pytest.mark.parametrize("name", SHARD_FILES)
@pytest.mark.parametrize(
    "spoil",
    [
        lambda row: row[2:],  # a field is missing
        lambda row: b"x," + row,
        lambda row: b'"' + row,  # a quotation mark that nobody closes
        lambda row: row[:-1] + b"\r\n",
        lambda row: b"\x00" + row[1:],
        lambda row: b"\xff" + row[1:],
        lambda row: row + b"\n",
        lambda row: row + b"half a row\n",
    ],
)
def test_lines_that_are_no_rows_of_the_file_are_not_taken(
    pair: Pair, name: str, spoil: Callable[[bytes], bytes]
) -> None:
    good = {**GOOD, "parts": [[name, 0, row_of(name)]]}
    before = (pair.master / name).read_bytes()
    spoilt = {**GOOD, "parts": [[name, 0, spoil(row_of(name))]]}
    assert pair.receiver.receive(spoilt, 0)["offsets"][name] == 0
    assert (pair.master / name).read_bytes() == before
    assert pair.receiver.receive(good, 0)["offsets"][name] == len(row_of(name))


def test_commas_and_quotation_marks_inside_a_value_are_no_columns(pair: Pair) -> None:
    pair.written.record(RunEvent(1.0, "warning", "w0", 'a, "b", c\nd'))
    batch = pair.sender.batch(0, {})
    assert batch is not None
    pair.sender.answered(pair.receiver.receive(batch, 0))
    assert pair.sender.delivered
    assert pair.received() == [1.0]


def test_rows_are_taken_only_from_workers_of_the_run_that_know_its_token(tmp_path: Path) -> None:
    receiver = ShardReceiver(Recorder(tmp_path), "r1", {"w0"}, "secret")
    known = {**GOOD, "worker_id": "w0", "token": "secret"}
    for change in (
        {"token": "other"}, {"token": ""}, {"token": None}, {"token": "sécret"},
        {"worker_id": "w9"}, {"worker_id": "../w0"},
    ):  # fmt: skip
        answer = receiver.receive({**known, **change}, 0)
        assert answer["refused"] == "not a worker of this run"
        assert not answer["orphaned"]
    del known["token"]
    assert receiver.receive(known, 0)["refused"]
    assert receiver.deliveries == {}
    assert receiver.receive({**known, "token": "secret"}, 0)["refused"] is None


def test_a_worker_of_another_run_hears_that_its_rows_have_no_owner(pair: Pair) -> None:
    pair.write(2)
    pair.sender.run_id = "r0"
    batch = pair.sender.batch(0, {})
    assert batch is not None
    assert not pair.sender.answered(pair.receiver.receive(batch, 0))
    assert pair.sender.refused == "not the run that is being recorded"
    assert pair.sender.orphaned
    assert pair.sender.undelivered_rows() == 2


def test_after_the_end_nothing_is_taken_and_the_worker_hears_which(pair: Pair) -> None:
    pair.write(2)
    batch = pair.sender.batch(0, {"final": True})
    assert batch is not None
    pair.receiver.receive(batch, 0)  # its answer gets lost
    pair.receiver.close()
    again = pair.sender.batch(RESEND_AFTER_NS, {"final": True})
    assert again is not None
    pair.sender.answered(pair.receiver.receive(again, 0))
    assert pair.sender.delivered
    assert not pair.sender.orphaned
    pair.write(1)
    late = pair.sender.batch(2 * RESEND_AFTER_NS, {"final": False})
    assert late is not None
    pair.sender.answered(pair.receiver.receive(late, 0))
    assert pair.sender.orphaned
    assert "is over" in str(pair.sender.refused)
    assert pair.received() == [1.0, 2.0]
    assert pair.sender.undelivered_rows() == 1


def test_a_worker_is_done_when_its_last_word_was_answered(pair: Pair) -> None:
    """Its rows may all be there before the master hears that there will be no more."""
    pair.write(1)
    on_its_way = pair.sender.batch(0, {"final": False})
    assert on_its_way is not None
    assert pair.sender.batch(1, {"final": True}) is None  # the run ended meanwhile
    pair.sender.answered(pair.receiver.receive(on_its_way, 1))
    assert pair.sender.delivered
    assert not pair.sender.done
    assert not pair.sender.said_final
    assert not pair.receiver.deliveries["w0"].complete
    last = pair.sender.batch(2, {"final": True})
    assert last is not None
    pair.sender.answered(pair.receiver.receive(last, 2))
    assert pair.sender.done
    assert pair.receiver.deliveries["w0"].complete


def test_an_answer_that_brought_nothing_forward_is_not_answered_at_once(pair: Pair) -> None:
    pair.write(2)
    batch = pair.sender.batch(0, {})
    assert batch is not None
    nothing = {"run_id": "r1", "seq": 1, "offsets": dict.fromkeys(SHARD_FILES, 0)}
    assert not pair.sender.answered(nothing)
    some = {"run_id": "r1", "seq": 1, "offsets": {EVENTS_CSV: len(b"1.0,tick,w0,x\n")}}
    assert pair.sender.answered(some)
