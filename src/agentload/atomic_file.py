"""Replaces a file in one step."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def replace_text(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader, or a kill at any moment, finds the old or the new.

    The data and the folder entry are on disk when this returns.
    """
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def replace_json(path: Path, value: Any) -> None:
    """`value` as indented JSON, by `replace_text`; ValueError for NaN, which is no JSON."""
    text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
    replace_text(path, text + "\n")
