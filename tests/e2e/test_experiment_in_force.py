"""Arms that did not get what they asked for are not compared; arms on a cluster."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentload.kubernetes import kubectl

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
GPU_PAGE = b"""DCGM_FI_DEV_FB_USED{gpu="0"} 40960
DCGM_FI_DEV_FB_FREE{gpu="0"} 40960
DCGM_FI_DEV_GPU_UTIL{gpu="0"} 75
"""


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


def plan_with(folder: Path, **of_target: str) -> Path:
    """The experiment on a cluster in a folder of its own, with further keys of the target."""
    shutil.copytree(HERE / "overlays", folder / "overlays")
    plan = yaml.safe_load((HERE / "kubernetes.yaml").read_text())
    plan["scenario"] = str(HERE / "small.yaml")
    plan["target"] |= of_target
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump(plan))
    return file


class Cluster:
    """The folder of `fake_kubectl.py`, and the environment in which it is `kubectl`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)
        tool = folder / "bin" / "kubectl"
        shutil.copy(HERE / "fake_kubectl.py", tool)
        tool.chmod(0o755)
        here = Path(sys.executable).parent  # python3 of the shebang has PyYAML then
        path = f"{tool.parent}:{here}:{os.environ['PATH']}"
        self.env = {"PATH": path, "FAKE_CLUSTER": str(folder), "REAL_KUBECTL": kubectl.find()}

    def calls(self) -> list[dict[str, Any]]:
        text = (self.folder / "calls.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def exporter() -> Iterator[str]:
    """The page of a DCGM exporter with one GPU of 80 GiB, half of it used."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(GPU_PAGE)

        def log_message(self, *_: object) -> None:
            """Silence."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.needs("kubectl")
def test_arms_on_a_cluster_are_applied_measured_and_deleted(tmp_path: Path, exporter: str) -> None:
    cluster = Cluster(tmp_path / "cluster")
    (cluster.folder / "deaf").touch()  # so the arm without a cache does not get what it asks for
    runs = tmp_path / "runs"
    file = plan_with(tmp_path, dcgm_url=exporter)
    done = experiment(str(file), "--runs-dir", str(runs), **cluster.env)
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
    folder = run.parent.parent
    assert (folder / "report.html").exists()
    (gpu,) = json.loads((folder / "summary.json").read_text())["arms"][0]["gpu"]
    assert (gpu["memory_used_mib_max"], gpu["memory_share_max"]) == (40_960, 0.5)
    assert gpu["utilisation_mean"] == 0.75
    warning = "most sessions will not reach their last turn"
    assert "cache-on, cache-off: the run is shorter (2 s) than a session" in done.stdout
    assert warning in (run.parent / "events.csv").read_text()
    assert warning in (folder / f"{run.parent.name}.load.log").read_text()

    calls = [c["words"] for c in cluster.calls()]
    assert {tuple(w[:4]) for w in calls if w[0] != "kustomize"} == {
        ("--context", "fake", "--namespace", "load")
    }
    done_by = [w[4] for w in calls if w[0] != "kustomize"]
    one_arm = ["delete", "apply", "rollout", "port-forward", "logs", "logs", "delete"]
    assert done_by == one_arm * 2
    kept = [c["stdin"] for c in cluster.calls() if "-f" in c["words"]]
    assert all("Deployment" in text and "PersistentVolumeClaim" not in text for text in kept)
    assert not (cluster.folder / "server.json").exists(), "no server is left"


@pytest.mark.needs("kubectl")
def test_overlays_that_differ_in_more_than_was_meant_are_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "cluster")
    file = plan_with(tmp_path)
    other = tmp_path / "overlays" / "cache-off" / "kustomization.yaml"
    other.write_text(other.read_text() + "images: [{name: agentload, newTag: 0.2.0}]\n")
    done = experiment(str(file), "--runs-dir", str(tmp_path / "runs"), **cluster.env)
    assert done.returncode == 2
    assert "'overlay.containers.0.image' (agentload:0.1.0, agentload:0.2.0)" in done.stderr
    assert {c["words"][0] for c in cluster.calls()} == {"kustomize"}
    assert not (tmp_path / "runs").exists()
