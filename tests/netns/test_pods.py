"""The rendered manifests, run: each pod's real command as a process in namespaces of its own."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentload.kubernetes.render import Wishes, write
from tests.e2e.locust_process import RunFolder
from tests.netns.conftest import Starts, wanted
from tests.netns.fleet import PORT, page
from tests.netns.network import network_in, until
from tests.netns.pods import ROOT, Cluster, Pod
from tests.netns.rendered import render

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CANARY = "canary-1d6b7a90-no-secret"
OVERLAYS = ROOT / "k8s" / "overlays"
GONE_S = 5.0  # after the master, by the plan of the tests
plays = pytest.mark.plays


@dataclass
class Ran:
    """A run of pods that is over."""

    cluster: Cluster
    codes: dict[str, int]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def master_code(self) -> int:
        return self.codes[self.cluster.master.plan.name]

    def worker_codes(self) -> list[int]:
        return [self.codes[pod.plan.name] for pod in self.cluster.role("worker")]

    @property
    def results(self) -> Path:
        return self.cluster.master.folder("/results")

    @property
    def run(self) -> RunFolder:
        """The run folder, wherever below the results the manifests put it."""
        (manifest,) = self.results.rglob("manifest.json")
        return RunFolder(manifest.parent)

    @property
    def done(self) -> dict[str, Any]:
        (path,) = self.results.rglob("done.json")
        return dict(json.loads(path.read_text()))

    def finished(self) -> int:
        """Streams that the server says it finished, by its own page."""
        return int(self.facts["finished"])


# -- what is played -------------------------------------------------------------------------


def ended(cluster: Cluster, but: tuple[str, ...] = (), **facts: Any) -> Ran:
    """Collect as a user does: wait for the done file, take the files, say so, wait for the pods."""
    results = cluster.master.folder("/results")
    done = until(lambda: list(results.rglob("done.json")), "the run is done", 240)[0]
    facts["finished"] = streams_finished(cluster)
    (done.parent / "collected").touch()
    codes = {cluster.master.plan.name: cluster.master.wait()}
    master_gone_s = time.monotonic()
    for pod in cluster.role("worker"):
        if pod.plan.name not in but:
            codes[pod.plan.name] = pod.wait()
    facts["workers_later_s"] = time.monotonic() - master_gone_s
    return Ran(cluster, codes, facts)


def streams_finished(cluster: Cluster) -> int:
    """What the server counts as finished, its own warm-up probes and all others left out."""
    (server,) = cluster.role("server")
    code = (
        "import urllib.request as u;"
        "print(u.urlopen('http://127.0.0.1:8000/metrics').read().decode())"
    )
    text = server.host.run("python3", "-c", code)
    found = [line for line in text.splitlines() if line.startswith("vllm:request_success_total{")]
    return int(sum(float(line.rpartition(" ")[2]) for line in found if "abort" not in line))


def turns_there(cluster: Cluster, count: int) -> None:
    """Wait until the master has recorded so many turns."""
    results = cluster.master.folder("/results")

    def enough() -> bool:
        files = list(results.rglob("turns.csv"))
        return bool(files) and files[0].read_bytes().count(b"\n") > count

    until(enough, f"{count} turns", 240)
    cluster.is_running()


def undisturbed(cluster: Cluster) -> Ran:
    cluster.start()
    turns_there(cluster, 20)
    master, worker = cluster.master, cluster.role("worker")[0]
    pages = [page(master.host, path) for path in ("/", "/stats/requests", "/stats/report")]
    return ended(
        cluster,
        pages=pages,
        processes=command_lines(),
        ids=[ids_of(pod) for pod in (master, worker, *cluster.role("server"))],
    )


def worker_killed(cluster: Cluster) -> Ran:
    cluster.start()
    turns_there(cluster, 20)
    cluster.role("worker")[0].kill()
    return ended(cluster)


def worker_told_to_end(cluster: Cluster) -> Ran:
    cluster.start()
    turns_there(cluster, 20)
    cluster.role("worker")[0].signal(signal.SIGTERM)
    return ended(cluster)


def worker_cut(cluster: Cluster) -> Ran:
    cluster.start()
    turns_there(cluster, 20)
    host = cluster.role("worker")[0].host
    host.cut(PORT)
    time.sleep(15)
    host.heal()
    return ended(cluster)


def master_told_to_end(cluster: Cluster) -> Ran:
    cluster.start()
    turns_there(cluster, 20)
    cluster.master.signal(signal.SIGTERM)
    return ended(cluster)


def one_worker_too_few(cluster: Cluster) -> Ran:
    absent = cluster.role("worker")[0].plan.name
    cluster.start(absent)
    return ended(cluster, but=(absent,))


def ids_of(pod: Pod) -> tuple[int, str]:
    """User id and capabilities of the pod's first process."""
    assert pod.main is not None
    lines = Path(f"/proc/{pod.main.pid}/status").read_text().splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return int(status["Uid"].split()[0]), status["CapEff"]


