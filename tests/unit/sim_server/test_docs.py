"""What the server takes and writes is in its page of the docs."""

from __future__ import annotations

import re
from pathlib import Path

from agentload.sim.server.command_line import parser
from agentload.sim.server.faults import KINDS

PAGE = (Path(__file__).parents[3] / "docs" / "sim-server.md").read_text()


def test_every_flag_is_described() -> None:
    flags = set(re.findall(r"--[a-z][a-z-]+", parser().format_help())) - {"--help"}
    flags = {flag for flag in flags if not flag.startswith("--no-")}
    assert flags - set(re.findall(r"--[a-z][a-z-]+", PAGE)) == set()


def test_every_fault_and_setting_is_described() -> None:
    for kind, settings in KINDS.items():
        [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{kind}` |")]
        assert all(name in row for name in settings)
