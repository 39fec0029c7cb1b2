"""A second locustfile for the master of `bench_master.py`: takes rows as lists of numbers."""

from __future__ import annotations

from typing import Any

import locust
from locust.runners import MasterRunner

seen = [0]


def _take(msg: Any, **_: Any) -> None:
    seen[0] += len(msg.data)


@locust.events.init.add_listener
def _register(runner: Any, **_: Any) -> None:
    if isinstance(runner, MasterRunner):
        runner.register_message("bench_floats", _take)
