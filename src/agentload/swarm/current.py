"""The run this process loads in, where Locust's users find it."""

from __future__ import annotations

from agentload.swarm.load_run import LoadRun
from agentload.swarm.open_load import ArrivingSessions

# Locust makes the users, so nothing else can reach them.
_run: LoadRun | None = None
_arrivals: ArrivingSessions | None = None


def load_run() -> LoadRun | None:
    """The run that is going on; None before the first and after the last."""
    return _run


def arrivals() -> ArrivingSessions | None:
    """Where users find sessions that start by themselves; None where users begin them."""
    return _arrivals


def begin(run: LoadRun) -> None:
    """Users that start from now on belong to this run."""
    global _run, _arrivals  # noqa: PLW0603
    _run = run
    _arrivals = ArrivingSessions(run) if run.scenario.sessions_arrive else None


def end() -> None:
    """The run is over and all its users are gone."""
    global _run, _arrivals  # noqa: PLW0603
    if _arrivals is not None:
        _arrivals.close()
    _run = _arrivals = None
