"""Runs on several hosts: whatever happens to them, nothing is lost, or what is lost is named."""

from __future__ import annotations

import contextlib
import csv
import math
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from agentload.recording.merge import merge
from tests.e2e.locust_process import RunFolder
from tests.netns.conftest import Starts, wanted
from tests.netns.fleet import fleet_in
from tests.netns.scenarios import SCENARIOS, WORKER_CLOCK_AHEAD_S, Played

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AT_ONCE = 12
plays = pytest.mark.plays
Playing = Callable[[str], Played]


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Playing]:
    """All scenarios, most of them at the same time; a test waits for its own."""
    folder = tmp_path_factory.mktemp("faults")
    starts = Starts()

    def play(name: str) -> Played:
        workers, scenario = SCENARIOS[name]
        with starts.one() as is_running, fleet_in(folder / name, workers, is_running) as fleet:
            return scenario(fleet)

    chosen = wanted(request.session)
    with ThreadPoolExecutor(AT_ONCE) as pool:
        futures: dict[str, Future[Played]] = {
            name: pool.submit(play, name) for name in SCENARIOS if name in chosen
        }
        yield lambda name: futures[name].result()
        for future in futures.values():
            future.cancel()


# -- what holds of every run ----------------------------------------------------------------


def ids(run: RunFolder) -> set[str]:
    return {row["request_id"] for row in run.rows()}


def lost_nothing(played: Played) -> RunFolder:
    """Every stream that the server finished is a row, every attempt is one, none is there twice."""
    run = played.fleet.folders()[-1]
    rows, counts = run.rows(), run.manifest["counts"]
    assert len(ids(run)) == len(rows) > 6
    assert played.fleet.finished() <= ids(run)
    assert {row["request_id"] for row in rows if row["status"] == "success"} <= (
        played.fleet.finished()
    )
    assert counts["sent"] == counts["recorded"] == len(rows)
    assert counts["lost"] == 0
    assert {row["request_id"] for row in run.rows("chunks.csv")} <= ids(run)
    assert played.fleet.spooled() == set()
    assert most_users(played) <= run.manifest["users"]
    return run


def named_what_is_lost(played: Played, worker: str, rank_users: int) -> RunFolder:
    """What is not a row is in the worker's spool, which the manifest names with a count.

    `rank_users` streams of the worker may have ended on the server in the instant of its death.
    """
    run = played.fleet.folders()[-1]
    counts = run.manifest["counts"]
    assert len(ids(run)) == len(run.rows()) == counts["recorded"]
    missing = played.fleet.finished() - ids(run)
    assert len(missing - played.fleet.spooled()) <= rank_users
    (reason,) = [r for r in run.manifest["verdict"]["reasons"] if f"worker lost: {worker} " in r]
    entry = worker_entry(run, worker)
    assert f"{entry['rows_undelivered']} turns it had begun by then are missing" in reason
    assert f"agentload-spool-0/{run.path.name}/" in reason
    assert entry["lost_at_s"] is not None
    assert counts["lost"] == counts["sent"] - counts["recorded"] >= entry["rows_undelivered"]
    assert most_users(played) <= run.manifest["users"]
    return run


def worker_entry(run: RunFolder, worker: str) -> dict[str, Any]:
    (entry,) = [one for one in run.manifest["workers"] if one["worker_id"] == worker]
    return dict(entry)


def most_users(played: Played) -> int:
    """The most users that ever ran at once, by what each worker wrote down every second, on the
    master's disk or only on its own; never less than the most streams the server had at once."""
    run = played.fleet.folders()[-1]
    spools = [s for h in played.fleet.worker_hosts for s in played.fleet.spool_of(h).glob("*/*")]
    samples = set()
    for folder in (run.path, *spools):
        with (folder / "loadgen.csv").open(encoding="utf-8", newline="") as file:
            samples |= {
                (float(row["time_s"]), row["worker_id"], int(row["users"]))
                for row in csv.DictReader(file)
            }
    users: dict[str, int] = {}
    most = 0
    for _, worker, count in sorted(samples):
        users[worker] = count
        most = max(most, sum(users.values()))
    return max(most, most_streams(run))


def most_streams(run: RunFolder) -> int:
    """The most requests that were on their way at one instant."""
    changes = []
    for row in run.rows():
        if row["send_start_s"] and row["end_s"]:
            changes += [(float(row["send_start_s"]), 1), (float(row["end_s"]), -1)]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def is_sound(played: Played) -> RunFolder:
    """Complete, and no worse than suspect, for this is a busy machine."""
    run = lost_nothing(played)
    assert played.master_code == 0
    assert all(code == 0 for code in played.worker_codes)
    assert run.manifest["state"] == "complete"
    assert run.manifest["verdict"]["level"] in ("valid", "suspect")
    return run


def is_invalid(played: Played, run: RunFolder, *reasons: str) -> None:
    assert played.master_code == 3
    assert run.manifest["verdict"]["level"] == "invalid"
    for reason in reasons:
        assert reason in run.reasons


