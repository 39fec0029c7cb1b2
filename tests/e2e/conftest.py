"""A simulator for all tests of this folder that load it through Locust."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.locust_process import Bench
from tests.e2e.sim_process import Sim


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    """A simulated server that tells cached tokens and its own times, and logs its requests."""
    log = tmp_path_factory.mktemp("target") / "requests.jsonl"
    with Sim("--enable-prompt-tokens-details", "--enable-per-request-metrics", log=log) as sim:
        yield sim


@pytest.fixture
def bench(target: Sim, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, f"http://127.0.0.1:{target.port}")
    try:
        yield made
    finally:
        made.close()
