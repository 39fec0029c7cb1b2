"""Brings a run folder from the master's pod to this machine."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from agentload.kubernetes.kubectl import KubectlError
from agentload.kubernetes.objects import COMPONENT
from agentload.kubernetes.run import RESULTS, SPOOL, Cluster, RunError
from agentload.recording.record import MANIFEST_JSON, TURNS_CSV

COPY_S = 1800.0
WORKERS_S = 120.0
SHARDS = "shards"
LOGS = "pods"


def collect(cluster: Cluster, done: dict[str, Any], runs: Path) -> Path:
    """Copy the results, compare them with what the master says, tell its pod that they are here.

    The run folder `runs/<run id>` gets Locust's own files, `done.json` and the pods' logs as well.
    Raises `RunError`; then the pod keeps waiting, and nothing is in `runs`.
    """
    pod = cluster.master_pod()
    if pod is None:
        raise RunError(f"there is no master pod of run {cluster.run_id}")
    target = runs / cluster.run_id
    if target.exists():
        raise RunError(f"{target} is there already: move it away, then collect again")
    runs.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{cluster.run_id}-", dir=runs))
    try:
        folder = _copied(cluster, pod["metadata"]["name"], scratch / "results")
        workers = _check(cluster, folder, done)
        _save_logs(cluster, folder)
        folder.rename(target)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    for worker in workers:
        cluster.in_worker(worker, "touch", f"{SPOOL}/collected")
    cluster.in_master(pod, "touch", f"{RESULTS}/collected")
    if workers:
        cluster.say(f"the rows are in shards: agentload merge {target}")
    return target


def _copied(cluster: Cluster, pod: str, scratch: Path) -> Path:
    """The run folder, with the files that were beside it in the pod put into it."""
    cluster.kubectl.call(
        "cp", f"{pod}:{RESULTS}", str(scratch), "-c", "master", "--retries=3", timeout_s=COPY_S
    )
    folder = scratch / cluster.run_id
    folder.mkdir(exist_ok=True)  # the run may have been refused before it had one
    for beside in scratch.iterdir():
        if beside.is_file():
            beside.rename(folder / beside.name)
    return folder


def _check(cluster: Cluster, folder: Path, done: dict[str, Any]) -> list[str]:
    """As many turns as the master recorded; a copy that broke off is found here.

    Where the rows stayed on the workers their shards are copied, for `agentload merge` to check;
    the pods that had them.
    """
    if done.get("state") is None:
        return []
    try:
        manifest = json.loads((folder / MANIFEST_JSON).read_text(encoding="utf-8"))
        if manifest.get("rows_on") == "worker":
            return _copy_shards(cluster, folder)
        recorded = manifest["counts"]["recorded"]
        with (folder / TURNS_CSV).open(encoding="utf-8", newline="") as file:
            rows = sum(1 for _ in csv.reader(file)) - 1
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"the copied run cannot be read: {error}") from None
    if rows != recorded:
        raise RunError(f"the copy is not whole: {rows} turns, the manifest counts {recorded}")
    return []


def _copy_shards(cluster: Cluster, folder: Path) -> list[str]:
    """Put every worker's shards below `shards`; each has a name of its own."""
    workers = cluster.wait_workers(WORKERS_S)
    (folder / SHARDS).mkdir(exist_ok=True)
    for worker in workers:
        place = folder / f".{worker}"
        source = f"{worker}:{SPOOL}/runs/{cluster.run_id}/{SHARDS}"
        words = ("cp", source, str(place), "-c", "worker", "--retries=3")
        cluster.kubectl.call(*words, timeout_s=COPY_S)
        for shard in place.iterdir():
            shard.rename(folder / SHARDS / shard.name)
        place.rmdir()
    return workers


def _save_logs(cluster: Cluster, folder: Path) -> None:
    """What every pod of the run wrote; a pod that is gone has none."""
    logs = folder / LOGS
    logs.mkdir(exist_ok=True)
    for pod in cluster.kubectl.get("pods", "-l", cluster.label)["items"]:
        name = pod["metadata"]["name"]
        component = (pod["metadata"].get("labels") or {}).get(COMPONENT, "")
        try:
            text = cluster.kubectl.call("logs", name, "--all-containers", "--prefix")
        except KubectlError as error:
            cluster.say(f"no log of {component} {name}: {error}")
            continue
        (logs / f"{name}.log").write_text(text, encoding="utf-8")
