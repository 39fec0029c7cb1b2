"""Shards become one run folder, or nothing at all."""

from __future__ import annotations

import csv
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from agentload.folder_lock import FolderLock
from agentload.recording.csvfile import row_line
from agentload.recording.merge_command import EXIT_INPUT, EXIT_MISSING, main
from agentload.recording.record import FILE_OF
from agentload.recording.recorder import Recorder
from analysis.faults import BadInputError
from analysis.load import load_run
from tests.unit.recording.shards import ShardedRun, client_id, rows_of, turn


@pytest.fixture
def run(tmp_path: Path) -> ShardedRun:
    return ShardedRun(tmp_path)


def merge(run: ShardedRun, *more: str | Path, out: str = "out") -> int:
    given = more or tuple(run.shards)
    return main([*map(str, (run.folder, *given)), "-o", str(run.root / out)])


def lines(folder: Path, name: str) -> list[bytes]:
    return (folder / name).read_bytes().splitlines(keepends=True)[1:]


def manifest(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "manifest.json").read_text(encoding="utf-8")))


def nothing_written(run: ShardedRun, out: str = "out") -> bool:
    return {path.name for path in run.root.iterdir()} <= {"r1", "elsewhere", "more"} and not (
        run.root / out
    ).exists()


def test_every_row_is_in_the_merged_run_once_and_unchanged(run: ShardedRun) -> None:
    assert merge(run) == 0
    out = run.root / "out"
    for row_type, name in FILE_OF.items():
        wanted = sorted(row_line(row) for row in run.rows if isinstance(row, row_type))
        if name == "events.csv":
            wanted = sorted([*wanted, *lines(run.folder, name)])
        assert sorted(lines(out, name)) == wanted, name
    counts = manifest(out)["counts"]
    assert counts == {"planned": 7, "sent": 7, "recorded": 7, "dropped": 0, "lost": 0}
    assert manifest(out)["verdict"] == {"level": "valid", "reasons": []}
    assert manifest(out)["state"] == "complete"


def test_rows_go_by_time_and_those_of_a_worker_in_their_order(run: ShardedRun) -> None:
    merge(run)
    with (run.root / "out" / "turns.csv").open(encoding="utf-8", newline="") as file:
        found = [(row["worker_id"], row["turn_index"]) for row in csv.DictReader(file)]
    assert found == [(w, i) for i in "012" for w in ("w0", "w1")] + [("w0", "3")]
    times = [float(line.split(b",")[0]) for line in lines(run.root / "out", "events.csv")]
    assert times == [0.0, 0.5, 1.5, 99.0]


def test_the_analysis_reads_the_merged_run_and_refuses_the_folder_without_rows(
    run: ShardedRun,
) -> None:
    merge(run)
    read = load_run(run.root / "out")
    assert len(read.turns) == 7
    assert len(read.loadgen) == 7
    assert read.notes == ()
    with pytest.raises(BadInputError, match="agentload merge"):
        load_run(run.folder)


def test_a_second_merge_changes_nothing_and_another_one_is_refused(
    run: ShardedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert merge(run) == 0
    out = run.root / "out"
    (out / "report.html").write_text("made of it", encoding="utf-8")
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()}
    assert merge(run, *reversed(run.shards)) == 0
    assert "was merged before" in capsys.readouterr().out
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()} == before
    assert merge(run, run.shards[0], "--allow-missing") == EXIT_INPUT
    assert "exists and holds something else" in capsys.readouterr().err
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in out.iterdir()} == before
    assert not list(run.root.glob(".*"))