def command_lines() -> bytes:
    """Of every process there is."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes())
        except OSError:
            continue
    return b"\n".join(found)


def rendered_by_the_runner(folder: Path, run_id: str) -> str:
    """As `agentload k8s run` renders it: results on a claim, names with this run id."""
    folder.mkdir(parents=True)
    short = (OVERLAYS / "ci" / "scenario.yaml").read_text(encoding="utf-8")
    scenario = folder.parent / f"{run_id}-short.yaml"
    scenario.write_text(short.replace("duration_s: 20", "duration_s: 4"), encoding="utf-8")
    components = (ROOT / "k8s" / "components" / "results-pvc",)
    write(Wishes(run_id, OVERLAYS / "ci", components, scenario), folder)
    claims = render(ROOT / "k8s" / "claims")
    return f"{render(folder)}\n---\n{claims}"


def one_over_the_other(folder: Path, is_running: Callable[[], object]) -> dict[str, Ran]:
    """Two runs on one claim, then the first one again with its old name."""
    played: dict[str, Ran] = {}
    for name, run_id in (("first", "r1"), ("second", "r2"), ("again", "r1")):
        text = rendered_by_the_runner(folder / f"render-{name}", run_id)
        with network_in(folder / name) as network:
            cluster = Cluster(network, text, is_running, folder / "claims")
            before = contents(folder / "claims")
            cluster.start()
            if name == "again":
                code = cluster.master.wait()
                played[name] = Ran(cluster, {cluster.master.plan.name: code})
            else:
                played[name] = ended(cluster)
            played[name].facts |= {"before": before, "after": contents(folder / "claims")}
    return played


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def demo(folder: Path, is_running: Callable[[], object]) -> Ran:
    """The pods of the overlay `demo`, for twelve turns in place of two minutes."""
    text = changed(
        render(OVERLAYS / "demo"),
        ('AUTOQUIT_S: "125"', 'AUTOQUIT_S: "1"'),
        ("- --arm=$(ARM)", "- --arm=$(ARM)\n        - --set=stop.after_turns=12"),
    )
    with network_in(folder) as network:
        cluster = Cluster(network, text, is_running)
        cluster.start()
        turns_there(cluster, 1)
        return ended(cluster)


def on_ci(
    fault: Callable[[Cluster], Ran], *changes: tuple[str, str]
) -> Callable[[Path, Callable[[], object]], Ran]:
    """The overlay `ci` with a fault, and with these changes to its text."""

    def play(folder: Path, is_running: Callable[[], object]) -> Ran:
        text = changed(render(OVERLAYS / "ci"), *changes)
        with network_in(folder) as network:
            return fault(Cluster(network, text, is_running))

    return play


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


PLAYS: dict[str, Callable[[Path, Callable[[], object]], Any]] = {
    "worker_cut": on_ci(worker_cut),
    "one_over_the_other": one_over_the_other,
    "demo": demo,
    "undisturbed": on_ci(undisturbed),
    "worker_killed": on_ci(worker_killed),
    "worker_told_to_end": on_ci(worker_told_to_end),
    "master_told_to_end": on_ci(master_told_to_end),
    "one_worker_too_few": on_ci(
        one_worker_too_few, ("--expect-workers-max-wait=120", "--expect-workers-max-wait=10")
    ),
}
Playing = Callable[[str], Any]


@pytest.fixture(scope="module")
def ran(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Playing]:
    """All that is played, at the same time; a test waits for its own."""
    folder = tmp_path_factory.mktemp("pods")
    starts = Starts(at_once=1)  # pods are more processes than the runs of test_faults

    def play(name: str) -> Any:
        with starts.one() as is_running:
            return PLAYS[name](folder / name, is_running)

    chosen = wanted(request.session)
    with ThreadPoolExecutor(len(PLAYS)) as pool:
        futures: dict[str, Future[Any]] = {
            name: pool.submit(play, name) for name in PLAYS if name in chosen
        }
        yield lambda name: futures[name].result()
        for future in futures.values():
            future.cancel()


# -- a run ----------------------------------------------------------------------------------


def lost_nothing(ran: Ran) -> None:
    rows, counts = ran.run.rows(), ran.run.manifest["counts"]
    assert len({row["request_id"] for row in rows}) == len(rows) > 20
    assert counts["sent"] == counts["recorded"] == len(rows)
    assert counts["lost"] == 0
    assert sum(row["status"] == "success" for row in rows) == ran.finished()


@plays("undisturbed")
def test_all_that_the_server_finished_is_in_the_rows_and_in_the_csv_of_locust(
    ran: Playing,
) -> None:
    one = ran("undisturbed")
    lost_nothing(one)
    rows = one.run.rows()
    assert {row["worker_id"] for row in rows} == {"w0", "w1", "w2"}
    (stats,) = one.results.rglob("locust_stats.csv")
    (total,) = [r for r in RunFolder(stats.parent).rows(stats.name) if r["Name"] == "Aggregated"]
    assert int(total["Request Count"]) == len(rows)


@plays("undisturbed")
def test_all_pods_end_well_and_the_workers_with_the_master(ran: Playing) -> None:
    one = ran("undisturbed")
    assert set(one.codes.values()) == {0}
    assert all(code == 0 for pod in one.cluster.pods for code in pod.init_codes)
    assert one.facts["workers_later_s"] < GONE_S
    assert (one.done["exit_code"], one.done["state"]) == (0, "complete")
    assert one.done["verdict"] in ("valid", "suspect")
    for name in ("manifest.json", "turns.csv", "chunks.csv", "scrape.csv", "loadgen.csv"):
        assert (one.run.path / name).stat().st_size > 0
    for worker in one.cluster.role("worker"):
        assert not list(worker.folder("/spool").rglob("turns.csv"))


@plays("undisturbed")
def test_pods_run_as_the_user_of_the_manifest_without_any_capability(ran: Playing) -> None:
    one = ran("undisturbed")
    assert one.facts["ids"] == [(10001, "0" * 16)] * 3
    for path in (one.run.path / "turns.csv", one.run.path / "manifest.json"):
        assert path.stat().st_uid == 10001


@plays("undisturbed")
def test_the_key_is_in_no_log_page_file_or_process_list(ran: Playing) -> None:
    one = ran("undisturbed")
    canary = CANARY.encode()
    secret = one.cluster.objects.kind("Secret")
    assert secret  # it was given, and the server asks for it
    folder = one.cluster.network.folder
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 15
    for path in files:
        assert canary not in path.read_bytes(), path
    for text in one.facts["pages"]:
        assert CANARY not in text
    assert b"--spool-dir=/spool" in one.facts["processes"]
    assert canary not in one.facts["processes"]


# -- faults ---------------------------------------------------------------------------------


def is_invalid(ran: Ran, reason: str) -> None:
    assert ran.master_code == 3
    assert ran.done["exit_code"] == 3
    assert ran.done["verdict"] == "invalid"
    assert any(reason in one for one in ran.done["reasons"]), ran.done["reasons"]
    users: dict[str, int] = {}
    for row in sorted(ran.run.rows("loadgen.csv"), key=lambda row: float(row["time_s"])):
        users[row["worker_id"]] = int(row["users"])
        assert sum(users.values()) <= 12


@plays("worker_killed")
def test_a_killed_worker_pod_is_named(ran: Playing) -> None:
    one = ran("worker_killed")
    is_invalid(one, "worker lost: w")
    assert sorted(one.worker_codes()) == [-signal.SIGKILL, 0, 0]
    rows = one.run.rows()
    lost = one.finished() - sum(row["status"] == "success" for row in rows)
    (entry,) = [w for w in one.run.manifest["workers"] if w["lost_at_s"] is not None]
    spooled = [
        row
        for pod in one.cluster.role("worker")
        for file in pod.folder("/spool").rglob("turns.csv")
        for row in RunFolder(file.parent).rows()
        if row["request_id"] not in {row["request_id"] for row in rows}
    ]
    assert 0 <= lost <= len(spooled) + 4  # four streams were on their way to it
    assert entry["rows_undelivered"] is not None


@plays("worker_told_to_end")
def test_a_worker_pod_that_is_deleted_delivers_first(ran: Playing) -> None:
    one = ran("worker_told_to_end")
    is_invalid(one, "left at")
    lost_nothing(one)
    assert one.worker_codes() == [0, 0, 0]


@plays("worker_cut")
def test_a_worker_pod_that_was_cut_off_for_15_s_delivers_later(ran: Playing) -> None:
    one = ran("worker_cut")
    is_invalid(one, "missing at")
    lost_nothing(one)
    assert one.worker_codes() == [0, 0, 0]


@plays("master_told_to_end")
def test_a_master_pod_that_is_deleted_closes_the_run(ran: Playing) -> None:
    one = ran("master_told_to_end")
    is_invalid(one, "of its planned 20 s")
    lost_nothing(one)
    assert one.done["state"] == "interrupted"
    assert one.worker_codes() == [0, 0, 0]


@plays("one_worker_too_few")
def test_too_few_worker_pods_begin_no_run(ran: Playing) -> None:
    one = ran("one_worker_too_few")
    assert one.master_code == one.done["exit_code"] == 1
    assert one.done["reasons"] == ["no run was begun: there is no manifest"]
    assert set(one.codes.values()) == {0, 1}


# -- other overlays, and runs after each other ----------------------------------------------


@plays("one_over_the_other")
def test_a_second_run_beside_the_first_leaves_its_results_untouched(ran: Playing) -> None:
    played: dict[str, Ran] = ran("one_over_the_other")
    first, second = played["first"], played["second"]
    assert (first.master_code, second.master_code) == (0, 0)
    for one in (first, second):
        assert one.worker_codes() == [0, 0, 0]
    kept = second.facts["before"]
    assert any(name.endswith("r1/r1/turns.csv") for name in kept)
    assert kept.items() <= second.facts["after"].items()
    assert any(name.endswith("r2/r2/turns.csv") for name in second.facts["after"])
    names = [{(o["kind"], o["metadata"]["name"]) for o in one.cluster.objects.found
              if o["kind"] != "PersistentVolumeClaim"} for one in (first, second)]  # fmt: skip
    assert names[0] & names[1] == set()


@plays("one_over_the_other")
def test_a_run_with_the_name_of_a_finished_one_is_refused(ran: Playing) -> None:
    again: Ran = ran("one_over_the_other")["again"]
    assert again.master_code == 2
    assert "holds a finished run" in again.cluster.master.host.said()
    assert again.facts["before"] == again.facts["after"]


@plays("demo")
def test_the_demo_runs_as_it_is_rendered(ran: Playing) -> None:
    one: Ran = ran("demo")
    assert set(one.codes.values()) == {0}
    lost_nothing(one)
    assert one.run.manifest["state"] == "complete"
    assert one.run.manifest["target"]["sim_speed"] == 16
