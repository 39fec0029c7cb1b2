"""Each semantic check, shown to find its fault on a broken copy of what the overlays render."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from agentload.kubernetes.checks import CHECKS, MADE_BY_HAND, faults
from agentload.kubernetes.checks_wiring import needed
from agentload.kubernetes.objects import Rendered, RenderError
from agentload.kubernetes.quantity import parse_quantity
from agentload.kubernetes.render import Wishes, write
from tests.k8s.conftest import K8S, overlay_folders, render_folder
from tests.k8s.mutations import MUTATIONS, Break, container, drop, pod

pytestmark = pytest.mark.needs("kubectl")

VARIANT_SERVICES = frozenset(
    {
        "Service/agentload-server-chunked-on-cache-on",
        "Service/agentload-server-pods-chunked-on-cache-on",
    }
)


@pytest.mark.parametrize("folder", overlay_folders(), ids=lambda p: str(p.relative_to(K8S)))
def test_what_the_project_ships_has_no_fault(folder: Path) -> None:
    rendered = Rendered.from_yaml(render_folder(folder))
    assert faults(rendered, MADE_BY_HAND | VARIANT_SERVICES) == []


def test_a_run_with_every_component_has_no_fault(tmp_path: Path) -> None:
    names = (
        *("api-key", "replicas", "router", "session-stickiness", "results-pvc", "gpu-pool"),
        *("prometheus-scrape", "network-policy-scrape"),
    )
    write(
        Wishes("all", K8S / "overlays/demo", tuple(K8S / "components" / n for n in names)), tmp_path
    )
    rendered = Rendered.from_yaml(render_folder(tmp_path))
    assert faults(rendered) == []
    assert needed(rendered) == {
        "Secret/agentload-api-key",
        "PersistentVolumeClaim/agentload-results",
    }


@pytest.mark.parametrize(
    ("mutate", "said"), [m[1:] for m in MUTATIONS], ids=[m[0] for m in MUTATIONS]
)
def test_a_broken_copy_is_found_out(ci: Rendered, mutate: Break, said: str) -> None:
    broken = copy.deepcopy(ci)
    mutate(broken)
    assert any(said in fault for fault in faults(broken)), faults(broken)


@pytest.mark.parametrize(
    ("mutate", "said"),
    [
        (
            lambda r: container(r, "server")["resources"]["limits"].pop("nvidia.com/gpu"),
            "nvidia.com/gpu must be in the limits",
        ),
        (lambda r: container(r, "server")["volumeMounts"].pop(1), "medium Memory at /dev/shm"),
        (
            lambda r: pod(r, "server")["volumes"][1]["emptyDir"].pop("medium"),
            "medium Memory at /dev/shm",
        ),
    ],
    ids=["gpu", "no shm", "shm on disk"],
)
def test_a_broken_gpu_server_is_found_out(variant: Rendered, mutate: Break, said: str) -> None:
    broken = copy.deepcopy(variant)
    mutate(broken)
    assert any(said in fault for fault in faults(broken)), faults(broken)


def test_a_web_page_without_login_is_found_out() -> None:
    page = Rendered.from_yaml(render_folder(K8S / "overlays/run-ui"))
    drop(container(page, "master")["args"], "--web-login")
    assert any("a web page needs --web-login" in fault for fault in faults(page))


def test_every_check_is_proven_on_a_broken_copy(ci: Rendered, variant: Rendered) -> None:
    """A check that no mutation of the table reaches would be one that cannot fail."""
    reached = set()
    for _, mutate, _said in MUTATIONS:
        broken = copy.deepcopy(ci)
        mutate(broken)
        reached |= {check for check in CHECKS if list(check(broken, MADE_BY_HAND))}
    by_the_gpu_table = {"gpu_servers_have_what_they_need"}
    assert {check.__name__ for check in set(CHECKS) - reached} == by_the_gpu_table
    assert not [check for check in CHECKS if list(check(variant, MADE_BY_HAND))]


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("500m", 0.5), ("2Gi", 2 * 1024**3), ("1e3", 1000), ("1.5k", 1500), ("1E", 1e18)],
)
def test_a_quantity_is_a_number(text: str, value: float) -> None:
    assert parse_quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["1Gb", "", "Gi", "1 Gi", "0x10", "1ki"])
def test_what_the_api_refuses_is_no_quantity(text: str) -> None:
    with pytest.raises(ValueError, match="is no quantity"):
        parse_quantity(text)


def test_what_is_no_rendering_is_refused() -> None:
    for text in ("{", "- a\n- b\n", "kind: Job\n"):
        with pytest.raises(RenderError):
            Rendered.from_yaml(text)
