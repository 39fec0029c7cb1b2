"""The real vLLM that the tests of this folder talk to."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vllm import install
from tests.vllm.arms import ARMS, Arm
from tests.vllm.server import RealServer, running_server


@pytest.fixture(scope="session")
def vllm_venv() -> Path:
    """The environment of install.py; skips without one, fails if one was named but is not there."""
    path = install.venv_path()
    if not install.is_installed(path):
        reason = f"no vLLM environment in {path}: run `make vllm-env`"
        if os.environ.get(install.VENV_VARIABLE):
            pytest.fail(reason)
        pytest.skip(reason)
    return path


@pytest.fixture(scope="session", params=ARMS, ids=lambda arm: arm.name)
def arm(request: pytest.FixtureRequest) -> Arm:
    """One server configuration after the other; pytest groups the tests by it."""
    chosen: Arm = request.param
    return chosen


@pytest.fixture(scope="session")
def server(
    arm: Arm,
    vllm_venv: Path,  # noqa: ARG001 - the server runs from it; asked for so that it is there
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[RealServer]:
    """A vLLM with the arm's flags, started once for all tests of the arm."""
    log = tmp_path_factory.mktemp("vllm") / f"{arm.name}.log"
    with running_server(log, arm.flags) as running:
        yield running
