"""Entry points load in a fresh process with gevent patched first: the public case C04."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
ENTRIES = [
    *sorted((ROOT / "locustfiles").glob("*.py")),
    *(ROOT / "src" / "agentload" / "swarm").glob("locustfile.py"),
]

# A process in which a late patch, or a TLS context that recurses, is an error.
CHECK = """
import warnings
warnings.filterwarnings("error", message=".*[Mm]onkey-patch.*")
import runpy, sys
names = runpy.run_path(sys.argv[1])
import gevent.monkey, ssl
assert gevent.monkey.is_module_patched("ssl")
assert gevent.monkey.is_module_patched("socket")
ssl.create_default_context().minimum_version = ssl.TLSVersion.TLSv1_2
from locust import User
users = [n for n, v in names.items() if isinstance(v, type) and issubclass(v, User)]
assert users == ["CodingAgent"], users
print("in order")
"""


def first_import(path: Path) -> str:
    """The module that the file imports first, `__future__` aside."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            return node.names[0].name
        if isinstance(node, ast.ImportFrom) and node.module and node.module != "__future__":
            return node.module
    raise AssertionError(f"{path} imports nothing")


def test_the_swarm_imports_locust_before_anything_that_uses_sockets() -> None:
    assert first_import(ROOT / "src" / "agentload" / "swarm" / "entry.py") == "locust"


@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.name)
def test_an_entry_point_only_wires(path: Path) -> None:
    assert first_import(path) == "agentload.swarm.entry"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 40


@pytest.mark.slow
@pytest.mark.parametrize("path", ENTRIES, ids=lambda path: path.name)
def test_an_entry_point_loads_without_a_late_patch(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHECK, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "in order\n", done.stderr
    assert "RecursionError" not in done.stderr


@pytest.mark.slow
def test_reading_a_run_loads_no_part_of_the_load_generator() -> None:
    script = (
        "import sys, analysis.load, agentload.recording.recorder, agentload.swarm.plan\n"
        "print(sorted({'gevent', 'locust', 'openai'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "[]\n"
