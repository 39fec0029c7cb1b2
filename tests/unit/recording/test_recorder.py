"""The run folder stays readable whenever the process ends."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agentload.recording.csvfile import AppendOnlyFile, row_line
from agentload.recording.manifest import (
    Counts,
    Judgement,
    Manifest,
    WorkerEntry,
    checked_run_id,
    new_run_id,
    write_manifest,
)
from agentload.recording.record import EVENTS_CSV, FILE_OF, MANIFEST_JSON, RunEvent, columns
from agentload.recording.recorder import Recorder, RunFolderError, create_run_folder


def manifest(run_id: str = "r1") -> Manifest:
    return Manifest(
        run_id=run_id,
        scenario={"name": "steady", "seed": 1},
        arm={"name": "on-on", "settings": {}},
        target={"base_url": "http://127.0.0.1:1/v1"},
        stages=[],
        wall_start_unix_s=1_700_000_000.0,
        settings_sources={"api_key": "environment OPENAI_API_KEY"},
        chars_per_token=4.0,
        run_salt="ab12",
        corpus_fingerprint="0" * 16,
    )


def test_every_file_has_its_header_from_the_start(tmp_path: Path) -> None:
    Recorder(tmp_path)
    for row_type, name in FILE_OF.items():
        header = (tmp_path / name).read_text(encoding="utf-8")
        assert header == ",".join(columns(row_type)) + "\n"


def test_a_row_is_one_line_whatever_text_it_holds(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path)
    recorder.record(RunEvent(1.0, "first_error", "w0", 'a "quote", a comma\r\nand\na line\x00'))
    recorder.record(RunEvent(2.0, "end", None, "日本"))
    with (tmp_path / EVENTS_CSV).open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert (tmp_path / EVENTS_CSV).read_bytes().count(b"\n") == 3
    assert rows[1] == ["1.000000", "first_error", "w0", 'a "quote", a comma  and a line ']
    assert rows[2] == ["2.000000", "end", "", "日本"]


def test_a_row_is_on_file_when_record_returns(tmp_path: Path) -> None:
    """A process killed right after `record` has lost nothing."""
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from agentload.recording.record import RunEvent\n"
        "from agentload.recording.recorder import Recorder\n"
        "recorder = Recorder(Path(sys.argv[1]))\n"
        "for i in range(50):\n"
        "    recorder.record(RunEvent(float(i), 'tick', None, 'x' * 100))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    lines = (tmp_path / EVENTS_CSV).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 51
    assert lines[-1].startswith("49.000000,tick,,x")


def test_rows_the_disk_refuses_are_counted(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, (RunEvent,))
    recorder.record(RunEvent(1.0, "a", None, ""))
    os.close(recorder._files[EVENTS_CSV]._fd)
    recorder.record(RunEvent(2.0, "b", None, ""))
    assert recorder.rows.written == {EVENTS_CSV: 1}
    assert recorder.rows.refused == 1
    assert recorder.first_error == "events.csv: Bad file descriptor"


def test_a_write_that_fails_midway_leaves_no_torn_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = AppendOnlyFile(tmp_path / "f", b"header\n")
    real_write = os.write

    def half_then_full_disk(fd: int, data: bytes) -> int:
        if len(data) > 4:
            return real_write(fd, data[:4])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", half_then_full_disk)
    with pytest.raises(OSError, match="No space"):
        file.append(b"abcdefg\n")
    monkeypatch.undo()
    file.append(b"next\n")
    assert (tmp_path / "f").read_bytes() == b"header\nnext\n"


def test_the_manifest_is_replaced_in_one_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = create_run_folder(tmp_path / "runs", manifest())
    first = json.loads((folder / MANIFEST_JSON).read_text(encoding="utf-8"))
    assert first["state"] == "running"
    assert first["schema_version"] == 1

    def killed_before_the_rename(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed_before_the_rename)
    later = manifest()
    later.state = "complete"
    with pytest.raises(KeyboardInterrupt):
        write_manifest(folder, later)
    monkeypatch.undo()
    assert json.loads((folder / MANIFEST_JSON).read_text(encoding="utf-8")) == first


def test_the_manifest_holds_counts_workers_and_verdict(tmp_path: Path) -> None:
    run = manifest()
    run.counts = Counts(planned=5, sent=4, recorded=3, dropped=1, lost=1)
    run.workers = [WorkerEntry("w0", "host-a", 0.001, 0.0002)]
    run.verdict = Judgement("invalid", ("1 turns were sent but are not in turns.csv",))
    folder = create_run_folder(tmp_path, run)
    read = json.loads((folder / MANIFEST_JSON).read_text(encoding="utf-8"))
    assert read["counts"] == {"planned": 5, "sent": 4, "recorded": 3, "dropped": 1, "lost": 1}
    assert read["workers"][0]["clock_offset_error_s"] == 0.0002
    assert read["verdict"]["level"] == "invalid"


def test_an_existing_run_folder_is_never_written_into(tmp_path: Path) -> None:
    create_run_folder(tmp_path, manifest())
    before = (tmp_path / "r1" / MANIFEST_JSON).read_bytes()
    with pytest.raises(RunFolderError, match="exists: give another --run-id"):
        create_run_folder(tmp_path, manifest())
    assert (tmp_path / "r1" / MANIFEST_JSON).read_bytes() == before


def test_a_root_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    with pytest.raises(RunFolderError, match="give a --run-dir that can be written"):
        create_run_folder(tmp_path / "runs", manifest())


def test_run_ids_begin_with_the_utc_time_and_differ() -> None:
    ids = {new_run_id(1_700_000_000.0, "Steady Append/on_on") for _ in range(20)}
    assert len(ids) > 1
    assert all(i.startswith("20231114T221320Z-") for i in ids)
    assert all(i.endswith("-steady-append-on-on") for i in ids)
    assert {checked_run_id(i) for i in ids} == ids


@pytest.mark.parametrize("text", ["", "../x", "a/b", ".hidden", "a b", "x" * 101, "a\n"])
def test_a_run_id_that_is_no_folder_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="run id"):
        checked_run_id(text)


def test_a_header_is_not_written_twice(tmp_path: Path) -> None:
    AppendOnlyFile(tmp_path / "f", b"h\n").append(b"1\n")
    AppendOnlyFile(tmp_path / "f", b"h\n").append(row_line(RunEvent(1.0, "k", None, "d")))
    assert (tmp_path / "f").read_bytes() == b"h\n1\n1.000000,k,,d\n"
