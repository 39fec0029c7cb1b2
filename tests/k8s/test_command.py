"""`agentload k8s` with a cluster that is played: what it calls, what it says, when it gives up."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentload.kubernetes import kubectl
from agentload.kubernetes.command import main
from agentload.kubernetes.objects import Rendered
from tests.k8s.conftest import K8S

pytestmark = pytest.mark.needs("kubectl")

CANARY = "canary-1d6b7a90-no-secret"  # the key of the ci overlay
MASTER = "agentload-master-ci1-run7-x2x4z"
DONE = {
    "exit_code": 0,
    "run_id": "run7",
    "state": "complete",
    "verdict": "valid",
    "reasons": [],
}


def pod(name: str, component: str, phase: str = "Running", **status: Any) -> dict[str, Any]:
    labels = {"app.kubernetes.io/component": component, "app.kubernetes.io/instance": "run7"}
    limits = {"resources": {"limits": {"memory": "2Gi"}}}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"containers": [{"name": component, **limits}]},
        "status": {"phase": phase, **status},
    }


def listed(*items: dict[str, Any]) -> str:
    return json.dumps({"items": list(items)})


def container(name: str, **state: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": name, "state": state}]}


@dataclass
class Cluster:
    """What the fake `kubectl` answers; later answers stand behind earlier ones."""

    folder: Path
    answers: list[dict[str, Any]] = field(default_factory=list)

    def tell(self, *args: str, **answer: Any) -> None:
        self.answers.append({"args": list(args), **answer})

    def tell_all_is_well(self) -> None:
        master, worker = pod(MASTER, "master"), pod("agentload-worker-ci1-run7-a", "worker")
        only_master = "app.kubernetes.io/component=master"
        self.tell("get", "namespace", out="namespace/load")
        self.tell("apply", out="job.batch/agentload-master-ci1-run7 created\n")
        self.tell("get", "deployment", out='{"spec": {"replicas": 1}, "status": {}}', times=1)
        ready = '{"spec": {"replicas": 1}, "status": {"readyReplicas": 1}}'
        self.tell("get", "deployment", out=ready)
        self.tell("exec", "cat", code=1, err="cat: /results/done.json: No such file", times=1)
        self.tell("exec", "cat", out=json.dumps(DONE))
        self.tell("cp", copy=str(self.folder / "pod"))
        self.tell("exec", "touch")
        self.tell("logs", out="[pod/x] a line\n")
        ended = {"status": {"conditions": [{"type": "Complete", "status": "True"}]}}
        self.tell("get", "jobs", out=listed({"status": {}}, ended), times=1)
        self.tell("get", "jobs", out=listed(ended, ended))
        self.tell("delete", out='job.batch "agentload-master-ci1-run7" deleted\n')
        label = "app.kubernetes.io/name=agentload,app.kubernetes.io/instance=run7"
        self.tell("get", "pods", f"{label},{only_master}", out=listed(master))
        self.tell("get", "pods", only_master, out=listed(master))
        self.tell("get", "pods", out=listed(master, worker))

    def run(self, *argv: str) -> int:
        (self.folder / "answers.json").write_text(json.dumps(self.answers))
        return main(argv)

    @property
    def calls(self) -> list[list[str]]:
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line)["args"] for line in lines]

    @property
    def verbs(self) -> list[str]:
        """The first words of the calls, one after the other, each once in a row."""
        found: list[str] = []
        for call in self.calls:
            words = [w for w in call if w not in ("--namespace", "--context", "load", "west")]
            verb = words[0] if words[0] != "exec" else f"exec {words[words.index('--') + 1]}"
            if found[-1:] != [verb]:
                found.append(verb)
        return found

    @property
    def applied(self) -> str:
        for line in (self.folder / "calls.jsonl").read_text().splitlines():
            call = json.loads(line)
            if "apply" in call["args"]:
                return str(call["text"])
        raise AssertionError("nothing was applied")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """A played cluster, and a finished run in its master's pod."""
    monkeypatch.setattr("agentload.kubernetes.run.POLL_S", 0.01)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    program = bin_folder / "kubectl"
    fake = Path(__file__).with_name("fake_kubectl.py")
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{fake}" "$@"\n')
    program.chmod(0o755)
    real = kubectl.find()
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    monkeypatch.setenv("FAKE_KUBECTL", str(tmp_path))
    monkeypatch.setenv("REAL_KUBECTL", real)
    run = tmp_path / "pod" / "run7"
    run.mkdir(parents=True)
    (run / "manifest.json").write_text(json.dumps({"counts": {"recorded": 2}}))
    (run / "turns.csv").write_text('run_id,error_text\nrun7,\nrun7,"two\nlines"\n')
    (tmp_path / "pod" / "done.json").write_text(json.dumps(DONE))
    (tmp_path / "pod" / "locust_stats.csv").write_text("Type,Name\n")
    return Cluster(tmp_path)


