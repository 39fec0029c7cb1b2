"""What a Prometheus finds of the rendered pods: where the annotations and monitors point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from agentload.kubernetes.objects import Rendered
from agentload.kubernetes.render import Wishes, write
from tests.k8s.conftest import K8S, render_folder

pytestmark = pytest.mark.needs("kubectl")

PATHS = {"master": "/agentload/metrics", "server": "/metrics"}


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Pod templates by component, of a run with the component and its policies."""
    folder: Path = tmp_path_factory.mktemp("scrape")
    names = ("prometheus-scrape", "network-policy-scrape")
    write(Wishes("s1", K8S / "overlays/demo", tuple(K8S / "components" / n for n in names)), folder)
    found = Rendered.from_yaml(render_folder(folder)).objects
    templates = [o["spec"]["template"] for o in found if o["kind"] in ("Job", "Deployment")]
    return {t["metadata"]["labels"]["app.kubernetes.io/component"]: t for t in templates}


def named_ports(pod: dict[str, Any]) -> dict[str, int]:
    (container,) = pod["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


@pytest.mark.parametrize("component", PATHS)
def test_the_annotations_lead_to_a_port_of_the_pod(
    pods: dict[str, dict[str, Any]], component: str
) -> None:
    notes = pods[component]["metadata"]["annotations"]
    assert notes["prometheus.io/scrape"] == "true"
    assert notes["prometheus.io/path"] == PATHS[component]
    assert int(notes["prometheus.io/port"]) in named_ports(pods[component]).values()


def test_the_master_serves_at_the_port_that_is_announced(pods: dict[str, dict[str, Any]]) -> None:
    (container,) = pods["master"]["spec"]["containers"]
    port = pods["master"]["metadata"]["annotations"]["prometheus.io/port"]
    assert f"--metrics-port={port}" in container["args"]
    assert "annotations" not in pods["worker"]["metadata"]


def test_the_monitors_of_the_operator_choose_the_same(pods: dict[str, dict[str, Any]]) -> None:
    text = (K8S / "prometheus" / "podmonitor.yaml").read_text(encoding="utf-8")
    for monitor in yaml.safe_load_all(text):
        wanted = monitor["spec"]["selector"]["matchLabels"].items()
        (chosen,) = [p for p in pods.values() if wanted <= p["metadata"]["labels"].items()]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        notes = chosen["metadata"]["annotations"]
        assert endpoint["path"] == notes["prometheus.io/path"]
        assert named_ports(chosen)[endpoint["port"]] == int(notes["prometheus.io/port"])
