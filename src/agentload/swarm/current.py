"""The run this process loads in, where Locust's users find it."""

from __future__ import annotations

from agentload.swarm.load_run import LoadRun

_run: LoadRun | None = None


def load_run() -> LoadRun | None:
    """The run that is going on; None before the first and after the last."""
    return _run


def set_load_run(run: LoadRun | None) -> None:
    global _run  # noqa: PLW0603 - Locust makes the users, so nothing else can reach them
    _run = run