# -- ways to start and to stop --------------------------------------------------------------


@plays("headless", "autostart", "forked_workers")
@pytest.mark.parametrize("way", ["headless", "autostart", "forked_workers"])
def test_the_end_of_the_plan_loses_nothing(played: Playing, way: str) -> None:
    run = is_sound(played(way))
    assert run.manifest["ended_by"] == "plan"
    assert len(run.manifest["workers"]) == 2


@plays("stop_button")
def test_the_stop_button_loses_nothing_and_the_page_lives_on(played: Playing) -> None:
    one = played("stop_button")
    run = lost_nothing(one)
    assert '"success":true' in one.facts["started"].replace(" ", "")
    assert "<html" in one.facts["again"]
    assert (one.master_code, one.worker_codes) == (0, [0, 0])
    assert run.manifest["ended_by"] == "stop"


@plays("sigterm_to_the_master")
def test_sigterm_to_the_master_loses_nothing(played: Playing) -> None:
    one = played("sigterm_to_the_master")
    run = lost_nothing(one)
    assert (run.manifest["state"], run.manifest["ended_by"]) == ("interrupted", "signal")
    is_invalid(one, run, "of its planned 60 s")
    assert one.worker_codes == [0, 0]


@plays("workers_before_the_master")
def test_workers_may_be_there_before_the_master(played: Playing) -> None:
    is_sound(played("workers_before_the_master"))


# -- workers that go ------------------------------------------------------------------------


@plays("worker_killed")
def test_a_worker_that_is_killed_is_named_with_what_it_had(played: Playing) -> None:
    one = played("worker_killed")
    run = named_what_is_lost(one, "w0", rank_users=2)
    is_invalid(one, run, "missing at")
    assert one.worker_codes[1:] == [0, 0]
    assert run.manifest["state"] == "complete"


@plays("worker_told_to_end")
def test_a_worker_that_is_told_to_end_delivers_first(played: Playing) -> None:
    one = played("worker_told_to_end")
    run = lost_nothing(one)
    is_invalid(one, run, "left at")
    assert one.worker_codes == [0, 0, 0]
    # Its users are not dealt out again: the others keep theirs.
    last = {row["worker_id"]: int(row["users"]) for row in run.rows("loadgen.csv")[-8:]}
    assert max(last.values()) <= 2


@plays("all_workers_killed")
def test_when_all_workers_are_killed_the_run_ends(played: Playing) -> None:
    one = played("all_workers_killed")
    for worker in ("w0", "w1"):
        run = named_what_is_lost(one, worker, rank_users=4)
    is_invalid(one, run)
    assert (run.manifest["state"], run.manifest["ended_by"]) == ("interrupted", "workers_lost")


@plays("all_workers_told_to_end")
def test_when_all_workers_are_told_to_end_the_run_ends(played: Playing) -> None:
    one = played("all_workers_told_to_end")
    run = lost_nothing(one)
    is_invalid(one, run, "left at")
    assert one.worker_codes == [0, 0]
    assert run.manifest["state"] == "interrupted"


@plays("one_worker_too_few")
def test_no_run_begins_with_too_few_workers(played: Playing) -> None:
    one = played("one_worker_too_few")
    assert (one.master_code, one.worker_codes) == (1, [0, 0])
    assert one.fleet.folders() == []


@plays("worker_joins_late")
def test_a_worker_that_comes_late_takes_no_users(played: Playing) -> None:
    one = played("worker_joins_late")
    run = is_sound(one)
    assert run.manifest["verdict"]["level"] == "suspect"
    assert "came after the start and got no users" in run.reasons
    assert {row["worker_id"] for row in run.rows()} == {"w0", "w1"}


# -- cuts and standstills -------------------------------------------------------------------


@plays("worker_cut_15_s", "worker_cut_80_s")
@pytest.mark.parametrize("cut", ["worker_cut_15_s", "worker_cut_80_s"])
def test_a_worker_that_was_cut_off_delivers_all_later(played: Playing, cut: str) -> None:
    one = played(cut)
    run = lost_nothing(one)
    is_invalid(one, run, "missing at")
    assert one.worker_codes == [0, 0, 0]
    kinds = {row["kind"] for row in run.rows("events.csv")}
    assert "worker_missing" in kinds
    (absent,) = [worker for worker in run.manifest["workers"] if worker["missing_s"]]
    assert absent["lost_at_s"] is None
    if cut == "worker_cut_15_s":
        assert "worker_returned" in kinds
        # It went on all the time: rows of every five seconds of the run are there.
        its = [r for r in run.rows() if r["worker_id"] == absent["worker_id"]]
        fifths = {math.floor(float(row["send_start_s"]) / 5) for row in its}
        assert len(fifths) >= 8


@plays("worker_cut_at_the_end")
def test_a_master_waits_for_a_worker_that_is_cut_off_at_the_end(played: Playing) -> None:
    one = played("worker_cut_at_the_end")
    assert one.facts["waits"]
    lost_nothing(one)
    assert one.worker_codes == [0, 0, 0]


