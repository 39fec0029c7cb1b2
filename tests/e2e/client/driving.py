"""How tests talk to `driver.py`."""

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

SCRIPT = Path(__file__).with_name("driver.py")
NO_PROXY_ENV = {k: v for k, v in os.environ.items() if not k.lower().endswith("_proxy")}


class Driver:
    """One client process that works off jobs."""

    def __init__(self, env: dict[str, str] | None = None) -> None:
        self._env = {**NO_PROXY_ENV, **(env or {})}

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(SCRIPT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._env,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=20)

    def run(
        self,
        base_url: str,
        turns: Sequence[dict[str, Any]] = ({},),
        reader: str = "auto",
        **settings: Any,
    ) -> list[dict[str, Any]]:
        """Results of the turns, one after the other, by one client."""
        flags = {"base_url": base_url, **{k: str(v) for k, v in settings.items()}}
        job = {"settings": flags, "turns": list(turns), "reader": reader}
        results: list[dict[str, Any]] = self._work_off(job)
        return results

    def ask(self, base_url: str, question: str, model: str = "", **words: Any) -> list[Any]:
        """What `driver.py` answers to `check`, `encode` or `examine`."""
        flags = {"base_url": base_url, **({"model": model} if model else {})}
        return self._work_off({"settings": flags, question: words})

    def _work_off(self, job: dict[str, Any]) -> list[Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # what it said before it ended is shown below
        line = self._process.stdout.readline()
        if not line:
            assert self._process.stderr is not None
            raise AssertionError(f"the client process ended: {self._process.stderr.read()}")
        results: list[Any] = json.loads(line)
        return results


def seconds(result: dict[str, Any], instant: str) -> float:
    """An instant of a result, from its send start."""
    value: float = (result[instant] - result["send_start_ns"]) / 1e9
    return value


def gaps_s(result: dict[str, Any]) -> list[float]:
    stamps = result["chunk_ns"]
    return [(b - a) / 1e9 for a, b in itertools.pairwise(stamps)]
