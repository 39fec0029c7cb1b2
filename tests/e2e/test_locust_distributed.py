"""Runs on several workers: nothing is lost, and what cannot be saved is named."""

from __future__ import annotations

import os
import signal
from collections import defaultdict

import pytest

from tests.e2e.locust_process import Bench, Locust, RunFolder, free_port, until

pytestmark = pytest.mark.slow

Turns = dict[str, list[tuple[str, ...]]]
PLANNED = ("turn_index", "turn_class", "append_chars", "planned_prompt_tokens")


def planned_turns(run: RunFolder) -> Turns:
    """What each session planned, in order; the run's salt and timing are not in it."""
    turns: Turns = defaultdict(list)
    for row in sorted(run.rows(), key=lambda row: int(row["turn_index"])):
        planned = tuple(row[name] for name in PLANNED)
        if row["stage"] != "warm_up" and row["status"] == "success":
            planned = (*planned, row["output_tokens"])
        turns[row["session_id"]].append(planned)
    return turns


def assert_lost_nothing(run: RunFolder, workers: int) -> None:
    manifest, rows = run.manifest, run.rows()
    counts = manifest["counts"]
    assert counts["sent"] == counts["recorded"] == len(rows) > 20
    assert counts["lost"] == 0
    assert len({row["request_id"] for row in rows}) == len(rows)
    assert {row["request_id"] for row in run.rows("chunks.csv")} == {
        row["request_id"] for row in rows
    }
    names = {f"w{rank}" for rank in range(workers)}
    assert {worker["worker_id"] for worker in manifest["workers"]} == names
    assert {row["worker_id"] for row in rows} == names
    assert {row["worker_id"] for row in run.rows("loadgen.csv")} == names
    for worker in manifest["workers"]:
        assert worker["lost_at_s"] is None
        assert worker["clock_offset_error_s"] == 0.0  # processes of one machine share the clock


def port_args() -> tuple[str, ...]:
    port = str(free_port())
    return ("--master-bind-port", port, "--master-port", port)


def test_the_same_seed_gives_the_same_turns_on_one_and_on_four_workers(bench: Bench) -> None:
    alone = bench.owner("--headless", "--run-id", "one")
    assert alone.wait() == 0, alone.output
    master, workers = bench.distributed(4, "--headless", "--run-id", "four")
    assert master.wait() == 0, master.output
    assert [worker.wait() for worker in workers] == [0, 0, 0, 0]
    four, one = bench.folders()  # by name
    assert (one.path.name, four.path.name) == ("one", "four")
    assert_lost_nothing(four, 4)
    assert not list(bench.spool.rglob("*.csv"))  # delivered shards are gone
    of_one, of_four = planned_turns(one), planned_turns(four)
    first_sessions = {s for s in of_one if int(s.partition("-")[2]) < 1_000_000}
    assert first_sessions == {s for s in of_four if int(s.partition("-")[2]) < 1_000_000}
    assert len(first_sessions) == 6
    for session in of_one.keys() & of_four.keys():
        both = min(len(of_one[session]), len(of_four[session]))
        assert of_one[session][:both] == of_four[session][:both]
        assert both > 1 or session not in first_sessions


def test_processes_stop_without_loss_at_the_end_of_the_plan(bench: Bench) -> None:
    """Locust's own end of a headless run cost a third of the results; see docs/running.md."""
    locust = bench.owner("--headless", "--processes", "2", *port_args())
    assert locust.wait() == 0, locust.output
    assert_lost_nothing(bench.folder(), 2)
    assert bench.folder().manifest["state"] == "complete"


def test_autostart_and_autoquit_lose_nothing_either(bench: Bench) -> None:
    web = ("--web-host", "127.0.0.1", "--web-port", str(free_port()))
    locust = bench.owner("--autostart", "--autoquit", "1", "--processes", "2", *web, *port_args())
    assert locust.wait() == 0, locust.output
    assert_lost_nothing(bench.folder(), 2)


def test_sigterm_to_the_master_collects_what_the_workers_have(bench: Bench) -> None:
    master, workers = bench.distributed(2, "--headless", "--stop-timeout", "5")
    run = bench.running_folder(rows=25)
    os.kill(master.process.pid, signal.SIGTERM)
    assert master.wait() == 3, master.output
    assert [worker.wait() for worker in workers] == [0, 0]
    assert_lost_nothing(run, 2)
    assert run.manifest["state"] == "interrupted"
    assert run.manifest["ended_by"] == "signal"


def test_a_killed_worker_is_found_named_and_decides_the_exit_code(bench: Bench) -> None:
    long = ("-u", "4", "-r", "4", "-t", "12s")
    master, workers = bench.distributed(3, "--headless", *long)
    run = bench.running_folder(rows=10)
    workers[0].process.kill()
    assert master.wait() == 3, master.output
    manifest = run.manifest
    assert manifest["verdict"]["level"] == "invalid"
    (lost,) = [worker for worker in manifest["workers"] if worker["lost_at_s"] is not None]
    assert f"worker lost: {lost['worker_id']}" in run.reasons
    assert "worker_missing" in run.events()
    assert "rows_recovered" in run.events() or lost["rows_undelivered"] is not None
    counts = manifest["counts"]
    assert counts["recorded"] == len(run.rows()) > 10
    assert counts["lost"] == counts["sent"] - counts["recorded"]
    assert [start for start, _ in lost["missing_s"]]


