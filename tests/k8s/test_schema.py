"""Every shape of object that the overlays render is what five versions of Kubernetes know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from agentload.kubernetes.objects import Object, Rendered
from agentload.kubernetes.render import Wishes, write
from tests.k8s.conftest import K8S, overlay_folders, render_folder

pytestmark = pytest.mark.needs("kubectl")

VERSIONS = ("1.29", "1.31", "1.33", "1.35", "1.37")
ALL = (
    *("api-key", "replicas", "router", "session-stickiness", "results-pvc", "gpu-pool"),
    *("prometheus-scrape", "network-policy-scrape"),
)


def shape(value: Any) -> Any:
    """The object without its texts: a schema sees the same in objects of one shape."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items() if key != "data"}
    if isinstance(value, list):
        return sorted({json.dumps(shape(one), sort_keys=True) for one in value})
    return type(value).__name__


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Object]:
    """One object of each shape, of all overlays and of a run with all components."""
    everything: Path = tmp_path_factory.mktemp("everything")
    components = tuple(K8S / "components" / name for name in ALL)
    write(Wishes("all", K8S / "overlays/demo", components, workers=7), everything)
    texts = [render_folder(folder) for folder in (*overlay_folders(), K8S / "claims", everything)]
    found: dict[str, Object] = {}
    for text in texts:
        for one in Rendered.from_yaml(text).objects:
            found.setdefault(json.dumps([one["kind"], shape(one)], sort_keys=True), one)
    return list(found.values())


@pytest.mark.slow
def test_every_shape_is_valid_in_every_version(objects: list[Object]) -> None:
    assert len(objects) >= 15
    for one in objects:
        for version in VERSIONS:
            kubernetes_validate.validate(one, version, strict=True)


def test_the_schemas_find_a_field_that_is_none(objects: list[Object]) -> None:
    job = json.loads(json.dumps(next(one for one in objects if one["kind"] == "Job")))
    job["spec"]["template"]["spec"]["enableServiceLink"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, VERSIONS[0], strict=True)
