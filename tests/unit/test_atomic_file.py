"""A file is the old one or the new one, never a part."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentload.atomic_file import replace_json, replace_text


def test_whoever_reads_the_old_file_goes_on_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text("old", encoding="utf-8")
    with path.open(encoding="utf-8") as reader:
        replace_text(path, "new ü")
        assert reader.read() == "old"
    assert path.read_bytes() == b"new \xc3\xbc"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), object()])
def test_what_is_no_json_leaves_the_old_file(tmp_path: Path, bad: object) -> None:
    path = tmp_path / "state.json"
    replace_json(path, {"name": "ü"})
    assert json.loads(path.read_bytes()) == {"name": "ü"}
    with pytest.raises((ValueError, TypeError)):
        replace_json(path, {"name": "new", "value": bad})
    assert path.read_text(encoding="utf-8") == '{\n  "name": "ü"\n}\n'
    assert list(tmp_path.iterdir()) == [path]