def run_ci(cluster: Cluster, *flags: str) -> int:
    return cluster.run(
        "run",
        "--overlay",
        str(K8S / "overlays/ci"),
        "--run-id=run7",
        f"--runs={cluster.folder / 'runs'}",
        *flags,
    )


@pytest.mark.slow
def test_a_run_from_the_first_step_to_the_last(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.tell_all_is_well()
    assert run_ci(cluster, "--namespace=load", "--context=west") == 0
    assert cluster.verbs == [
        "get",  # the namespace
        "apply",
        "get",  # the server, pods
        "exec cat",
        "get",
        "exec cat",
        "get",
        "cp",
        "get",
        "logs",
        "exec touch",  # only when the copy is here
        "get",  # the Jobs
        "exec touch",
        "get",
        "delete",
    ]
    for call in cluster.calls:
        assert call[:4] == ["--context", "west", "--namespace", "load"]
    folder = cluster.folder / "runs" / "run7"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {
        "manifest.json",
        "turns.csv",
        "done.json",
        "locust_stats.csv",
        f"pods/{MASTER}.log",
        "pods/agentload-worker-ci1-run7-a.log",
    }
    assert list((cluster.folder / "runs").iterdir()) == [folder]  # no scratch
    applied = Rendered.from_yaml(cluster.applied)
    assert {w.name for w in applied.workloads()} == {
        f"agentload-{part}-ci1-run7" for part in ("master", "worker", "server")
    }
    deleted = cluster.calls[-1]
    assert "app.kubernetes.io/name=agentload,app.kubernetes.io/instance=run7" in deleted
    assert not any("persistentvolumeclaim" in word for word in deleted)
    shown = "".join(capfd.readouterr())
    assert "is complete (valid)" in shown
    assert CANARY not in shown
    assert not any(CANARY in word for call in cluster.calls for word in call)


@pytest.mark.slow
def test_an_invalid_run_gives_its_code_and_its_reasons_and_may_be_kept(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    told = {**DONE, "exit_code": 3, "verdict": "invalid", "reasons": ["worker w1 lost at 9.1 s"]}
    cluster.tell("exec", "cat", out=json.dumps(told))
    cluster.tell_all_is_well()
    assert run_ci(cluster, "--keep") == 3
    assert "worker w1 lost at 9.1 s" in capfd.readouterr().err
    assert "delete" not in cluster.verbs


@pytest.mark.slow
def test_a_copy_that_is_not_whole_is_left_in_the_pod(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.tell_all_is_well()
    turns = cluster.folder / "pod" / "run7" / "turns.csv"
    turns.write_text("run_id,error_text\nrun7,\n")
    assert run_ci(cluster) == 1
    assert "1 turns, the manifest counts 2" in capfd.readouterr().err
    assert "exec touch" not in cluster.verbs
    assert "delete" not in cluster.verbs
    assert list((cluster.folder / "runs").iterdir()) == []


@pytest.mark.slow
def test_shards_of_the_workers_are_collected_from_each_pod(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    run = cluster.folder / "pod" / "run7"
    (run / "manifest.json").write_text('{"rows_on": "worker", "counts": {"recorded": 2}}')
    for number in (1, 2):
        shard = cluster.folder / f"shards{number}" / f"w{number}-x"
        shard.mkdir(parents=True)
        (shard / "turns.csv").write_text("run_id\n")
        source = f"worker-{number}:/spool/runs/run7/shards"
        cluster.tell("cp", source, copy=str(shard.parent))
    label = "app.kubernetes.io/name=agentload,app.kubernetes.io/instance=run7"
    workers = [pod("worker-1", "worker"), pod("worker-2", "worker"), pod("w3", "worker", "Failed")]
    only_workers = f"{label},app.kubernetes.io/component=worker"
    cluster.tell("get", "pods", only_workers, out=listed(*workers))
    cluster.tell("exec", "/spool/done.json", code=1, err="No such file", times=1)
    cluster.tell("exec", "/spool/done.json", out="{}")
    cluster.tell_all_is_well()
    assert run_ci(cluster, f"--component={K8S / 'components/record-on-worker'}") == 0
    folder = cluster.folder / "runs" / "run7"
    assert {p.name for p in (folder / "shards").iterdir()} == {"w1-x", "w2-x"}
    touched = [call[1] for call in cluster.calls if "touch" in call]
    assert touched[:3] == ["worker-1", "worker-2", MASTER]
    assert f"agentload merge {folder}" in capfd.readouterr().err
    master = Rendered.from_yaml(cluster.applied).workloads("master")[0]
    assert "--record-on=worker" in master.pod["containers"][0]["args"]


UNSCHEDULABLE = {
    "conditions": [
        {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        }
    ]
}
TROUBLES = {
    "image": (
        pod("server-1", "server", "Pending", **container("server", waiting={
            "reason": "ImagePullBackOff", "message": 'Back-off pulling image "agentload:0.1.0"'})),
        'pod server-1: ImagePullBackOff: container server: the image cannot be pulled: Back-off '
        'pulling image "agentload:0.1.0"',
    ),
    "memory": (
        pod("server-1", "server", **{"containerStatuses": [{
            "name": "server", "state": {"running": {}},
            "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}]}),
        "pod server-1: OOMKilled: container server used more than its memory limit 2Gi",
    ),
    "crash": (
        pod("server-1", "server", **container("server", terminated={
            "reason": "Error", "exitCode": 2})),
        "pod server-1: Error: container server ended with exit code 2",
    ),
    "secret": (
        pod("server-1", "server", "Pending", **container("server", waiting={
            "reason": "CreateContainerConfigError", "message": 'secret "x" not found'})),
        'something it refers to is not there: secret "x" not found',
    ),
    "node": (
        pod("server-1", "server", "Pending", **UNSCHEDULABLE),
        "Unschedulable: 0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
    ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", TROUBLES)
def test_a_server_that_does_not_come_is_named_with_the_reason(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    broken, reason = TROUBLES[name]
    cluster.tell("get", "deployment", out='{"spec": {"replicas": 1}, "status": {}}')
    cluster.tell("get", "pods", out=listed(broken))
    cluster.tell("logs", out="last words\n")
    cluster.tell("apply", out="")
    assert run_ci(cluster, "--ready-timeout-s=0.05") == 1
    said = capfd.readouterr().err
    assert reason in said
    assert ("| last words" in said) == (name != "node")  # a node may still come: until the limit
    assert "delete" not in cluster.verbs


@pytest.mark.slow
def test_a_worker_that_dies_does_not_end_the_wait(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    dead = pod("worker-1", "worker", **container("worker", terminated={
        "reason": "OOMKilled", "exitCode": 137}))  # fmt: skip
    cluster.tell("get", "pods", "app.kubernetes.io/name=agentload,app.kubernetes.io/instance=run7",
                 out=listed(pod(MASTER, "master"), dead))  # fmt: skip
    cluster.tell_all_is_well()
    assert run_ci(cluster) == 0
    assert "pod worker-1: OOMKilled" in capfd.readouterr().err


@pytest.mark.slow
def test_a_master_that_was_not_collected_in_time_is_told(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.tell("get", "pods", out=listed(pod(MASTER, "master", "Succeeded")))
    assert cluster.run("collect", "run7") == 1
    assert "has ended before it was collected" in capfd.readouterr().err


@pytest.mark.slow
def test_the_master_that_is_deleted_is_collected_and_its_replacement_let_go(
    cluster: Cluster,
) -> None:
    """As seen on a real cluster: the Job made a second master while the first closed its run."""
    old = pod("master-z", "master", conditions=[{"type": "DisruptionTarget", "status": "True"}])
    old["metadata"] |= {"creationTimestamp": "2026-11-29T22:31:04Z"}
    new = pod("master-b", "master")
    new["metadata"] |= {"creationTimestamp": "2026-11-29T22:31:41Z"}
    gone = pod("master-a", "master", "Failed")
    gone["metadata"] |= {"creationTimestamp": "2026-11-29T22:30:00Z"}
    only_master = "app.kubernetes.io/component=master"
    label = "app.kubernetes.io/name=agentload,app.kubernetes.io/instance=run7"
    cluster.tell("get", "pods", f"{label},{only_master}", out=listed(gone, new, old))
    cluster.tell("get", "pods", label, out=listed(gone, new, old))
    cluster.tell_all_is_well()
    assert cluster.run("collect", "run7", f"--runs={cluster.folder / 'runs'}") == 0
    assert [call[1] for call in cluster.calls if "cat" in call] == ["master-z", "master-z"]
    assert [call[1] for call in cluster.calls if call[0] == "cp"] == ["master-z:/results"]
    assert {call[1] for call in cluster.calls if "touch" in call} == {"master-z", "master-b"}


@pytest.mark.slow
def test_collect_and_delete_by_run_id(cluster: Cluster, capfd: pytest.CaptureFixture[str]) -> None:
    cluster.tell_all_is_well()
    assert cluster.run("collect", "run7", f"--runs={cluster.folder / 'runs'}") == 0
    assert (cluster.folder / "runs/run7/manifest.json").exists()
    assert cluster.run("delete", "run7") == 0
    # First the pods are told, else they would wait their grace period for a collection.
    assert cluster.verbs[-5:] == ["get", "exec touch", "get", "exec touch", "delete"]
    again = cluster.run("collect", "run7", f"--runs={cluster.folder / 'runs'}")
    assert again == 1
    assert "is there already: move it away" in capfd.readouterr().err


@pytest.mark.slow
def test_a_run_that_is_not_there_is_told_with_those_that_are(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.tell(
        "get", "pods", "app.kubernetes.io/component=master", out=listed(pod("m", "master"))
    )
    cluster.tell("get", "pods", out=listed())
    assert cluster.run("collect", "other") == 1
    assert "there is no run other; there are: run7" in capfd.readouterr().err


@pytest.mark.slow
def test_status_lists_pods_and_what_is_wrong(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    cluster.tell("get", "pods", out=listed(pod(MASTER, "master"), TROUBLES["node"][0]))
    assert cluster.run("status") == 0
    shown = capfd.readouterr().out
    assert f"run7  master  {MASTER}  Running" in shown
    assert "pod server-1: Unschedulable: 0/3 nodes" in shown


@pytest.mark.slow
def test_what_the_run_needs_has_to_be_there(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    missing = 'Error from server (NotFound): secrets "agentload-api-key" not found'
    cluster.tell("get", "Secret", code=1, err=missing)
    cluster.tell("get", "Service", out="service/x")
    code = cluster.run(
        "run",
        f"--overlay={K8S / 'overlays/run-jobs'}",
        f"--component={K8S / 'components/api-key'}",
    )
    said = capfd.readouterr().err
    assert code == 1
    assert "uses Secret/agentload-api-key, which is not there" in said
    assert "kubectl create secret generic agentload-api-key --from-file=api-key=FILE" in said
    assert "apply" not in cluster.verbs


FAILURES = {
    "namespace": ("Error from server (NotFound): namespaces \"load\" not found",
                  "there is no namespace 'load': kubectl create namespace load"),
    "context": ('error: context "west" does not exist', "`kubectl config get-contexts` lists them"),
    "cluster": ("The connection to the server localhost:8080 was refused - did you specify the "
                "right host or port?", "says which cluster is asked"),
    "rights": ('Error from server (Forbidden): namespaces "load" is forbidden: User "u" cannot get',
               "the account of this context may not"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FAILURES)
def test_what_kubectl_cannot_do_is_told_with_the_mend(
    cluster: Cluster, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    stderr, mend = FAILURES[name]
    cluster.tell("get", "namespace", code=1, err=stderr)
    assert run_ci(cluster, "--namespace=load", "--context=west") == 1
    assert mend in capfd.readouterr().err


@pytest.mark.slow
def test_an_overlay_of_a_server_alone_is_no_run(capfd: pytest.CaptureFixture[str]) -> None:
    root = Path(__file__).parents[2]
    overlay = root / "k8s" / "overlays" / "variants" / "chunked-on-cache-on"
    assert main(["run", f"--overlay={overlay}", "--dry-run"]) == 1
    assert "the overlay has no load in it" in capfd.readouterr().err


def test_without_kubectl(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    assert main(["status"]) == 1
    assert "kubectl is not on the PATH" in capfd.readouterr().err


@pytest.mark.slow
def test_a_dry_run_shows_the_rendering_without_the_key(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_ci(cluster, "--dry-run", "--workers=5") == 0
    shown = capfd.readouterr().out
    rendered = Rendered.from_yaml(shown)
    assert [w.spec["parallelism"] for w in rendered.workloads("worker")] == [5]
    (secret,) = rendered.of_kind("Secret")
    assert secret["data"] == {"api-key": "<not shown>"}
    assert CANARY not in shown
    assert cluster.calls == []


@pytest.mark.slow
def test_all_faults_of_what_is_wished_are_told_at_once(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    code = cluster.run(
        "run", "--overlay=nowhere", "--run-id=Run_7", "--workers=0", "--scenario=absent.yaml"
    )
    said = capfd.readouterr().err
    assert code == 2
    for fault in ("--run-id 'Run_7'", "nowhere: there is no kustomization.yaml",
                  "--scenario absent.yaml: no such file", "--workers 0: at least 1"):  # fmt: skip
        assert fault in said
    page = cluster.run("run", f"--overlay={K8S / 'overlays/run-ui'}")
    assert page == 2
    assert "has no master Job" in capfd.readouterr().err
