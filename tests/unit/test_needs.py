"""The marker `needs`: what is missing is named, and where CI runs it is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MARKED = """
import pytest

@pytest.fixture
def start(request):
    print("started:", request.node.name)

@pytest.mark.needs("chromium", "haproxy")
def test_two(start):
    pass

@pytest.mark.needs("prometheus")
def test_there(start):
    pass

@pytest.mark.needs("chrome")
def test_unknown(start):
    pass
"""
MISSING = (
    "not installed: chromium chromedriver (Debian: apt-get install chromium chromium-driver); "
    "not installed: haproxy (Debian: apt-get install haproxy)"
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ci", "said", "counts"),
    [
        ("", f"SKIPPED [1] {{}}: {MISSING}", "1 passed, 1 skipped, 1 error"),
        ("true", f"CI has to run this test: {MISSING}", "1 passed, 2 errors"),
    ],
)
def test_what_is_missing_is_named_and_nothing_is_started(
    tmp_path: Path, ci: str, said: str, counts: str
) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  needs: ...\n", encoding="utf-8")
    for name in ("prometheus", "promtool"):
        (tmp_path / name).write_text("#!/bin/sh\n", encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    plugins = ("-p", "tests.conftest", "-p", "no:randomly", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", *plugins, str(tmp_path)],
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT), "COLUMNS": "500", "CI": ci},
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
    )
    before, _, after = said.rpartition("{}")
    assert before in done.stdout
    assert after in done.stdout
    assert "needs('chrome',): only curl, chromium, prometheus" in done.stdout
    assert counts in done.stdout
    assert done.stdout.count("started: test_there") == done.stdout.count("started:") == 1
