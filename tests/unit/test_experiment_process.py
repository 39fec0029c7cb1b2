"""A child process ends with all that it started."""

import os
import select
import sys
from pathlib import Path

import pytest

from agentload.experiment.process import Child

# A server with a child of its own that ignores the polite signal, as stubborn workers do.
STUBBORN = """
import os, signal
child = os.fork()
if child == 0:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.alarm(600)  # nothing stays behind, whatever becomes of the test
if child:
    print(child, flush=True)
signal.pause()
"""


def first_line(child: Child) -> str:
    while child.exit_code is None:
        text = child.log.read_text()
        if text.endswith("\n"):
            return text
    raise AssertionError(child.log.read_text())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")
def test_ending_takes_the_whole_group(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", STUBBORN], tmp_path / "log")
    grandchild = os.pidfd_open(int(first_line(child)))  # readable once that process has ended
    try:
        assert select.select([grandchild], [], [], 0) == ([], [], [])
        child.end(grace_s=5.0)
        assert child.exit_code is not None
        assert select.select([grandchild], [], [], 60)[0] == [grandchild]
    finally:
        os.close(grandchild)


def test_its_last_lines_are_kept(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", "print('one'); print('two'); exit(3)"], tmp_path / "log")
    assert child.wait(60.0) == 3
    assert child.last_lines(1) == "two"


@pytest.mark.skipif(sys.platform != "linux", reason="CPUs are pinned on Linux")
def test_it_runs_on_the_cpus_it_was_given(tmp_path: Path) -> None:
    first = min(os.sched_getaffinity(0))
    told = "import os; print(sorted(os.sched_getaffinity(0)))"
    child = Child([sys.executable, "-c", told], tmp_path / "log", cpus=frozenset({first}))
    assert child.wait(60.0) == 0
    assert child.last_lines(1) == f"[{first}]"
