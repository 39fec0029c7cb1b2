"""What is done to the runs in network namespaces. Each function plays one run to its end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.netns.cpu_quota import CpuQuota
from tests.netns.fleet import PORT, Fleet, page
from tests.netns.network import Process, until

WORKER_CLOCK_AHEAD_S = 5000
STOP = ("--stop-timeout", "10")


@dataclass
class Played:
    """What is left of a run when all its processes have ended."""

    fleet: Fleet
    master_code: int | None
    worker_codes: list[int]
    facts: dict[str, Any] = field(default_factory=dict)


Scenario = Callable[[Fleet], Played]


def _load(seconds: int, users: int) -> tuple[str, ...]:
    return ("-t", f"{seconds}s", "-u", str(users), "-r", str(users), *STOP)


def _ran(fleet: Fleet, master: Process) -> Played:
    """Nothing is done to it."""
    fleet.running(rows=1)
    return _ended(fleet, master)


def _ended(fleet: Fleet, master: Process, **facts: Any) -> Played:
    code = master.wait()
    return Played(fleet, code, [worker.wait() for worker in fleet.workers], facts)


def _pause(seconds: float) -> None:
    """How long a fault lasts: the passing of time is what is tested."""
    time.sleep(seconds)


# -- ways to start and to stop --------------------------------------------------------------


def headless(fleet: Fleet) -> Played:
    master = fleet.master("--headless", *_load(10, 4))
    fleet.all_workers()
    return _ran(fleet, master)


def autostart(fleet: Fleet) -> Played:
    master = fleet.master("--autostart", "--autoquit", "1", *_load(10, 4))
    fleet.all_workers()
    return _ran(fleet, master)


def stop_button(fleet: Fleet) -> Played:
    master = fleet.master(*STOP)
    fleet.all_workers()
    until(fleet.page_is_up, "the web page is up")
    until(lambda: master.output.count("reported as ready") == 2, "both workers are there")
    started = page(fleet.master_host, "/swarm", {"user_count": "4", "spawn_rate": "4"})
    run = fleet.running(rows=8)
    page(fleet.master_host, "/stop", {})
    until(lambda: run.manifest["state"] != "running", "the run is closed")
    again = fleet.page("/")  # the page lives on
    master.signal(signal.SIGTERM)
    return _ended(fleet, master, started=started, again=again)


def sigterm_to_the_master(fleet: Fleet) -> Played:
    master = fleet.master("--headless", *_load(60, 4))
    fleet.all_workers()
    fleet.running(rows=8)
    master.signal(signal.SIGTERM)
    return _ended(fleet, master)


def forked_workers(fleet: Fleet) -> Played:
    return _ran(fleet, fleet.owner("--headless", "--processes", "2", *_load(10, 4)))


# -- workers that go ------------------------------------------------------------------------


def worker_killed(fleet: Fleet) -> Played:
    master = fleet.master("--headless", *_load(16, 6))
    workers = fleet.all_workers()
    fleet.running(rows=8)
    workers[0].signal(signal.SIGKILL)
    return _ended(fleet, master)


def worker_told_to_end(fleet: Fleet) -> Played:
    master = fleet.master("--headless", *_load(16, 6))
    workers = fleet.all_workers()
    fleet.running(rows=8)
    workers[0].signal(signal.SIGTERM)
    return _ended(fleet, master)


def all_workers_killed(fleet: Fleet) -> Played:
    master = fleet.master("--headless", *_load(90, 4))
    workers = fleet.all_workers()
    fleet.running(rows=8)
    for worker in workers:
        worker.signal(signal.SIGKILL)
    return _ended(fleet, master)


def all_workers_told_to_end(fleet: Fleet) -> Played:
    master = fleet.master("--headless", *_load(90, 4))
    workers = fleet.all_workers()
    fleet.running(rows=8)
    for worker in workers:
        worker.signal(signal.SIGTERM)
    return _ended(fleet, master)


def one_worker_too_few(fleet: Fleet) -> Played:
    wait = ("--expect-workers-max-wait", "8")
    master = fleet.master("--headless", *_load(10, 4), *wait, expect=3)
    fleet.all_workers()
    return _ended(fleet, master)


def worker_joins_late(fleet: Fleet) -> Played:
    """A run without a planned end, so that it lasts until the worker has been there for a while."""
    master = fleet.master("--headless", "-u", "4", "-r", "4", *STOP, expect=2)
    fleet.worker(0)
    fleet.worker(1)
    run = fleet.running(rows=4)
    fleet.worker(2)
    until(lambda: "worker_joined" in run.events(), "the worker is there")
    fleet.running(rows=len(run.rows()) + 12)
    master.signal(signal.SIGTERM)
    return _ended(fleet, master)


def workers_before_the_master(fleet: Fleet) -> Played:
    fleet.all_workers()
    _pause(14)
    return _ran(fleet, fleet.master("--headless", *_load(10, 4)))


# -- cuts and standstills -------------------------------------------------------------------


def worker_cut(fleet: Fleet, seconds: float, run_s: int) -> Played:
    master = fleet.master("--headless", *_load(run_s, 6))
    fleet.all_workers()
    fleet.running(rows=8)
    fleet.worker_hosts[0].cut(PORT)
    _pause(seconds)
    waits = master.code is None
    fleet.worker_hosts[0].heal()
    return _ended(fleet, master, waits=waits)


def worker_cut_15_s(fleet: Fleet) -> Played:
    return worker_cut(fleet, 15, 45)


def worker_cut_80_s(fleet: Fleet) -> Played:
    return worker_cut(fleet, 80, 115)


def worker_cut_at_the_end(fleet: Fleet) -> Played:
    """The cut goes on when the run is over, and heals while the master waits for the rows."""
    return worker_cut(fleet, 15, 10)


def worker_cut_for_good(fleet: Fleet) -> Played:
    master = fleet.master("--headless", *_load(12, 6))
    fleet.all_workers()
    fleet.running(rows=8)
    fleet.worker_hosts[0].cut(PORT)
    return _ended(fleet, master)


def master_stopped(fleet: Fleet, seconds: float, run_s: int) -> Played:
    master = fleet.master("--headless", *_load(run_s, 4))
    fleet.all_workers()
    fleet.running(rows=8)
    master.signal(signal.SIGSTOP)
    _pause(seconds)
    master.signal(signal.SIGCONT)
    return _ended(fleet, master)


def master_stopped_12_s(fleet: Fleet) -> Played:
    return master_stopped(fleet, 12, 25)


def master_stopped_70_s(fleet: Fleet) -> Played:
    return master_stopped(fleet, 70, 100)


def master_killed_and_restarted(fleet: Fleet) -> Played:
    """At the same address and with the same arguments, while the old workers still load."""
    args = ("--headless", "-u", "4", "-r", "4", *STOP)
    killed = fleet.master(*args)
    orphans = fleet.all_workers()
    old = fleet.running(rows=8)
    killed.signal(signal.SIGKILL)
    killed.wait()
    # The process that scrapes for it finds out by itself, and takes the last page.
    until((old.path / "metrics_last_0.txt").exists, "the scraping is over")
    before = {path.name: path.read_bytes() for path in old.path.iterdir()}
    master = fleet.master(*args)
    codes = [orphan.wait() for orphan in orphans]
    fleet.workers.clear()
    fleet.all_workers()
    until(lambda: len(fleet.folders()) == 2, "the new run begins")
    fleet.running(rows=8)
    master.signal(signal.SIGTERM)
    played = _ended(fleet, master, orphan_codes=codes, before=before, old=old)
    played.facts["after"] = {path.name: path.read_bytes() for path in old.path.iterdir()}
    played.facts["orphans_said"] = [orphan.output for orphan in orphans]
    return played


# -- what is wrong with the machine or the command ------------------------------------------


def rebalancing_asked_for(fleet: Fleet) -> Played:
    args = ("--headless", "--enable-rebalancing", *_load(10, 4))
    return _ended(fleet, fleet.master(*args, expect=2))


def worker_throttled(fleet: Fleet) -> Played:
    master = fleet.master("--headless", *_load(12, 4))
    with CpuQuota(f"agentload-test-{os.getpid()}") as quota:
        fleet.all_workers()
        quota.take(fleet.workers[0].pid)
        fleet.running(rows=2)
        quota.limit(0.03)
        return _ended(fleet, master)


def worker_with_another_clock(fleet: Fleet) -> Played:
    master = fleet.master("--headless", *_load(10, 4))
    ahead = str(WORKER_CLOCK_AHEAD_S)
    fleet.worker(0, "unshare", "--time", "--monotonic", ahead, "--fork", "--kill-child")
    fleet.worker(1)
    return _ran(fleet, master)


# Workers, then what happens. The long ones first: they mostly wait.
SCENARIOS: dict[str, tuple[int, Scenario]] = {
    one.__name__: (workers, one)
    for workers, one in (
        (3, worker_cut_for_good),
        (3, worker_cut_80_s),
        (2, master_stopped_70_s),
        (2, all_workers_killed),
        (3, worker_cut_15_s),
        (3, worker_cut_at_the_end),
        (2, master_killed_and_restarted),
        (2, master_stopped_12_s),
        (2, workers_before_the_master),
        (3, worker_joins_late),
        (3, worker_killed),
        (3, worker_told_to_end),
        (2, all_workers_told_to_end),
        (2, worker_throttled),
        (2, worker_with_another_clock),
        (2, headless),
        (2, autostart),
        (2, stop_button),
        (2, sigterm_to_the_master),
        (0, forked_workers),
        (2, one_worker_too_few),
        (0, rebalancing_asked_for),
    )
}
