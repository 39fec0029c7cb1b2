"""Arms that did not get what they asked for are not compared; arms on a cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent


def experiment(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "agentload", "experiment", *args],
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "COLUMNS": "200", **env},
        check=False,
    )


def cells(runs: Path) -> dict[str, dict[str, Any]]:
    """Arm -> its cell of the only experiment in the folder."""
    (file,) = runs.glob("*/experiment.json")
    return {c["arm"]: c for c in json.loads(file.read_text(encoding="utf-8"))["cells"]}


def lying(how: str) -> dict[str, Any]:
    flags = {"max-model-len": 32768, "enable-per-request-metrics": True}
    asked = {"enable-chunked-prefill": True, "max-num-batched-tokens": 2048}
    return {
        "name": f"lie-{how}",
        "scenario": str(HERE / "small.yaml"),
        "target": {
            "kind": "command",
            "command": [sys.executable, str(HERE / "liar.py"), how, "--port", "{port}"],
            "model": "Qwen2.5-7B",
            "flags": {**flags, **asked, "enable-prefix-caching": True},
        },
        "arms": [{"name": how}],
    }


def test_a_server_that_ignores_a_flag_gets_no_load(tmp_path: Path) -> None:
    file = tmp_path / "deaf.yaml"
    file.write_text(yaml.safe_dump(lying("deaf")))
    done = experiment(str(file), "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 1, done.stdout + done.stderr
    cell = cells(tmp_path / "runs")["deaf"]
    assert cell["state"] == "refused"
    assert "enable-prefix-caching: asked for on, in force False (/metrics)" in done.stdout
    assert "deaf: not compared" in done.stdout
    assert cell["server_probe"] == {}, "what is told already is not tried out"
    assert not list((tmp_path / "runs").glob("*/report.html"))
    assert not list((tmp_path / "runs").glob("*/*/turns.csv"))


def test_a_server_whose_log_boasts_is_found_out_by_trial(tmp_path: Path) -> None:
    file = tmp_path / "boasting.yaml"
    file.write_text(yaml.safe_dump(lying("boasting")))
    done = experiment(str(file), "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 1, done.stdout + done.stderr
    cell = cells(tmp_path / "runs")["boasting"]
    assert cell["server_found"]["enable_chunked_prefill"] == "True", "so the log says"
    assert cell["server_sources"]["enable_chunked_prefill"] == "the server's log"
    assert cell["state"] == "refused"
    assert cell["server_probe"]["effective"] is False
    assert "enable-chunked-prefill: asked for on, in effect off (probe" in done.stdout


class Cluster:
    """The folder of `fake_kubectl.py`, and the environment in which it is `kubectl`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        tool = folder / "bin" / "kubectl"
        shutil.copy(HERE / "fake_kubectl.py", tool)
        tool.chmod(0o755)
        real = shutil.which("kubectl")
        assert real is not None, "the tests need kubectl; no cluster"
        here = Path(sys.executable).parent  # python3 of the shebang has PyYAML then
        path = f"{tool.parent}:{here}:{os.environ['PATH']}"
        self.env = {"PATH": path, "FAKE_CLUSTER": str(folder), "REAL_KUBECTL": real}

    def calls(self) -> list[dict[str, Any]]:
        text = (self.folder / "calls.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def test_arms_on_a_cluster_are_applied_measured_and_deleted(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    (cluster.folder / "deaf").touch()  # so the arm without a cache does not get what it asks for
    runs = tmp_path / "runs"
    done = experiment(str(HERE / "kubernetes.yaml"), "--runs-dir", str(runs), **cluster.env)
    assert done.returncode == 1, done.stdout + done.stderr
    found = cells(runs)
    assert (found["cache-on"]["state"], found["cache-off"]["state"]) == ("complete", "refused")
    assert found["cache-on"]["server_wished"]["enable-prefix-caching"] is True
    assert found["cache-on"]["server_sources"]["enable_chunked_prefill"] == "the server's log"
    assert "asked for off, in force True" in done.stdout
    assert "port-forward" in " ".join(found["cache-on"]["notes"])
    (run,) = runs.glob("*/*/turns.csv")
    manifest = json.loads((run.parent / "manifest.json").read_text())
    assert manifest["state"] == "complete"
    assert manifest["arm"]["settings"]["max_num_batched_tokens"] == "8192"
    assert (runs / run.parent.parent.name / "report.html").exists()

    calls = [c["words"] for c in cluster.calls()]
    assert {tuple(w[:2]) for w in calls if w[0] != "kustomize"} == {
        ("--context=fake", "--namespace=load")
    }
    done_by = [w[2] for w in calls if w[0] != "kustomize"]
    one_arm = ["delete", "apply", "rollout", "port-forward", "logs", "logs", "delete"]
    assert done_by == one_arm * 2
    kept = [c["stdin"] for c in cluster.calls() if "-f" in c["words"]]
    assert all("Deployment" in text and "PersistentVolumeClaim" not in text for text in kept)
    assert not (cluster.folder / "server.json").exists(), "no server is left"


def test_overlays_that_differ_in_more_than_was_meant_are_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    shutil.copytree(HERE / "overlays", tmp_path / "overlays")
    other = tmp_path / "overlays" / "cache-off" / "kustomization.yaml"
    other.write_text(other.read_text() + "images: [{name: agentload, newTag: 0.2.0}]\n")
    plan = yaml.safe_load((HERE / "kubernetes.yaml").read_text())
    plan["scenario"] = str(HERE / "small.yaml")
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(plan))
    done = experiment(str(file), "--runs-dir", str(tmp_path / "runs"), **cluster.env)
    assert done.returncode == 2
    assert "'overlay.containers.0.image' (agentload:0.1.0, agentload:0.2.0)" in done.stderr
    assert {c["words"][0] for c in cluster.calls()} == {"kustomize"}
    assert not (tmp_path / "runs").exists()