def test_a_worker_that_stood_still_delivers_all_and_the_run_is_marked(bench: Bench) -> None:
    """Public case C06: it went missing, its users came back, and the run record says when."""
    long = ("-u", "4", "-r", "4", "-t", "16s")
    master, workers = bench.distributed(2, "--headless", *long)
    run = bench.running_folder(rows=10)
    os.kill(workers[0].process.pid, signal.SIGSTOP)
    until(lambda: "worker_missing" in run.events(), "the master misses the worker")
    os.kill(workers[0].process.pid, signal.SIGCONT)
    assert master.wait() == 3, master.output
    assert [worker.wait() for worker in workers] == [0, 0]
    assert_lost_nothing(run, 2)
    assert "worker_returned" in run.events()
    assert run.manifest["verdict"]["level"] == "invalid"
    assert "missing at" in run.reasons
    (absent,) = [worker for worker in run.manifest["workers"] if worker["missing_s"]]
    ((start_s, end_s),) = absent["missing_s"]
    assert 0 < start_s < end_s


def test_a_master_that_stood_still_gets_every_row_later(bench: Bench) -> None:
    long = ("-u", "4", "-r", "4", "-t", "14s")
    master, workers = bench.distributed(2, "--headless", *long)
    run = bench.running_folder(rows=10)
    os.kill(master.process.pid, signal.SIGSTOP)
    kept = len(run.rows())
    until(
        lambda: (
            sum(len(RunFolder(s.parent).rows()) for s in bench.spool.rglob("turns.csv")) > kept + 20
        ),
        "the workers go on meanwhile",
    )
    os.kill(master.process.pid, signal.SIGCONT)
    master.wait()
    assert [worker.wait() for worker in workers] == [0, 0]
    assert_lost_nothing(run, 2)
    assert run.manifest["state"] == "complete"


def test_a_worker_told_to_stop_delivers_first_and_the_run_is_marked(bench: Bench) -> None:
    long = ("-u", "4", "-r", "4", "-t", "10s", "--stop-timeout", "5")
    master, workers = bench.distributed(2, "--headless", *long)
    run = bench.running_folder(rows=10)
    os.kill(workers[0].process.pid, signal.SIGTERM)
    assert workers[0].wait() == 0, workers[0].output
    assert master.wait() == 3, master.output
    assert run.manifest["counts"]["lost"] == 0
    assert run.manifest["verdict"]["level"] == "invalid"
    assert "left at" in run.reasons


def test_a_worker_that_cannot_load_ends_the_run_with_its_reason(bench: Bench) -> None:
    port = str(free_port())
    master = bench.owner("--headless", "--master", "--master-bind-port", port)
    bench.start(
        "--worker", "--master-host", "127.0.0.1", "--master-port", port,
        env={"OPENAI_API_KEY": "canary key"},
    )  # fmt: skip
    assert master.wait() == 3, master.output
    run = bench.folder()
    assert run.manifest["state"] == "interrupted"
    assert run.manifest["ended_by"] == "error"
    assert "api_key (environment OPENAI_API_KEY)" in run.events()["worker_refused"]
    assert all(b"canary" not in path.read_bytes() for path in run.path.iterdir())


def test_when_all_workers_die_the_run_ends_and_says_so(bench: Bench) -> None:
    master, workers = bench.distributed(2, "--headless", "-u", "2", "-r", "2", "-t", "80s")
    run = bench.running_folder(rows=5)
    for worker in workers:
        worker.process.kill()
    assert master.wait() == 3, master.output
    assert run.manifest["state"] == "interrupted"
    assert run.manifest["ended_by"] == "workers_lost"
    assert run.manifest["ended_s"] < 60
    assert run.reasons.count("worker lost") == 2


def test_too_few_workers_end_in_an_error(bench: Bench) -> None:
    """Public case F04: no run begins with fewer workers than were asked for."""
    port = str(free_port())
    wait = ("--expect-workers", "2", "--expect-workers-max-wait", "3")
    master = bench.owner("--master", "--master-bind-port", port, "--headless", *wait)
    worker = bench.start("--worker", "--master-host", "127.0.0.1", "--master-port", port)
    assert master.wait() == 1, master.output
    assert worker.wait() == 0
    assert bench.folders() == []


def test_bad_input_ends_a_master_and_its_workers(bench: Bench) -> None:
    locust = bench.owner("--headless", "--processes", "2", "--model", "other", *port_args())
    assert locust.wait() == 2
    assert "model 'other' is not served" in locust.output
    assert bench.folders() == []


def test_a_master_killed_hard_leaves_its_folder_and_the_workers_keep_their_rows(
    bench: Bench,
) -> None:
    master, workers = bench.distributed(2, "--headless")
    run = bench.running_folder(rows=10)
    master.process.kill()
    master.wait()
    assert run.manifest["state"] == "running"
    recorded = {row["request_id"] for row in run.rows()}
    assert len(recorded) >= 10
    shards = until(lambda: list(bench.spool.rglob("turns.csv")), "the shards are there")
    kept = {row["request_id"] for shard in shards for row in RunFolder(shard.parent).rows()}
    assert recorded <= kept
    stop_all(workers)


def stop_all(workers: list[Locust]) -> None:
    for worker in workers:
        worker.kill_group()
