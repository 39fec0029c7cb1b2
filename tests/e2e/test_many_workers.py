"""A hundred workers at one master: each is counted, heard and taken leave of."""

from __future__ import annotations

import pytest

from tests.e2e.locust_process import DEADLINE_S, Bench, free_port
from tests.e2e.simulated_workers import Fleet

pytestmark = pytest.mark.slow

WORKERS = 100


@pytest.mark.parametrize("rows_on", ["master", "worker"])
def test_a_hundred_workers_connect_report_and_lose_nothing(bench: Bench, rows_on: str) -> None:
    port = free_port()
    load = ("-u", str(WORKERS), "-r", str(WORKERS), "-t", "2s", "--record-on", rows_on)
    cheap = ("--metrics-url", "none", "--set", "chars_per_token=4.0")
    wait = ("--expect-workers", str(WORKERS), "--expect-workers-max-wait", "80")
    master = bench.owner(
        "--headless", "--master", "--master-bind-port", str(port), *wait, *load, *cheap
    )
    fleet = Fleet(port, WORKERS, rows_per_s=200.0, gaps=30)
    fleet.keep_rows = rows_on == "worker"
    try:
        fleet.run_until(lambda: all(peer.quit for peer in fleet.peers), "the end", DEADLINE_S)
    finally:
        fleet.close()
    assert master.wait() == 0, master.output
    assert [peer.refused for peer in fleet.peers if peer.refused] == []
    assert all(peer.delivered for peer in fleet.peers)
    run = bench.folder()
    manifest = run.manifest
    counts = manifest["counts"]
    assert counts["planned"] == counts["sent"] == counts["recorded"] == fleet.made > 2 * WORKERS
    assert counts["lost"] == 0
    assert manifest["verdict"]["level"] == "valid", run.reasons
    assert {w["client_id"] for w in manifest["workers"]} == {p.client_id for p in fleet.peers}
    assert sorted(w["worker_id"] for w in manifest["workers"]) == sorted(
        f"w{rank}" for rank in range(WORKERS)
    )
    assert sum(w["sent"] for w in manifest["workers"]) == fleet.made
    if rows_on == "worker":
        assert run.rows() == run.rows("chunks.csv") == []
        assert all(w["shard"]["complete"] for w in manifest["workers"])
        assert sum(w["shard"]["rows"]["turns.csv"] for w in manifest["workers"]) == fleet.made
    else:
        assert len({row["request_id"] for row in run.rows()}) == fleet.made
        assert len(run.rows("chunks.csv")) == fleet.made
