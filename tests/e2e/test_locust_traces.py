"""Recorded sessions through the real Locust, and what is said when their file is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.locust_process import Bench, free_port, until

pytestmark = pytest.mark.slow

NO_WARM_UP = ("--set", "warm_up.turns_per_session=0")


def call(session: str, number: int, start_s: float, output: int, **more: Any) -> dict[str, Any]:
    """A call that adds 100 tokens to what was there, half a second after the answer before."""
    kept = 1500 + 100 * (number - 1) if number else 0
    return {
        "session": session,
        "call": number,
        "turn_class": "tool" if number else "cold",
        "wait_kind": "tool" if number else "none",
        "wait_s": 0.5 if number else None,
        "start_s": start_s,
        "keep_tokens": kept,
        "append_tokens": 100 if number else 1500,
        "output_tokens": output,
        **more,
    }


def session_file(folder: Path, calls: list[dict[str, Any]]) -> Path:
    head = {"format": "agentload-sessions", "version": 1, "source": "by hand"}
    path = folder / "s.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in [head, *calls]), encoding="utf-8")
    return path


def test_users_take_the_sessions_of_a_trace_in_its_order(bench: Bench, tmp_path: Path) -> None:
    calls = [call(f"s{i}", n, 0.0, 10 + 2 * i + n) for i in range(4) for n in range(2)]
    path = session_file(tmp_path, calls)
    trace = ("--set", f"trace.file={path}", "--set", "stop.after_turns=8")
    locust = bench.owner("--headless", "-u", "2", "-r", "2", "-t", "30s", *NO_WARM_UP, *trace)
    assert locust.wait() == 0, locust.output
    rows = bench.folder().rows()
    by_session: dict[str, list[dict[str, str]]] = {}
    for row in rows:
        by_session.setdefault(row["session_id"], []).append(row)
    for index in range(4):
        done = [row for row in by_session[f"t7-{index:06d}"] if row["status"] == "success"]
        assert [row["output_tokens"] for row in done] == [str(10 + 2 * index), str(11 + 2 * index)]
        first, second = done
        assert float(second["intended_start_s"]) == pytest.approx(
            float(first["end_s"]) + 0.5, abs=1e-3
        )
    assert bench.folder().manifest["trace_fingerprint"]


def test_absolute_replay_sends_at_the_recorded_instants_and_records_lateness(
    bench: Bench, tmp_path: Path
) -> None:
    """`late` is due while its first answer streams, so it is sent at once behind it."""
    calls = [
        call("second", 0, 1.5, 10),
        call("first", 0, 0.5, 10),
        call("first", 1, 3.0, 10),
        call("late", 0, 1.0, 200),
        call("late", 1, 1.1, 10),
    ]
    path = session_file(tmp_path, calls)
    trace = ("--set", f"trace={{file: {path}, replay: absolute}}")
    locust = bench.owner("--headless", "-u", "3", "-r", "3", "-t", "7s", *trace)
    assert locust.wait() == 0, locust.output
    run = bench.folder()
    from_s = run.manifest["measured_from_s"]
    rows = {(row["session_id"], row["turn_index"]): row for row in run.rows()}
    due = {
        key: float(row["intended_start_s"]) - from_s for key, row in rows.items()
    }  # index = place in the file
    assert due == pytest.approx(
        {
            ("t7-000000", "0"): 1.5,
            ("t7-000001", "0"): 0.5,
            ("t7-000001", "1"): 3.0,
            ("t7-000002", "0"): 1.0,
            ("t7-000002", "1"): 1.1,
        },
        abs=1e-3,
    )
    before, late = rows["t7-000002", "0"], rows["t7-000002", "1"]
    waited_s = float(before["end_s"]) - from_s - 1.1
    assert waited_s > 0.5
    assert float(late["lag_s"]) == pytest.approx(waited_s, abs=0.5)
    assert float(late["lag_s"]) >= waited_s
    assert all(row["stage"] == "run" for row in rows.values())  # no warm-up


def test_a_session_file_that_cannot_be_used_ends_the_run_before_it_begins(
    bench: Bench, tmp_path: Path
) -> None:
    missing = tmp_path / "none.jsonl"
    locust = bench.owner("--headless", "--set", f"trace.file={missing}")
    assert locust.wait() == 2
    assert f"{missing}: No such file or directory" in locust.output
    assert bench.folders() == []


@pytest.mark.parametrize("there", [False, True], ids=["missing", "another"])
def test_a_worker_with_no_or_another_session_file_is_refused(
    bench: Bench, tmp_path: Path, there: bool
) -> None:
    path = session_file(tmp_path, [call("s", 0, 0.0, 10)])
    port = str(free_port())
    wait = ("--expect-workers", "1", "--expect-workers-max-wait", "60")
    master = bench.owner(
        "--headless", "--master", "--master-bind-port", port, *wait, "--set", f"trace.file={path}"
    )
    until(lambda: "Waiting for workers" in master.output, "the master has read its file")
    if there:
        session_file(tmp_path, [call("s", 0, 0.0, 11)])
    else:
        path.unlink()
    bench.start("--worker", "--master-host", "127.0.0.1", "--master-port", port)
    assert master.wait() == 3, master.output
    refused = bench.folder().events()["worker_refused"]
    said = "differs from the master's" if there else "has to be at this path for every worker"
    assert said in refused
