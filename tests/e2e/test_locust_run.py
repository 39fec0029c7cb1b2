"""A run through the real Locust in one process: what is recorded is what the server did."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from statistics import median

import pytest

from agentload.recording.record import FILE_OF, columns
from tests.e2e.locust_process import Bench, RunFolder, free_port, until
from tests.e2e.sim_process import Sim

pytestmark = pytest.mark.slow

NS_PER_S = 1e9
# On an idle machine it is below 5 ms; CI shares two cores among server, load and tests.
TTFT_SLACK_S = 0.05


def log_of(sim: Sim) -> dict[str, dict[str, object]]:
    assert sim.log is not None
    lines = map(json.loads, sim.log.read_text().splitlines())
    return {line["request_id"].removeprefix("chatcmpl-"): line for line in lines}


def test_every_row_equals_the_servers_own_account(bench: Bench, target: Sim) -> None:
    locust = bench.owner("--headless", "--arm", "on-on")
    assert locust.wait() == 0, locust.output
    run = bench.folder()
    manifest, rows, log = run.manifest, run.rows(), log_of(target)

    assert manifest["state"] == "complete"
    assert manifest["ended_by"] == "plan"
    assert manifest["verdict"]["level"] in ("valid", "suspect"), run.reasons
    assert manifest["counts"] == {
        "planned": len(rows), "sent": len(rows), "recorded": len(rows), "dropped": 0, "lost": 0,
    }  # fmt: skip
    assert len(rows) > 20
    off_s = []
    for row in rows:
        line = log[row["request_id"]]
        assert row["status"] == "success"
        assert line["outcome"] == "finished"
        for name in ("prompt_tokens", "cached_tokens", "output_tokens"):
            assert int(row[name]) == line[name], (name, row, line)
        sent_ns, arrived_ns = line["first_chunk_sent_ns"], line["arrival_ns"]
        assert isinstance(sent_ns, int)
        assert isinstance(arrived_ns, int)
        off_s.append(float(row["ttft_s"]) - (sent_ns - arrived_ns) / NS_PER_S)
        assert float(row["server_prefill_s"]) > 0
    assert -0.001 < median(off_s) < TTFT_SLACK_S
    check_stages(rows)
    check_files(run, target)


def users_of(rows: list[dict[str, str]]) -> set[int]:
    """The users behind the sessions: those of a user lie a million apart."""
    return {int(row["session_id"].partition("-")[2]) % 1_000_000 for row in rows}


def check_stages(rows: list[dict[str, str]]) -> None:
    """Three users warm up with one cold turn of one token; later ones begin cold in `high`."""
    warm = [row for row in rows if row["stage"] == "warm_up"]
    assert [row["turn_class"] for row in warm] == ["cold"] * 3
    assert {row["output_tokens"] for row in warm} == {"1"}
    assert {row["stage"] for row in rows} == {"warm_up", "low", "high"}
    assert users_of([row for row in rows if row["stage"] == "low"]) == {0, 1, 2}
    assert users_of(rows) == set(range(6))
    for row in rows:
        call_s, lag_s = float(row["call_start_s"]), float(row["lag_s"])
        assert lag_s >= 0
        assert call_s == pytest.approx(float(row["intended_start_s"]) + lag_s, abs=2e-6)


def check_files(run: RunFolder, sim: Sim) -> None:
    for row_type, name in FILE_OF.items():
        with (run.path / name).open(encoding="utf-8") as file:
            assert next(csv.reader(file)) == list(columns(row_type))
    rows, chunks = run.rows(), run.rows("chunks.csv")
    assert {row["request_id"] for row in rows} == {row["request_id"] for row in chunks}
    by_id = {row["request_id"]: row for row in rows}
    for trace in chunks:
        gaps = trace["gaps_us"].split()
        assert len(gaps) == int(by_id[trace["request_id"]]["output_chunks"]) - 1
    scraped = run.rows("scrape.csv")
    assert {row["endpoint"] for row in scraped} == {f"http://127.0.0.1:{sim.port}/metrics"}
    queries = [
        float(r["value"]) for r in scraped if r["metric"] == "vllm:prefix_cache_queries_total"
    ]
    assert queries[-1] - queries[0] >= sum(int(row["prompt_tokens"]) for row in rows) * 0.9
    assert len({row["time_s"] for row in scraped}) >= 7
    assert len(run.rows("loadgen.csv")) >= 7
    assert (run.path / "metrics_first_0.txt").stat().st_size > 1000
    assert (run.path / "metrics_last_0.txt").stat().st_size > 1000
    manifest = run.manifest
    assert manifest["target"]["model"] == "tiny"
    assert manifest["target"]["server_version"] == "0.32.0"
    assert manifest["target"]["sim_speed"] == 1.0
    assert manifest["arm"]["name"] == "on-on"
    assert manifest["arm"]["settings"]["enable_prefix_caching"] == "True"
    assert manifest["settings_sources"]["base_url"] == "flag --base-url"
    assert manifest["settings"]["base_url"] == f"http://127.0.0.1:{sim.port}/v1"
    assert (manifest["settings"]["model"], manifest["settings"]["api_key"]) == ("tiny", "")
    assert (manifest["measured_to_s"] - manifest["measured_from_s"]) == pytest.approx(4.0)


def test_killed_hard_it_leaves_a_readable_folder_in_state_running(bench: Bench) -> None:
    locust = bench.owner("--headless")
    run = bench.running_folder(rows=5)
    locust.process.kill()
    locust.wait()
    assert run.manifest["state"] == "running"
    assert len(run.rows()) >= 5
    assert all(None not in row and None not in row.values() for row in run.rows())
    until((run.path / "metrics_last_0.txt").exists, "the scraper ends with its parent")


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_run_with_its_last_turns_recorded(
    bench: Bench, signal_number: int
) -> None:
    locust = bench.owner("--headless", "--stop-timeout", "0")
    run = bench.running_folder(rows=5)
    os.kill(locust.process.pid, signal_number)
    assert locust.wait() == 3, locust.output
    manifest = run.manifest
    assert manifest["state"] == "interrupted"
    assert "of its planned 7 s" in run.reasons
    counts = manifest["counts"]
    assert counts["sent"] == counts["recorded"] == len(run.rows())
    assert counts["lost"] == 0
    assert {row["status"] for row in run.rows()} <= {"success", "aborted"}


def test_answers_that_outlast_the_stop_timeout_are_aborted_and_no_failures(bench: Bench) -> None:
    """Public case C07: neither successes nor failures, with the tokens so far."""
    locust = bench.owner("--headless", "-u", "3", "-r", "3", "-t", "2s", "--stop-timeout", "0")
    assert locust.wait() == 0, locust.output
    run = bench.folder()
    manifest = run.manifest
    assert manifest["state"] == "complete"
    assert manifest["planned_s"] == 2.0
    assert manifest["stages"][0]["users"] == 3
    aborted = [row for row in run.rows() if row["status"] == "aborted"]
    assert {row["error_class"] for row in aborted} <= {"aborted_by_test_end"}
    assert all(row["status"] != "error" for row in run.rows())
    assert manifest["counts"]["lost"] == 0


BAD_INPUT = [
    (["--scenario", "nowhere.yaml"], {}, "nowhere.yaml: 1 fault"),
    (["--scenario", ""], {}, "give --scenario FILE"),
    (["--seed", "-1"], {}, "seed"),
    (["--host", "ftp://h"], {}, "does not begin with http://"),
    (["--model", "other"], {}, "model 'other' is not served; served: tiny"),
    (["--context-scale", "2"], {}, "the server takes"),
    (["--run-id", "a/b"], {}, "run id 'a/b'"),
    (["--api-key-file", "/nowhere/key"], {}, "api_key (flag --api-key-file /nowhere/key)"),
    ([], {"OPENAI_API_KEY": "canary key"}, "api_key (environment OPENAI_API_KEY)"),
]


@pytest.mark.parametrize(("args", "env", "text"), BAD_INPUT)
def test_bad_input_is_one_error_and_no_folder(
    bench: Bench, args: list[str], env: dict[str, str], text: str
) -> None:
    locust = bench.owner("--headless", *args, env=env)
    assert locust.wait() == 2
    assert text in locust.output
    assert "Traceback" not in locust.output
    assert "canary" not in locust.output
    assert bench.folders() == []


def test_nobody_listens(bench: Bench) -> None:
    locust = bench.owner("--headless", "--host", f"http://127.0.0.1:{free_port()}")
    assert locust.wait() == 2
    assert "cannot connect" in locust.output
    assert bench.folders() == []


def test_a_wrong_key_is_refused_and_never_shown(bench: Bench) -> None:
    with Sim("--api-key", "the-right-one") as guarded:
        host = f"http://127.0.0.1:{guarded.port}"
        env = {"OPENAI_API_KEY": "canary-key-1234"}
        locust = bench.owner("--headless", "--host", host, env=env)
        assert locust.wait() == 2
        assert "auth" in locust.output or "401" in locust.output
        assert "canary" not in locust.output
        assert bench.folders() == []


def test_the_key_is_in_no_file_of_the_run_and_in_no_output(bench: Bench, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("canary-key-5678\n")
    args = ("-u", "1", "-t", "1s", "--csv", str(bench.runs / "locust"))
    with Sim("--api-key", "canary-key-5678") as guarded:
        host = f"http://127.0.0.1:{guarded.port}"
        locust = bench.owner("--headless", "--host", host, "--api-key-file", str(key), *args)
        assert locust.wait() == 0, locust.output
    assert "canary" not in locust.output
    files = [path for path in bench.runs.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert [path for path in files if b"canary" in path.read_bytes()] == []
