"""Every folder of `k8s/` renders to the objects that are meant, no more and no fewer."""

from __future__ import annotations

import base64
import difflib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentload.kubernetes.checks import faults
from agentload.kubernetes.objects import Rendered
from agentload.kubernetes.render import MAX_RUN_ID, Wishes, write
from agentload.kubernetes.run import KINDS
from tests.k8s.conftest import K8S, ROOT, overlay_folders, render_folder

pytestmark = pytest.mark.needs("kubectl")

LOAD = {"ConfigMap": 1, "Service": 1, "PodDisruptionBudget": 2, "Job": 2}
SERVER = {"ConfigMap": 1, "Service": 2, "Deployment": 1}
VARIANT = Counter(SERVER)
COUNTS = {
    "ci": Counter(LOAD) + Counter(SERVER) + Counter({"ConfigMap": 1, "Secret": 1}),
    "demo": Counter(LOAD) + Counter(SERVER) + Counter({"NetworkPolicy": 3}),
    "run-jobs": Counter(LOAD) + Counter({"NetworkPolicy": 2}),
    "run-ui": Counter({"ConfigMap": 1, "Service": 1, "Deployment": 2, "NetworkPolicy": 2}),
    "variants/chunked-on-cache-on": VARIANT,
    "variants/chunked-on-cache-off": VARIANT,
    "variants/chunked-off-cache-on": VARIANT,
    "variants/chunked-off-cache-off": VARIANT,
}
# What a component adds to the demo, and the components it stands on.
COMPONENTS: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "api-key": ({}, ()),
    "chunked-prefill-off": ({}, ()),
    "chunked-prefill-on": ({}, ()),
    "gpu-pool": ({}, ()),
    "network-policy": ({}, ()),
    "network-policy-scrape": ({"NetworkPolicy": 2}, ("prometheus-scrape",)),
    "network-policy-server": ({}, ()),
    "prefix-cache-off": ({}, ()),
    "prefix-cache-on": ({}, ()),
    "prometheus-scrape": ({}, ()),
    "record-on-worker": ({}, ()),
    "replicas": ({}, ()),
    "results-pvc": ({}, ()),
    "router": ({"ConfigMap": 2, "Service": 1, "Deployment": 1}, ()),
    "session-stickiness": ({"ConfigMap": 2, "Service": 1, "Deployment": 1}, ("router",)),
}
IN_THE_DEMO = ("network-policy", "network-policy-server")


def kinds(text: str) -> Counter[str]:
    return Counter(one["kind"] for one in Rendered.from_yaml(text).objects)


@pytest.mark.parametrize("folder", overlay_folders(), ids=lambda p: str(p.relative_to(K8S)))
def test_an_overlay_has_the_objects_that_are_meant(folder: Path) -> None:
    assert kinds(render_folder(folder)) == COUNTS[str(folder.relative_to(K8S / "overlays"))]


def render_run(folder: Path, **wishes: object) -> str:
    write(Wishes(**{"run_id": "run7", "overlay": K8S / "overlays/demo", **wishes}), folder)  # type: ignore[arg-type]
    return render_folder(folder)


@pytest.mark.parametrize("name", sorted(set(COMPONENTS) - set(IN_THE_DEMO)))
def test_a_component_adds_what_is_meant(name: str, tmp_path: Path) -> None:
    added, before = COMPONENTS[name]
    folders = tuple(K8S / "components" / one for one in (*before, name))
    text = render_run(tmp_path, components=folders)
    assert kinds(text) == COUNTS["demo"] + Counter(added)


def test_every_component_builds_in_some_test() -> None:
    there = {path.parent.name for path in (K8S / "components").glob("*/kustomization.yaml")}
    used = {"scenario-file"}  # by the ci overlay
    assert there == set(COMPONENTS) | used


def test_the_four_variants_differ_in_exactly_two_flags() -> None:
    texts = {}
    for chunked in ("on", "off"):
        for cache in ("on", "off"):
            name = f"chunked-{chunked}-cache-{cache}"
            text = render_folder(K8S / "overlays/variants" / name)
            texts[chunked, cache] = text.replace(f"-{name}", "").replace(name, "VARIANT")
    first = texts["on", "on"]
    assert "- --enable-chunked-prefill\n" in first
    assert "- --enable-prefix-caching\n" in first
    for (chunked, cache), text in texts.items():
        lines = difflib.unified_diff(first.splitlines(), text.splitlines(), n=0, lineterm="")
        changed = {
            line for line in lines if not line.startswith(("---  ", "+++  ", "--- ", "+++ ", "@@"))
        }
        switches = {"chunked-prefill": chunked, "prefix-caching": cache}
        off = [name for name, value in switches.items() if value == "off"]
        expected = {f"-        - --enable-{name}" for name in off}
        expected |= {f"+        - --no-enable-{name}" for name in off}
        assert {re.sub(" +", " ", line) for line in changed} == {
            re.sub(" +", " ", line) for line in expected
        }


def test_a_run_id_reaches_names_labels_hosts_and_the_run_folder(tmp_path: Path) -> None:
    run = Rendered.from_yaml(render_run(tmp_path, run_id="r" * MAX_RUN_ID, workers=5))
    run_id = "r" * MAX_RUN_ID
    for made in run.objects:
        assert f"-demo1-{run_id}" in made["metadata"]["name"]
        assert made["metadata"]["labels"]["app.kubernetes.io/instance"] == run_id
        if made["kind"] not in ("ConfigMap", "Secret"):
            assert len(made["metadata"]["name"]) <= 63
    (master,), (worker,) = run.workloads("master"), run.workloads("worker")
    line = run.command_line(master.pod["containers"][0])
    assert f"--run-id={run_id}" in line
    assert "--expect-workers=5" in line
    assert f"--host=http://agentload-server-demo1-{run_id}:8000/v1" in line
    assert f"--metrics-url=dns://agentload-server-pods-demo1-{run_id}:8000/metrics" in line
    assert (worker.spec["parallelism"], worker.spec["completions"]) == (5, 5)
    assert f"--master-host=agentload-master-demo1-{run_id}" in run.command_line(
        worker.pod["containers"][0]
    )


