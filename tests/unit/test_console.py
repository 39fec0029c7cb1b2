"""Tables are as wide as a terminal; what is no terminal cuts nothing."""

from __future__ import annotations

import pytest

from agentload.console import FILE_COLUMNS, output_console


def test_a_pipe_or_a_file_is_wider_than_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert output_console().width == FILE_COLUMNS > 80


def test_a_width_that_was_asked_for_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "91")
    monkeypatch.setattr("sys.stdout.isatty", lambda: False)
    assert output_console().width == 91
