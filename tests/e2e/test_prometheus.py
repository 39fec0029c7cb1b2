"""A real Prometheus reads a run and its server; every query of the dashboard gets its answer."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.locust_process import ROOT, Bench, RunFolder, free_port, until
from tests.e2e.sim_process import Sim

pytestmark = [pytest.mark.slow, pytest.mark.needs("prometheus")]

DASHBOARD = json.loads((ROOT / "k8s/grafana/agentload.json").read_text(encoding="utf-8"))
# Of a dashboard's variables, what Grafana would put there.
VARIABLES = {"$load": ".*", "$server": ".*", "$__rate_interval": "10s"}
STAGES = "stages=[{name: high, duration_s: 9, users: 8, ramp_s: 1}]"
SLOS = "slos={cold: {ttft_s: 2.0}, tool: {ttft_s: 1.0}}"
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Seen:
    """A run that is over, and the Prometheus that saw it."""

    api: str
    folder: RunFolder
    page: str  # one answer of the metrics port
    statuses: list[int]  # of what it is asked besides
    output: str
    from_s: float
    to_s: float

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series of a query over the whole run; AssertionError with what Prometheus says."""
        given = {"query": query, "start": self.from_s, "end": self.to_s, "step": 1}
        return list(get(f"{self.api}/query_range", **given)["data"]["result"])


def get(url: str, **given: object) -> Any:
    """The JSON answer of Prometheus' API."""
    try:
        with OPENER.open(f"{url}?{urllib.parse.urlencode(given)}", timeout=60) as answer:
            return json.loads(answer.read())
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{given}: {error.read().decode()}") from None


def page_of(port: int, path: str = "/agentload/metrics") -> str | None:
    try:
        with OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
            return str(answer.read().decode())
    except OSError:
        return None


def status(port: int, path: str, body: bytes | None = None) -> int:
    try:
        with OPENER.open(f"http://127.0.0.1:{port}{path}", body, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def start_prometheus(folder: Path, port: int, targets: dict[str, int]) -> subprocess.Popen[bytes]:
    jobs = [
        {
            "job_name": path,
            "metrics_path": path,
            "static_configs": [{"targets": [f"127.0.0.1:{at}"]}],
        }
        for path, at in targets.items()
    ]
    config = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": jobs}
    file = folder / "prometheus.json"  # JSON is YAML
    file.write_text(json.dumps(config), encoding="utf-8")
    return subprocess.Popen(
        [
            *("prometheus", f"--config.file={file}", f"--storage.tsdb.path={folder / 'tsdb'}"),
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("prometheus")
    fault = ("--fault", "status:code=500,every=9")
    with Sim("--enable-prompt-tokens-details", *fault, log=folder / "requests.jsonl") as sim:
        bench = Bench(folder, f"http://127.0.0.1:{sim.port}")
        port, own = free_port(), free_port()
        targets = {"/metrics": sim.port, "/agentload/metrics": own}
        prometheus = start_prometheus(folder, port, targets)
        api = f"http://127.0.0.1:{port}/api/v1"
        began_s = time.time()
        try:
            sets = ("--set", STAGES, "--set", SLOS, "--arm", "base")
            # `owner` says --only-summary, which would leave the live lines out
            scenario = ("--scenario", str(Path(__file__).with_name("small.yaml")))
            host = ("--host", f"http://127.0.0.1:{sim.port}", "--run-dir", str(bench.runs))
            locust = bench.start(
                *scenario, *host, "--headless", "--metrics-port", str(own), "--stop-timeout", "10",
                *sets,
            )  # fmt: skip
            has_turns = 'agentload_turns_total{arm="base",status="success",turn_class="tool"}'
            page = until(lambda: (p := page_of(own)) and has_turns in p and p, "turns are shown")
            statuses = [status(own, "/metrics"), status(own, "/"), status(own, "/metrics", b"x")]
            locust.wait()
            yield Seen(api, bench.folder(), page, statuses, locust.output, began_s, time.time())
        finally:
            bench.close()
            prometheus.terminate()
            prometheus.wait(20)


def queries() -> list[tuple[str, str]]:
    """(where, query with its variables filled in) of panels and annotations."""
    found = [(p["title"], t["expr"]) for p in DASHBOARD["panels"] for t in p["targets"]]
    found += [(a["name"], a["expr"]) for a in DASHBOARD["annotations"]["list"]]
    for name, value in VARIABLES.items():
        found = [(where, query.replace(name, value)) for where, query in found]
    return found


@pytest.mark.parametrize(("where", "query"), queries())
def test_a_query_of_the_dashboard_has_data(seen: Seen, where: str, query: str) -> None:
    assert "$" not in query
    series = seen.ask(query)
    values = [v for one in series for _, v in one["values"] if v != "NaN"]
    assert values, f"{where}: {query}"


def test_variables_of_the_dashboard_have_values(seen: Seen) -> None:
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric = variable["query"]["query"].removeprefix("label_values(").split(",")[0]
            assert {one["metric"]["instance"] for one in seen.ask(metric)}, variable["name"]


def test_the_series_are_those_of_the_run(seen: Seen) -> None:
    (info,) = seen.ask("agentload_run_info")
    assert info["metric"]["run_id"] == seen.folder.manifest["run_id"]
    assert info["metric"]["arm"] == "base"
    (turns,) = seen.ask("sum(agentload_turns_total)")
    counts = [float(value) for _, value in turns["values"]]
    assert counts == sorted(counts)
    assert 0 < counts[-1] <= len(seen.folder.rows())
    assert {s["metric"]["error_class"] for s in seen.ask("agentload_errors_total")} == {"http_500"}


def test_the_port_has_nothing_but_the_page(seen: Seen) -> None:
    assert seen.statuses == [200, 404, 405]


def test_a_page_of_the_port_says_nothing_of_this_machine(seen: Seen) -> None:
    assert str(seen.folder.path.parent) not in seen.page
    assert seen.page.endswith("# EOF\n")


def test_without_a_terminal_there_is_a_plain_line_now_and_then(seen: Seen) -> None:
    lines = [line for line in seen.output.splitlines() if "agentload: base: " in line]
    assert 2 <= len(lines) <= 12, seen.output
    assert "TTFT P50" in lines[-1]
    assert "users 0/0" in lines[-1]
    assert "\x1b" not in seen.output
    # Locust's own table: of the whole run, at its end
    assert seen.output.count("Response time percentiles") == 1


def test_panels_of_the_dashboard_are_whole() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        assert panel["targets"], panel["title"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
    cells = [
        (x, y)
        for p in (panel["gridPos"] for panel in panels)
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(set(cells)) == len(cells), "panels lie over each other"
    assert "127.0.0.1" not in json.dumps(DASHBOARD)
    assert "localhost" not in json.dumps(DASHBOARD)


def test_the_shipped_configuration_is_one_of_prometheus() -> None:
    file = ROOT / "k8s" / "prometheus" / "prometheus.yaml"
    command = ["promtool", "check", "config", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
