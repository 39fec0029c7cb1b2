"""The router of the components, in real HAProxy: names the replica, streams, keeps sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agentload.kubernetes.objects import Rendered
from agentload.kubernetes.render import Wishes, write
from tests.k8s.conftest import K8S, render_folder

pytestmark = pytest.mark.needs("haproxy", "root", "kubectl")

SESSIONS = [f"session-{number}" for number in range(8)]
TURNS = 4
DRIVER = Path(__file__).parent / "behind_router.py"


def answers(folder: Path, *components: str) -> dict[str, list[tuple[str, bool]]]:
    """Per session: replica and streamed of each turn, through the rendered configuration."""
    folders = tuple(K8S / "components" / name for name in ("replicas", *components))
    write(Wishes("r1", K8S / "overlays/demo", folders), folder)
    rendered = Rendered.from_yaml(render_folder(folder))
    (router,) = rendered.workloads("router")
    (container,) = router.containers
    (volume,) = router.pod["volumes"]
    config = rendered.find("ConfigMap", volume["configMap"]["name"])
    assert config is not None
    told = {
        "config": config["data"]["haproxy.cfg"],
        "env": rendered.environment(container),
        "sessions": SESSIONS,
        "turns": TURNS,
    }
    told["env"]["SERVERS"] = told["env"]["SERVERS"].replace("<of the pod>", "load")
    assert told["env"]["SERVERS"] == "agentload-server-pods-demo1-r1.load.svc.cluster.local"
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "--net",
            sys.executable,
            str(DRIVER),
        ],
        input=json.dumps(told),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: [tuple(one) for one in told] for name, told in json.loads(done.stdout).items()}


@pytest.mark.slow
def test_sessions_are_spread_and_each_is_kept(tmp_path: Path) -> None:
    kept = answers(tmp_path, "router", "session-stickiness")
    replicas = {name: {replica for replica, _ in turns} for name, turns in kept.items()}
    assert all(len(of_one) == 1 for of_one in replicas.values())
    assert set.union(*replicas.values()) == {"127.0.0.2:8000", "127.0.0.3:8000"}
    assert all(streamed for turns in kept.values() for _, streamed in turns)


@pytest.mark.slow
def test_without_the_switch_a_session_wanders(tmp_path: Path) -> None:
    spread = answers(tmp_path, "router")
    assert any(len({replica for replica, _ in turns}) == 2 for turns in spread.values())
