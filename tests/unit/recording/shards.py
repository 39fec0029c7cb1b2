"""A run whose rows are in shards, written by the parts that write real ones."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agentload.recording.manifest import (
    Judgement,
    Manifest,
    ShardEntry,
    WorkerEntry,
    write_manifest,
)
from agentload.recording.record import ChunkTrace, LoadgenSample, Row, RunEvent, TurnRecord
from agentload.recording.recorder import SHARD_ROWS, Recorder, create_run_folder
from agentload.recording.shard import Shard, read_shard, sealed, write_shard

SALT, SCENARIO = "ab12", "5" * 64


def turn(worker: int, number: int, end_s: float) -> TurnRecord:
    empty: dict[str, Any] = dict.fromkeys(TurnRecord.__dataclass_fields__)
    return TurnRecord(
        **{
            **empty,
            "run_id": "r1",
            "worker_id": f"w{worker}",
            "session_id": f"s-{worker:06d}",
            "turn_index": number,
            "turn_class": "tool",
            "request_id": f"{worker:04x}{number:028x}",
            "stage": 'a "quoted", stage' if number % 3 == 0 else "steady",
            "intended_start_s": end_s - 1,
            "call_start_s": end_s - 1,
            "end_s": None if number % 5 == 4 else end_s,
            "lag_s": 0.0,
            "output_chunks": 3,
            "append_chars": 10,
            "status": "success",
            "attempt": 1,
        }
    )


def rows_of(worker: int, turns: int, from_s: float = 1.0) -> list[Row]:
    """What one worker writes: turns a second apart with their chunks, a sample, an event."""
    rows: list[Row] = [RunEvent(0.5 + worker, "tick", f"w{worker}", "begins")]
    for number in range(turns):
        end_s = from_s + number + worker / 10
        row = turn(worker, number, end_s)
        rows += [ChunkTrace(row.request_id, end_s - 0.5, (20_000, 21_000), (1, 1, 1), ""), row]
        rows.append(LoadgenSample(end_s, f"w{worker}", 0.1, 0.001, 0.002, 1, 1, 0, 0))
    return rows


def client_id(worker: int) -> str:
    return f"host-{worker}_{worker:032x}"


@dataclass
class ShardedRun:
    """The owner's folder and one shard a worker; each worker recorded `turns` turns."""

    root: Path
    turns: tuple[int, ...] = (4, 3)
    lost: frozenset[int] = frozenset()  # workers that were killed after their last row
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        entries = [self._entry(worker) for worker in range(len(self.turns))]
        manifest = Manifest(
            run_id="r1",
            scenario={"name": "steady", "seed": 1},
            arm={"name": "on-on", "settings": {}},
            target={"base_url": "http://127.0.0.1:1/v1"},
            stages=[],
            wall_start_unix_s=1_700_000_000.0,
            settings_sources={},
            chars_per_token=4.0,
            run_salt=SALT,
            corpus_fingerprint="0" * 16,
            workers=entries,
            rows_on="worker",
            scenario_sha256=SCENARIO,
        )
        self.folder = create_run_folder(self.root, manifest)
        owner = Recorder(self.folder)
        owner.record(RunEvent(0.0, "stages_begin", None, "at 0.000 s"))
        owner.record(RunEvent(99.0, "run_ends", None, "plan"))
        owner.close()
        manifest.counts.planned = manifest.counts.sent = sum(self.turns)
        manifest.counts.recorded = sum(self.turns)
        manifest.state, manifest.ended_by = "complete", "plan"
        manifest.verdict = Judgement("valid")
        manifest.evidence = {"turns_recorded": sum(self.turns), "clock_offset_error_s": 0.001}
        if self.lost:
            lost = [f"w{w} ({client_id(w)}): last heard of at 5.0 s" for w in sorted(self.lost)]
            manifest.evidence["workers_lost"] = lost
            manifest.verdict = Judgement("invalid", tuple(f"worker lost: {w}" for w in lost))
        write_manifest(self.folder, manifest)
        self.shards = [self._shard(worker) for worker in range(len(self.turns))]

    def _entry(self, worker: int) -> WorkerEntry:
        turns, ended_well = self.turns[worker], worker not in self.lost
        told = {"turns.csv": turns, "chunks.csv": turns, "loadgen.csv": turns, "events.csv": 1}
        return WorkerEntry(
            f"w{worker}",
            f"host-{worker}",
            0.25,
            0.001,
            lost_at_s=None if ended_well else 5.0,
            client_id=client_id(worker),
            planned=turns,
            sent=turns,
            dropped=0,
            shard=ShardEntry("/somewhere", told, ended_well),
        )

    def _shard(self, worker: int) -> Path:
        folder = self.root / "elsewhere" / f"w{worker}"
        folder.mkdir(parents=True)
        recorder = Recorder(folder, SHARD_ROWS)
        rows = rows_of(worker, self.turns[worker])
        self.rows += rows
        for row in rows:
            recorder.record(row)
        recorder.close()
        host, id_ = f"host-{worker}", client_id(worker)
        shard = Shard("r1", SALT, SCENARIO, f"w{worker}", worker, id_, host, 0.25, 0.001)
        shard.planned = shard.sent = self.turns[worker]
        shard.dropped = 0
        if worker not in self.lost:
            shard.files, shard.state = sealed(folder), "complete"
        write_shard(folder, shard)
        return folder

    def change_shard(self, worker: int, **changes: Any) -> None:
        write_shard(self.shards[worker], replace(read_shard(self.shards[worker]), **changes))

    def change_manifest(self, **changes: Any) -> None:
        path = self.folder / "manifest.json"
        raw = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(raw | changes), encoding="utf-8")

    def cut(self, worker: int, name: str, take: int) -> None:
        """Take bytes off the end of a file."""
        path = self.shards[worker] / name
        path.write_bytes(path.read_bytes()[:-take])
