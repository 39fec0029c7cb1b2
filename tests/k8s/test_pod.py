"""The first process of a load pod, as a process and as number 1 of a PID namespace."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DEADLINE_S = 60.0
POD = [sys.executable, "-m", "agentload.kubernetes.pod"]
AS_FIRST = ["unshare", "--pid", "--fork", "--kill-child"]
CANARY = "canary-of-the-pod-test"
# Says that it is there, then waits for SIGTERM and ends with 7.
PATIENT = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
pathlib.Path(sys.argv[1]).write_text("here")
while True:
    signal.pause()
"""
# Leaves a child behind that ends a moment later: the first process inherits it.
WITH_ORPHAN = """
import os, pathlib, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        time.sleep(0.2)
        pathlib.Path(sys.argv[1]).write_text(str(os.getppid()))
    os._exit(5)
os.wait()
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.01)
sys.exit(0)
"""


def until(is_so: Callable[[], object]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end_s, "it never came"
        time.sleep(0.01)


class Pod:
    """The entry point with a Python program as the work."""

    def __init__(self, folder: Path, program: str, *flags: str, first: bool = False) -> None:
        self.folder = folder
        self.mark = folder / "mark"
        work = [sys.executable, "-c", program, str(self.mark)]
        prefix = AS_FIRST if first else []
        self.process = subprocess.Popen(
            [*prefix, *POD, "--folder", str(folder), *flags, "--", *work],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENAI_API_KEY": CANARY},
        )

    @property
    def done(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "done.json").read_text()))

    def wait_for(self, name: str) -> None:
        until((self.folder / name).exists)

    def end(self) -> int:
        _, self.said = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode


@pytest.fixture
def make_pod(tmp_path: Path) -> Iterator[Callable[..., Pod]]:
    made: list[Pod] = []

    def make(*args: Any, **kwargs: Any) -> Pod:
        made.append(Pod(tmp_path, *args, **kwargs))
        return made[-1]

    yield make
    for pod in made:
        if pod.process.poll() is None:
            pod.process.kill()
            pod.process.communicate()


def manifest(folder: Path, run_id: str, text: str) -> None:
    (folder / run_id).mkdir()
    (folder / run_id / "manifest.json").write_text(text)


@pytest.mark.slow
def test_it_tells_the_outcome_waits_for_the_collection_and_ends_with_the_code(
    make_pod: Callable[..., Pod], tmp_path: Path
) -> None:
    verdict = {"level": "invalid", "reasons": ["worker w1 lost at 9.1 s"]}
    manifest(tmp_path, "run7", json.dumps({"state": "interrupted", "verdict": verdict}))
    pod = make_pod("raise SystemExit(3)", "--run-id=run7", "--collect-wait-s=600")
    pod.wait_for("done.json")
    assert pod.done == {
        "exit_code": 3,
        "run_id": "run7",
        "state": "interrupted",
        "verdict": "invalid",
        "reasons": ["worker w1 lost at 9.1 s"],
    }
    assert pod.process.poll() is None
    command_line = Path(f"/proc/{pod.process.pid}/cmdline").read_bytes()
    assert CANARY.encode() not in command_line
    (tmp_path / "collected").touch()
    assert pod.end() == 3
    assert CANARY not in pod.said + (tmp_path / "done.json").read_text()


@pytest.mark.slow
@pytest.mark.needs("root")
def test_a_term_signal_reaches_the_work_also_as_first_process(
    make_pod: Callable[..., Pod],
) -> None:
    pod = make_pod(PATIENT, "--collect-wait-s=600", first=True)
    pod.wait_for("mark")
    children = Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children").read_text()
    os.kill(int(children), signal.SIGTERM)  # number 1 of its namespace, below unshare
    pod.wait_for("done.json")
    assert pod.done["exit_code"] == 7
    assert pod.process.poll() is None  # what was recorded goes with the pod: it waits for the grace
    (pod.folder / "collected").touch()
    assert pod.end() == 7


@pytest.mark.slow
@pytest.mark.needs("root")
def test_orphans_of_the_work_are_neither_taken_for_it_nor_left(
    make_pod: Callable[..., Pod],
) -> None:
    pod = make_pod(WITH_ORPHAN, first=True)
    assert pod.end() == 0
    assert pod.mark.read_text() == "1"


@pytest.mark.slow
def test_the_wait_has_a_limit_and_a_signal_ends_it(make_pod: Callable[..., Pod]) -> None:
    pod = make_pod("raise SystemExit(0)", "--collect-wait-s=600")
    pod.wait_for("done.json")
    pod.process.send_signal(signal.SIGTERM)
    assert pod.end() == 0
    (pod.folder / "done.json").unlink()
    limited = make_pod("raise SystemExit(4)", "--collect-wait-s=0.3")
    assert limited.end() == 4
    assert "not collected" in limited.said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "no run was begun: there is no manifest"),
        ('{"state": ', "the manifest cannot be read"),
        ("[]", "the manifest cannot be read"),
    ],
)
def test_a_run_without_a_readable_manifest_is_told_as_such(
    make_pod: Callable[..., Pod], tmp_path: Path, text: str | None, reason: str
) -> None:
    if text is not None:
        manifest(tmp_path, "run7", text)
    pod = make_pod("raise SystemExit(2)", "--run-id=run7")
    assert pod.end() == 2
    assert pod.done["state"] is None
    assert reason in pod.done["reasons"][0]


@pytest.mark.slow
def test_what_cannot_be_done_is_said(make_pod: Callable[..., Pod], tmp_path: Path) -> None:
    killed = make_pod("import os; os.kill(os.getpid(), 9)")
    assert killed.end() == 137  # as a shell and Kubernetes have it
    again = make_pod("raise SystemExit(0)")
    assert again.end() == 2
    assert "holds a finished run" in again.said
    (tmp_path / "done.json").unlink()
    absent = subprocess.run(
        [*POD, "--folder", str(tmp_path), "--", "no-such-program"], capture_output=True, check=False
    )
    assert absent.returncode == 127
    assert b"no-such-program cannot be started" in absent.stderr
    nothing = subprocess.run([*POD, "--folder", str(tmp_path)], capture_output=True, check=False)
    assert nothing.returncode == 2