@plays("worker_cut_for_good")
def test_a_worker_that_stays_cut_off_keeps_its_rows_and_is_named(played: Playing) -> None:
    one = played("worker_cut_for_good")
    run = named_what_is_lost(one, absent_worker(one), rank_users=0)
    is_invalid(one, run, "missing at")
    cut, *others = one.worker_codes
    assert (cut, others) == (3, [0, 0])
    assert "rows were not taken by the master and are kept in" in one.fleet.workers[0].output
    missing = one.fleet.finished() - ids(run)
    assert len(missing) > 2
    assert missing <= one.fleet.spooled()
    merged = run.path.with_name("merged")
    shards = list(one.fleet.spool_of(one.fleet.worker_hosts[0]).glob("*/*"))
    merge(run.path, shards, merged, allow_missing=False, compress=False)
    assert ids(RunFolder(merged)) >= one.fleet.finished()
    assert RunFolder(merged).manifest["counts"]["lost"] == 0


def absent_worker(played: Played) -> str:
    manifest = played.fleet.folders()[-1].manifest
    (absent,) = [worker for worker in manifest["workers"] if worker["missing_s"]]
    return str(absent["worker_id"])


@plays("master_stopped_12_s")
def test_a_master_that_stood_still_for_12_s_gets_all_and_says_so(played: Playing) -> None:
    one = played("master_stopped_12_s")
    run = lost_nothing(one)
    assert run.manifest["state"] == "complete"
    assert "the owner of the run stood still for 1" in run.reasons
    assert one.worker_codes == [0, 0]


@plays("master_stopped_70_s")
def test_workers_of_a_master_that_stood_still_for_70_s_stop_and_deliver(played: Playing) -> None:
    one = played("master_stopped_70_s")
    run = lost_nothing(one)
    is_invalid(one, run, "the owner of the run stood still for 7")
    assert one.worker_codes == [0, 0]


@plays("master_killed_and_restarted")
def test_a_restarted_master_begins_anew_beside_the_old_files(played: Playing) -> None:
    one = played("master_killed_and_restarted")
    assert one.facts["before"] == one.facts["after"]
    old, new = one.fleet.folders()
    assert old.manifest["state"] == "running"
    assert one.facts["orphan_codes"] == [3, 3]
    for said in one.facts["orphans_said"]:
        assert "no run is being recorded here" in said
        assert "are kept in" in said
    assert one.worker_codes == [0, 0]
    assert new.manifest["state"] == "complete"
    assert one.master_code == (3 if new.manifest["verdict"]["level"] == "invalid" else 0)
    assert new.manifest["counts"]["lost"] == 0
    everywhere = ids(old) | ids(new) | one.fleet.spooled()
    assert one.fleet.finished() <= everywhere
    first_s = new.manifest["wall_start_unix_s"] - old.manifest["wall_start_unix_s"]
    assert max(float(row["end_s"]) for row in spooled_rows(one, old)) < first_s  # no load beside it


def spooled_rows(played: Played, run: RunFolder) -> list[dict[str, str]]:
    folders = [
        folder
        for host in played.fleet.worker_hosts
        for folder in played.fleet.spool_of(host).glob(f"{run.path.name}/*")
    ]
    return [row for folder in folders for row in RunFolder(folder).rows()]


# -- what is wrong with the machine or the command ------------------------------------------


@plays("rebalancing_asked_for")
def test_rebalancing_is_refused(played: Playing) -> None:
    one = played("rebalancing_asked_for")
    assert one.master_code == 2
    assert "--enable-rebalancing: users of a worker that is cut off" in one.fleet.master_host.said()
    assert one.fleet.folders() == []


@plays("worker_throttled")
def test_a_cpu_quota_that_struck_is_in_the_record(played: Playing) -> None:
    one = played("worker_throttled")
    run = lost_nothing(one)
    assert "the container's CPU quota stopped a worker" in run.reasons
    struck = [w for w in run.manifest["workers"] if w["health"]["throttled_periods"]]
    assert len(struck) == 1


@plays("worker_with_another_clock")
def test_another_clock_is_measured_and_applied(played: Playing) -> None:
    one = played("worker_with_another_clock")
    run = is_sound(one)
    (ahead,) = [w for w in run.manifest["workers"] if w["clock_offset_error_s"]]
    error_s = ahead["clock_offset_error_s"]
    assert abs(ahead["clock_offset_s"] + WORKER_CLOCK_AHEAD_S) <= error_s < 0.5
    ended_s = run.manifest["ended_s"]
    for row in run.rows():
        for name in ("intended_start_s", "send_start_s", "first_chunk_s", "end_s"):
            with contextlib.suppress(ValueError):
                assert 0 <= float(row[name]) <= ended_s
    both = {row["worker_id"]: row for row in run.rows()}
    assert set(both) == {"w0", "w1"}
