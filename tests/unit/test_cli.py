"""The command finds its parts, and tells a wrong call from a right one."""

import subprocess
import sys
from pathlib import Path

import pytest

from agentload.cli import COMMANDS, main

ROOT = Path(__file__).parents[2]


def test_without_a_command_it_lists_them_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr().out
    assert all(name in shown for name in COMMANDS)
    assert main(["--help"]) == 0


def test_an_unknown_command_is_told_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reprot"]) == 2
    said = capsys.readouterr().err
    assert "'reprot'" in said
    assert "report" in said.replace("'reprot'", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_refuses_an_unknown_option(name: str) -> None:
    call = [sys.executable, "-m", "agentload", name]
    helped = subprocess.run([*call, "--help"], capture_output=True, text=True, check=False)
    assert helped.returncode == 0, helped.stderr
    assert name in helped.stdout.split("\n")[0]
    wrong = subprocess.run([*call, "--no-such-option"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "Traceback" not in wrong.stderr


def test_every_command_is_in_the_docs() -> None:
    docs = "\n".join(p.read_text("utf-8") for p in [ROOT / "README.md", *ROOT.glob("docs/*.md")])
    assert [name for name in COMMANDS if f"agentload {name}" not in docs] == []