def test_a_delete_finds_all_that_a_run_made(tmp_path: Path) -> None:
    """What its labels or kinds do not find stays in the cluster, a Secret with its key as well."""
    run = Rendered.from_yaml(
        render_run(
            tmp_path,
            overlay=K8S / "overlays/ci",
            scenario=ROOT / "scenarios/smoke.yaml",
            components=(K8S / "components/router", K8S / "components/network-policy"),
        )
    )
    asked = {"app.kubernetes.io/name": "agentload", "app.kubernetes.io/instance": "run7"}
    missed = [m["metadata"] for m in run.objects if not asked.items() <= labels_of(m).items()]
    assert missed == []
    assert {f"{made['kind'].lower()}s" for made in run.objects} <= {
        kind.replace("policies", "policys") for kind in KINDS.split(",")
    }


@pytest.mark.parametrize("folder", overlay_folders(), ids=lambda p: str(p.relative_to(K8S)))
def test_a_delete_by_hand_finds_all_of_an_overlay(folder: Path) -> None:
    made = Rendered.from_yaml(render_folder(folder)).objects
    assert {labels_of(one).get("app.kubernetes.io/name") for one in made} == {"agentload"}


def labels_of(made: dict[str, Any]) -> dict[str, str]:
    return dict(made["metadata"].get("labels") or {})


def test_what_a_run_wishes_otherwise_is_rendered(tmp_path: Path) -> None:
    text = render_run(
        tmp_path,
        overlay=K8S / "overlays/run-jobs",
        scenario=ROOT / "scenarios/smoke.yaml",
        arm="budget-4096",
        base_url="https://gateway.example/team/v1",
        image="registry.example:5000/team/agentload:1.2",
    )
    run = Rendered.from_yaml(text)
    (master,) = run.workloads("master")
    line = run.command_line(master.pod["containers"][0])
    assert "--host=https://gateway.example/team/v1" in line
    assert "--metrics-url=" in line  # /metrics of that address
    assert "--arm=budget-4096" in line
    assert "--scenario=/own-scenario/scenario.yaml" in line
    assert {one["image"] for one in master.containers} == {
        "registry.example:5000/team/agentload:1.2"
    }
    waits_for = run.command_line(master.pod["initContainers"][0])[-1]
    assert waits_for == "https://gateway.example/team/v1/models"
    scenarios = [o for o in run.of_kind("ConfigMap") if "scenario.yaml" in o["data"]]
    own = (ROOT / "scenarios/smoke.yaml").read_text()
    assert [yaml.safe_load(o["data"]["scenario.yaml"]) for o in scenarios] == [yaml.safe_load(own)]


def test_the_router_stands_before_the_replicas(tmp_path: Path) -> None:
    names = ("replicas", "router", "session-stickiness")
    folders = tuple(K8S / "components" / name for name in names)
    run = Rendered.from_yaml(render_run(tmp_path, components=folders))
    (master,), (router,), (server,) = map(run.workloads, ("master", "router", "server"))
    assert server.spec["replicas"] == 2
    line = run.command_line(master.pod["containers"][0])
    assert f"--host=http://{router.name}:8000/v1" in line
    assert (
        f"--metrics-url=dns://{server.name.replace('server', 'server-pods')}:8000/metrics" in line
    )
    assert run.environment(router.pod["containers"][0])["BALANCE"] == "hdr(X-Session-ID)"


def test_the_overlay_that_the_document_writes_by_hand_is_a_run(tmp_path: Path) -> None:
    document = (ROOT / "docs/kubernetes.md").read_text()
    block = re.search(r"\n\n((?: {7}\S.*\n)+)", document)
    assert block is not None
    overlay = os.path.relpath(K8S / "overlays/demo", tmp_path)
    text = block[1].replace("../k8s/overlays/demo", overlay).replace("\n       ", "\n")
    (tmp_path / "kustomization.yaml").write_text(text.lstrip())
    run = Rendered.from_yaml(render_folder(tmp_path))
    assert kinds(render_folder(tmp_path)) == COUNTS["demo"]
    assert faults(run) == []
    (master,) = run.workloads("master")
    assert "--run-id=run7" in run.command_line(master.pod["containers"][0])


def test_the_key_of_the_ci_overlay_is_in_its_secret_and_nowhere_else() -> None:
    key = b"canary-1d6b7a90-no-secret"
    coded = base64.b64encode(key).decode()
    for folder in overlay_folders():
        text = render_folder(folder)
        assert key.decode() not in text
        holders = [o["kind"] for o in Rendered.from_yaml(text).objects if coded in str(o)]
        assert holders == (["Secret"] if folder.name == "ci" else [])


def test_every_path_that_the_documents_name_is_there_and_builds() -> None:
    named = set()
    for document in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        named |= set(re.findall(r"\bk8s/[A-Za-z0-9_./-]*[A-Za-z0-9_]", document.read_text()))
    assert {"k8s/overlays/demo", "k8s/overlays/ci", "k8s/claims"} <= named
    for name in sorted(named):
        path = ROOT / name
        assert path.exists(), f"{name} is named in a document and not there"
        whole = (path / "kustomization.yaml").exists() and "component" not in name
        if whole and "base" not in name:
            assert kinds(render_folder(path))
