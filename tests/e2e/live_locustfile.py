"""The suite's locustfile with a last look at the live figures, for tests: writes them to a file."""

import json
import os
from pathlib import Path

from agentload.swarm.entry import CodingAgent

__all__ = ["CodingAgent"]

import locust

from agentload.swarm.live import current


def write_last_figures(**_: object) -> None:
    """The figures as they stand when the process ends."""
    snapshot = current.snapshot()
    if snapshot is not None:
        plain = snapshot.to_json(history_after_s=-1.0)
        Path(os.environ["LIVE_FIGURES"]).write_text(json.dumps(plain), encoding="utf-8")


locust.events.quit.add_listener(write_last_figures)
