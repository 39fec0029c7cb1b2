"""What the pods give Locust is what its own parser, with the suite's options, takes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from agentload.kubernetes.objects import Rendered
from tests.k8s.conftest import K8S, ROOT, render_folder

pytestmark = pytest.mark.needs("kubectl")

PARSE = """
import json, sys
import locust
from agentload.swarm.options import add_options
from locust.argument_parser import parse_options
locust.events.init_command_line_parser.add_listener(add_options)
found = []
for args in json.load(sys.stdin):
    given = parse_options(args)
    names = ("master worker autostart autoquit expect_workers expect_workers_max_wait stop_timeout "
             "headless web_login run_id run_dir arm scenario host metrics_url master_host "
             "master_port exit_code_on_error csv_prefix spool_dir enable_rebalancing").split()
    found.append({name: getattr(given, name) for name in names})
json.dump(found, sys.stdout)
"""


def locust_lines(overlay: str) -> list[list[str]]:
    rendered = Rendered.from_yaml(render_folder(K8S / "overlays" / overlay))
    lines = []
    for one in (*rendered.workloads("master"), *rendered.workloads("worker")):
        line = rendered.command_line(one.pod["containers"][0])
        words = line[line.index("locust") + 1 :]
        lines.append([w.replace("/opt/agentload", str(ROOT)) for w in words])
    return lines


@pytest.mark.slow
def test_locust_takes_every_command_line() -> None:
    lines = [line for name in ("ci", "run-jobs", "run-ui") for line in locust_lines(name)]
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    master, worker, _, _, page, page_worker = json.loads(
        done.stdout.splitlines()[-1]
    )  # after a warning
    assert (master["master"], master["autostart"], master["headless"]) == (True, True, False)
    assert (master["autoquit"], master["stop_timeout"]) == (15, 10)
    assert (master["expect_workers"], master["expect_workers_max_wait"]) == (3, 120)
    assert (master["run_id"], master["run_dir"], master["arm"]) == ("ci1", "/results", "ci")
    assert master["host"] == "http://agentload-server-ci1:8000/v1"
    assert master["metrics_url"] == "dns://agentload-server-pods-ci1:8000/metrics"
    assert (master["exit_code_on_error"], master["csv_prefix"]) == (0, "/results/locust")
    assert (worker["worker"], worker["spool_dir"]) == (True, "/spool")
    assert (worker["master_host"], worker["master_port"]) == ("agentload-master-ci1", 5557)
    assert (page["master"], page["web_login"], page["autostart"]) == (True, True, False)
    assert page_worker["worker"] is True