def test_a_missing_shard_is_named_and_nothing_is_written(
    run: ShardedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert merge(run, run.shards[0]) == EXIT_MISSING
    told = capsys.readouterr().err
    assert f"no shard of: w1 ({client_id(1)}) on host-1: 3 turns; /somewhere" in told
    assert "--allow-missing" in told
    assert nothing_written(run)


def test_missing_shards_can_be_counted_as_lost_and_merged_later(run: ShardedRun) -> None:
    assert merge(run, run.shards[0], "--allow-missing", out="first") == 0
    first = manifest(run.root / "first")
    assert first["counts"] == {"planned": 7, "sent": 7, "recorded": 4, "dropped": 0, "lost": 3}
    assert first["verdict"]["level"] == "invalid"
    assert first["merged"]["missing"] == [f"w1 ({client_id(1)})"]
    reasons = " ".join(first["verdict"]["reasons"])
    assert "3 turns were sent but are not in turns.csv" in reasons
    assert "its shard is missing, with 3 turns" in reasons
    assert main([str(run.root / "first"), str(run.shards[1]), "-o", str(run.root / "both")]) == 0
    assert merge(run, out="at-once") == 0
    for name in FILE_OF.values():
        assert lines(run.root / "both", name) == lines(run.root / "at-once", name)
    assert manifest(run.root / "both")["counts"]["lost"] == 0
    assert manifest(run.root / "both")["verdict"]["level"] == "valid"


def test_a_shard_given_as_gzip_gives_the_same_rows(run: ShardedRun) -> None:
    assert merge(run, out="plain") == 0
    for name in ("chunks.csv", "turns.csv"):
        path = run.shards[0] / name
        with gzip.open(f"{path}.gz", "wb") as packed:
            packed.write(path.read_bytes())
        path.unlink()
    assert merge(run, *run.shards, "--gzip") == 0
    for name in ("turns.csv", "events.csv"):
        assert lines(run.root / "out", name) == lines(run.root / "plain", name)
    assert not (run.root / "out" / "chunks.csv").exists()
    with gzip.open(run.root / "out" / "chunks.csv.gz", "rb") as packed:
        assert packed.read() == (run.root / "plain" / "chunks.csv").read_bytes()
    assert load_run(run.root / "out").chunks_path is not None


def test_a_folder_of_shards_stands_for_them(run: ShardedRun) -> None:
    assert merge(run, run.root / "elsewhere", out="given") == 0
    shutil.copytree(run.root / "elsewhere", run.folder / "shards")
    assert main([str(run.folder)]) == 0
    assert lines(run.root / "r1-merged", "turns.csv") == lines(run.root / "given", "turns.csv")


# -- workers that died ----------------------------------------------------------------------------


def test_the_shard_of_a_killed_worker_is_taken_without_its_torn_line(tmp_path: Path) -> None:
    run = ShardedRun(tmp_path, lost=frozenset({1}))
    with (run.shards[1] / "turns.csv").open("ab") as file:
        file.write(b"r1,w1,s-0000")
    assert merge(run) == 0
    out = manifest(run.root / "out")
    assert out["counts"]["recorded"] == 7
    assert out["counts"]["lost"] == 0
    assert out["merged"]["shards"][1]["cut_at_the_end"] == ["turns.csv"]
    (reason,) = out["verdict"]["reasons"]
    assert "it did not end with the run; its shard has 3 turns, 0 more" in reason


def test_rows_that_a_dead_worker_had_not_delivered_join_an_ordinary_run(tmp_path: Path) -> None:
    """The master has the beginning of the shard, between rows of others."""
    run = ShardedRun(tmp_path, turns=(4, 3), lost=frozenset({1}))
    run.change_manifest(rows_on="master", counts={"planned": 7, "sent": 6, "recorded": 5})
    delivered = Recorder(run.folder)
    mine, theirs = rows_of(0, 4), rows_of(1, 1)
    for row in [*mine[:5], *theirs, *mine[5:]]:
        delivered.record(row)
    delivered.close()
    entries = manifest(run.folder)["workers"]
    entries[1] |= {"sent": 2, "planned": 2, "shard": None}
    run.change_manifest(workers=entries)
    assert merge(run, run.shards[1]) == 0
    out = run.root / "out"
    for row_type, name in FILE_OF.items():
        wanted = sorted(row_line(row) for row in run.rows if isinstance(row, row_type))
        found = sorted(line for line in lines(out, name) if b"stages_begin" not in line)
        assert [line for line in found if b"run_ends" not in line] == wanted, name
    assert manifest(out)["counts"] == {
        "planned": 8, "sent": 7, "recorded": 7, "dropped": 0, "lost": 0,
    }  # fmt: skip
    assert manifest(out)["merged"]["shards"][0]["rows_there_before"]["turns.csv"] == 1


def test_a_run_whose_owner_was_killed_is_merged_as_interrupted(run: ShardedRun) -> None:
    entries = [
        e | {"planned": None, "sent": None, "shard": None} for e in manifest(run.folder)["workers"]
    ]
    nobody = {"pid": 2**22 + 1, "verdict": None, "evidence": None, "counts": {}, "workers": entries}
    run.change_manifest(state="running", **nobody)
    assert merge(run) == 0
    out = manifest(run.root / "out")
    assert out["state"] == "interrupted"
    assert out["counts"] == {"planned": 7, "sent": 7, "recorded": 7, "dropped": 0, "lost": 0}
    assert out["verdict"]["level"] == "invalid"
    assert "was ended before it had judged it" in out["verdict"]["reasons"][0]


def test_a_run_that_goes_on_is_not_merged(
    run: ShardedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    run.change_manifest(state="running", pid=os.getpid())
    assert merge(run) == EXIT_INPUT
    assert "the run goes on" in capsys.readouterr().err


def test_a_shard_that_is_still_written_is_not_merged(
    run: ShardedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = FolderLock(run.shards[0])
    assert merge(run) == EXIT_INPUT
    assert "w0: its worker still writes it" in capsys.readouterr().err
    lock.release()
    assert merge(run) == 0


# -- input that cannot be used --------------------------------------------------------------------


def of_another_run(run: ShardedRun) -> None:
    run.change_shard(0, run_id="r2")


def of_a_namesake(run: ShardedRun) -> None:
    run.change_shard(0, run_salt="ffff")


def of_another_scenario(run: ShardedRun) -> None:
    run.change_shard(0, scenario_sha256="6" * 64)


def of_another_version(run: ShardedRun) -> None:
    run.change_shard(0, schema_version=2)


def of_a_stranger(run: ShardedRun) -> None:
    run.change_shard(0, client_id="host-9_9")


def of_another_worker(run: ShardedRun) -> None:
    run.change_shard(0, worker_id="w1")


def given_twice(run: ShardedRun) -> None:
    copy = run.root / "elsewhere" / "copy"
    shutil.copytree(run.shards[0], copy)
    run.shards.append(copy)


def given_twice_by_a_link(run: ShardedRun) -> None:
    link = run.root / "elsewhere" / "link"
    link.symlink_to(run.shards[0])
    run.shards.append(link)


def a_row_cut(run: ShardedRun) -> None:
    run.cut(0, "turns.csv", 5)


def a_whole_row_cut(run: ShardedRun) -> None:
    run.cut(0, "loadgen.csv", len(lines(run.shards[0], "loadgen.csv")[-1]))


def a_byte_changed(run: ShardedRun) -> None:
    path = run.shards[0] / "chunks.csv"
    path.write_bytes(path.read_bytes().replace(b"21000", b"21001", 1))


def other_columns(run: ShardedRun) -> None:
    path = run.shards[0] / "events.csv"
    path.write_bytes(b"time_s,kind\n1.0,x\n")


def a_file_that_is_a_link(run: ShardedRun) -> None:
    path = run.shards[0] / "events.csv"
    path.rename(run.root / "elsewhere" / "events.csv")
    path.symlink_to(run.root / "elsewhere" / "events.csv")


def a_description_that_is_a_link(run: ShardedRun) -> None:
    path = run.shards[0] / "shard.json"
    path.rename(run.root / "elsewhere" / "shard.json")
    path.symlink_to(run.root / "elsewhere" / "shard.json")


def a_file_that_is_a_pipe(run: ShardedRun) -> None:
    (run.shards[0] / "events.csv").unlink()
    os.mkfifo(run.shards[0] / "events.csv")


def a_file_missing(run: ShardedRun) -> None:
    (run.shards[0] / "chunks.csv").unlink()


def a_file_there_twice(run: ShardedRun) -> None:
    (run.shards[0] / "chunks.csv.gz").write_bytes(b"")


def a_damaged_gzip(run: ShardedRun) -> None:
    path = run.shards[0] / "chunks.csv"
    (run.shards[0] / "chunks.csv.gz").write_bytes(gzip.compress(path.read_bytes())[:-12])
    path.unlink()


def no_json(run: ShardedRun) -> None:
    (run.shards[0] / "shard.json").write_text("{" * 100_000, encoding="utf-8")


def of_no_kind(run: ShardedRun) -> None:
    path = run.shards[0] / "shard.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(raw | {"rank": "x", "files": {"turns.csv": 3}}), encoding="utf-8")


def fewer_rows_than_told(run: ShardedRun) -> None:
    run.cut(0, "turns.csv", len(lines(run.shards[0], "turns.csv")[-1]))
    run.change_shard(0, files=None, state="running")


def no_such_folder(run: ShardedRun) -> None:
    run.shards.append(run.root / "nowhere")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (of_another_run, "w0/shard.json: run_id 'r2': the run has 'r1'"),
        (of_a_namesake, "w0/shard.json: run_salt 'ffff': the run has 'ab12'"),
        (of_another_scenario, "scenario_sha256 '666"),
        (of_another_version, "w0/shard.json: schema_version 2: allowed is 1"),
        (of_a_stranger, "client_id 'host-9_9': the run has no such worker"),
        (of_another_worker, "worker_id 'w1': the run calls this worker 'w0'"),
        (given_twice, "copy: the shard of w0 (host-0_00000000000000000000000000000000) was given"),
        (given_twice_by_a_link, "link: the shard of w0"),
        (a_row_cut, "w0/turns.csv: 3 rows in "),
        (a_whole_row_cut, "w0/loadgen.csv: 3 rows in "),
        (a_byte_changed, "w0/chunks.csv: 4 rows in "),
        (other_columns, "w0/events.csv, row 1: other columns"),
        (a_file_that_is_a_link, "w0/events.csv: cannot be read: is a symbolic link"),
        (a_description_that_is_a_link, "w0/shard.json: is a symbolic link"),
        (a_file_that_is_a_pipe, "w0/events.csv: cannot be read: is no regular file"),
        (a_file_missing, "w0/chunks.csv: cannot be read: is missing"),
        (a_file_there_twice, "w0/chunks.csv: cannot be read: there is a chunks.csv.gz beside it"),
        (a_damaged_gzip, "w0/chunks.csv: cannot be read: Compressed file ended"),
        (no_json, "w0/shard.json: is no JSON"),
        (of_no_kind, "rank 'x': a whole number is needed"),
        (fewer_rows_than_told, "turns.csv has 3 rows; its worker told the run of 4"),
        (no_such_folder, "nowhere: the folder of a shard is needed"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_input_that_does_not_fit_is_named_and_nothing_is_written(
    run: ShardedRun, spoil: Any, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil(run)
    assert merge(run) == EXIT_INPUT
    assert told in capsys.readouterr().err
    assert nothing_written(run)


def test_all_faults_are_told_at_once(run: ShardedRun, capsys: pytest.CaptureFixture[str]) -> None:
    run.cut(0, "turns.csv", 5)
    a_file_missing(run)
    run.cut(1, "loadgen.csv", 3)
    assert merge(run) == EXIT_INPUT
    told = capsys.readouterr().err
    assert all(f in told for f in ("w0/turns.csv", "w0/chunks.csv", "w1/loadgen.csv"))


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (turn(1, 9, 9.0), "does not begin with 'r1,w0,'"),
        (turn(0, 2, 9.0), "request 0000000000000000000000000000000000000002"[:30]),
    ],
    ids=["of another worker", "a request twice"],
)
def test_rows_that_cannot_be_of_this_worker_are_found_in_a_shard_without_seal(
    run: ShardedRun, row: Any, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run.shards[0] / "turns.csv").open("ab") as file:
        file.write(row_line(row))
    run.change_shard(0, files=None, state="running")
    assert merge(run) == EXIT_INPUT
    assert told in capsys.readouterr().err
    assert nothing_written(run)


@pytest.mark.parametrize(
    "line", [b"x\n", b"r1,w0" + b"," * 58 + b"\n", b'"' * 9 + b"\n", b"\xff\xfe\n", b"nan,k,,d\n"]
)
def test_lines_that_are_no_rows_are_named_with_their_place(
    run: ShardedRun, line: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("turns.csv", "events.csv"):
        with (run.shards[0] / name).open("ab") as file:
            file.write(line)
    run.change_shard(0, files=None, state="running")
    assert merge(run) == EXIT_INPUT
    told = capsys.readouterr().err
    assert "w0/turns.csv, row 6: " in told
    assert "w0/events.csv, row 3: " in told
    assert nothing_written(run)


# -- kills ----------------------------------------------------------------------------------------

KILLED_AT = """
import os, signal, sys
from pathlib import Path
from agentload.recording import merge, merge_folder, merge_command

step, count = sys.argv[1], 0
def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)
if step == "row":
    merge.merged_lines = lambda *_: (x for i in range(9) for x in [die() if i == 3 else b"row\\n"])
elif step == "fsync":
    os.fsync = die
elif step == "manifest":
    merge.replace_json = die
elif step == "rename":
    merge.put = die
else:
    real = Path.rename
    Path.rename = lambda *a: (real(*a), die())
merge_command.main(sys.argv[2:])
"""


@pytest.mark.slow
@pytest.mark.parametrize("step", ["row", "fsync", "manifest", "rename", "after"])
def test_a_kill_leaves_the_whole_run_or_none_and_the_next_merge_makes_it(
    run: ShardedRun, step: str
) -> None:
    argv = [str(run.folder), *map(str, run.shards), "-o", str(run.root / "out")]
    killed = subprocess.run([sys.executable, "-c", KILLED_AT, step, *argv], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (run.root / "out").exists() == (step == "after")
    assert main(argv) == 0
    assert len(load_run(run.root / "out").turns) == 7
    assert not list(run.root.glob(".*"))


def test_two_merges_to_one_place_do_not_mix(
    run: ShardedRun, capsys: pytest.CaptureFixture[str]
) -> None:
    import fcntl

    building = run.root / ".out.merging"
    building.mkdir()
    lock = os.open(building, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert merge(run) == EXIT_INPUT
    assert "another merge writes it" in capsys.readouterr().err
    os.close(lock)
    assert merge(run) == 0


# -- size -----------------------------------------------------------------------------------------

MEMORY = """
import resource, sys
from agentload.recording import merge_command
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert merge_command.main(sys.argv[1:]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(run: ShardedRun) -> None:
    path = run.shards[0] / "chunks.csv"
    line = b"%032x,1.000000," + b"20000 " * 3_000 + b"20000,,\n"
    with path.open("ab") as file:
        for number in range(4_000):  # 72 MB
            file.write(line % (1 << 64 | number))
    run.change_shard(0, files=None, state="running")
    argv = [str(run.folder), *map(str, run.shards), "-o", str(run.root / "out")]
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, *argv], capture_output=True, text=True, check=True
    )
    assert int(done.stdout.split()[-1]) < 20_000  # KB
