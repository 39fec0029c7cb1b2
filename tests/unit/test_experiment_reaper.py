"""What is left of a killed experiment is ended; CPUs are shared out."""

import os
import select
import signal
import subprocess
import sys

import pytest

from agentload.experiment import cpus
from agentload.experiment.reaper import groups_left

# A server whose child ignores the polite signal, in a group of its own; the child's pid is printed.
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
EXPERIMENT = """
import signal, sys
from pathlib import Path
from agentload.experiment import reaper
from agentload.experiment.process import Child
with reaper.Reaper(grace_s=0.3) as one:
    Child([sys.executable, "-c", sys.argv[1]], Path(sys.argv[2]), reaper=one)
    print("started", flush=True)
    signal.alarm(600)
    signal.pause()
"""


def test_groups_that_ended_are_not_left() -> None:
    assert groups_left(["+7\n", "+8\n", "-7\n", "+9\n", "-9\n", "+9\n"]) == {8, 9}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="needs pidfd")
def test_a_killed_experiment_leaves_no_process_behind(tmp_path: object) -> None:
    log = f"{tmp_path}/log"
    with subprocess.Popen(
        [sys.executable, "-c", EXPERIMENT, STUBBORN, log], stdout=subprocess.PIPE, text=True
    ) as experiment:
        assert experiment.stdout is not None
        assert experiment.stdout.readline() == "started\n"
        text = ""
        while not text.endswith("\n"):
            with open(log) as file:
                text = file.read()
        left = os.pidfd_open(int(text))
        try:
            experiment.send_signal(signal.SIGKILL)
            assert select.select([left], [], [], 90)[0] == [left]
        finally:
            os.close(left)


@pytest.mark.parametrize(
    ("text", "found"), [("0", {0}), ("2-4", {2, 3, 4}), ("0, 3-3,1", {0, 1, 3})]
)
def test_cpus_are_written_as_for_taskset(text: str, found: set[int]) -> None:
    assert cpus.parse_cpus(text) == found


@pytest.mark.parametrize("text", ["", "a", "1-", "3-1", "-1", "0;1", "99999999"])
def test_what_is_no_list_of_cpus_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="CPU"):
        cpus.parse_cpus(text)


@pytest.mark.skipif(len(cpus.of_this_process()) < 2, reason="needs two CPUs")
def test_the_load_gets_what_the_server_does_not() -> None:
    have = cpus.of_this_process()
    first = min(have)
    assert cpus.split(str(first)) == ({first}, have - {first})
    assert cpus.split(None) is None
    with pytest.raises(ValueError, match="none is left"):
        cpus.split(cpus.shown(have))
    with pytest.raises(ValueError, match="no CPU 9999 here"):
        cpus.split(f"{first},9999")
