"""The audit of dependencies, with a pip-audit that is played."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / ".ci" / "audit.py"
GOOD = {"name": "idna", "version": "3.20", "vulns": []}
SKIPPED = {"name": "idna", "skip_reason": "Dependency not found on PyPI and could not be audited"}
BAD = {
    "name": "flask",
    "version": "0.1",
    "vulns": [{"id": "PYSEC-2018-66", "fix_versions": ["0.12.3"], "description": "..."}],
}


@pytest.fixture
def audit() -> ModuleType:
    spec = importlib.util.spec_from_file_location("audit", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def play(monkeypatch: pytest.MonkeyPatch, audit: ModuleType, stdout: str, stderr: str = "") -> None:
    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert command[1:3] == ["-m", "pip_audit"]
        return subprocess.CompletedProcess(command, 0, stdout, stderr)

    monkeypatch.setattr(audit.subprocess, "run", run)


@pytest.mark.parametrize(
    ("answer", "code", "said", "loud"),
    [
        ([GOOD, GOOD], 0, "2 dependencies audited, 0 known vulnerabilities", False),
        ([GOOD, BAD], 1, "flask 0.1: PYSEC-2018-66, fixed in 0.12.3", False),
        ([SKIPPED, BAD], 1, "PYSEC-2018-66", True),
        ([SKIPPED, SKIPPED], 0, "NOT AUDITED: 2 of 2 dependencies", True),
        ([GOOD, SKIPPED], 0, "NOT AUDITED: 1 of 2 dependencies", True),
        (None, 0, "NOT AUDITED: 2 of 2 dependencies", True),
    ],
)
def test_what_was_not_looked_up_is_told_and_only_a_vulnerability_fails(
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    answer: list[dict[str, Any]] | None,
    code: int,
    said: str,
    loud: bool,
) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("# names and versions\nidna==3.20\n\nflask==0.1\n")
    text = "" if answer is None else json.dumps({"dependencies": answer, "fixes": []})
    play(monkeypatch, audit, text, "ERROR: Name or service not known")
    assert audit.main([str(constraints)]) == code
    shown = capsys.readouterr().out
    assert said in shown
    assert ("!!!!" in shown) == loud
    assert ("Name or service not known" in shown) == (answer is None)
