"""Runs started and stopped in Locust's web page, as its scripts do it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.e2e.locust_process import SCENARIO, Bench, WebPage, free_port, until

pytestmark = pytest.mark.slow


def test_faults_are_shown_runs_are_recorded_one_by_one_and_no_secret_is_on_the_page(
    bench: Bench,
) -> None:
    port = free_port()
    args = ("--web-host", "127.0.0.1", "--web-port", str(port), "--stop-timeout", "5")
    locust = bench.owner(*args, env={"OPENAI_API_KEY": "canary-key-9"})
    page = WebPage(port)
    text = page.wait_up()
    assert "canary" not in text
    assert "scenario" in text

    refused = page.post("/swarm", scenario="nowhere.yaml")
    assert refused["success"] is False
    assert "nowhere.yaml: 1 fault" in refused["message"]
    refused = page.post("/swarm", scenario=str(SCENARIO), model="other")
    assert "model 'other' is not served" in refused["message"]
    assert bench.folders() == []

    for arm in ("first", "second"):
        assert page.post("/swarm", scenario=str(SCENARIO), model="", arm=arm)["success"]
        until(
            lambda arm=arm: any(  # type: ignore[misc]
                folder.manifest["arm"]["name"] == arm and len(folder.rows()) > 5
                for folder in bench.folders()
                if (folder.path / "turns.csv").exists()
            ),
            f"run {arm} records",
        )
        assert page.post("/stop")["success"]
        until(
            lambda: all(f.manifest["state"] == "interrupted" for f in bench.folders()),
            "the run is closed",
        )
    first, second = bench.folders()
    assert first.manifest["run_id"] != second.manifest["run_id"]
    for run in (first, second):
        assert run.manifest["ended_by"] == "stop"
        assert run.manifest["counts"]["lost"] == 0
        assert run.manifest["counts"]["recorded"] == len(run.rows())
    os.kill(locust.process.pid, signal.SIGTERM)
    assert locust.wait() == 0, locust.output
    assert "canary" not in locust.output
