"""Where a worker's rows lie, and what it says of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agentload.recording.recorder import SHARD_ROWS, Recorder, RowCounts
from agentload.recording.shard import ShardError, read_shard
from agentload.swarm.own_shard import OwnShard
from agentload.swarm.spec import RunSpec

SPEC = RunSpec(
    run_id="r1", run_salt="ab12", corpus_fingerprint="f", trace_fingerprint=None,
    scenario_json="{}", steps=(), base_url="http://h:1/v1", model="m", chars_per_token=4.0,
    max_model_len=None, run_start_ns=5, wall_start_unix_s=1.5, clock_identity=None,
    ranks={"host_0000aaaa": 0, "host_0000bbbb": 1}, stages_from_s=None,
)  # fmt: skip


def own(spec: RunSpec, root: Path, client_id: str = "host_0000bbbb") -> OwnShard:
    return OwnShard(spec, client_id, root / "runs", root / "spool")


def test_rows_that_stay_lie_in_the_run_folder_and_are_sealed_at_the_end(tmp_path: Path) -> None:
    shard = own(replace(SPEC, rows_on="worker"), tmp_path)
    shard.begin()
    assert shard.folder == tmp_path / "runs" / "r1" / "shards" / "w1-0000bbbb"
    assert read_shard(shard.folder).state == "running"
    Recorder(shard.folder, SHARD_ROWS).close()
    shard.seal({"planned": 3, "sent": 2, "dropped": 1, "clock_offset_s": -7.25})
    read = read_shard(shard.folder)
    assert (read.state, read.rank, read.worker_id) == ("complete", 1, "w1")
    assert (read.planned, read.sent, read.dropped) == (3, 2, 1)
    assert (read.clock_offset_s, read.clock_offset_error_s) == (-7.25, None)
    assert read.files is not None
    assert read.files["turns.csv"].rows == 0
    told = shard.status(RowCounts({"turns.csv": 2}))
    assert told == {"kept_in": str(shard.folder), "kept_rows": {"turns.csv": 2}}


def test_rows_that_go_to_the_master_lie_in_the_spool_and_can_be_merged_too(tmp_path: Path) -> None:
    shard = own(SPEC, tmp_path)
    shard.begin()
    assert shard.folder == tmp_path / "spool" / "r1" / "host_0000bbbb"
    assert read_shard(shard.folder).client_id == "host_0000bbbb"
    assert shard.status(RowCounts({"turns.csv": 2})) == {}


def test_nothing_is_added_to_the_rows_of_an_earlier_run(tmp_path: Path) -> None:
    spec = replace(SPEC, rows_on="worker")
    own(spec, tmp_path).begin()
    with pytest.raises(ShardError, match="is not empty: give --run-id"):
        own(spec, tmp_path).begin()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    with pytest.raises(ShardError, match="give the worker a --run-dir"):
        own(replace(SPEC, rows_on="worker"), tmp_path).begin()
