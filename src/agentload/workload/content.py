"""The corpus of a process: text of every kind, built once from the interpreter's own library."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Hashable, Iterator
from functools import cached_property
from pathlib import Path
from random import Random
from typing import Any

from agentload.workload import generators
from agentload.workload.generators import SourceFile
from agentload.workload.text import Text

# Characters per token, the mean of cl100k, o200k, Llama-3 and Qwen3 on this corpus
# (tests/unit/workload/test_content_tokens.py). Only the ratios between them are used: a run
# measures the target's own level.
CHARS_PER_TOKEN: dict[str, float] = {
    "code": 4.17,
    "view": 3.27,
    "diff": 3.65,
    "listing": 2.18,
    "grep": 3.25,
    "log": 3.22,
    "json": 4.61,
    "prose": 4.55,
    "unbroken": 1.40,
    "non_ascii": 2.20,
}

_SKIPPED_FOLDERS = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
_CORPUS_SEED = 1  # fixed: the corpus is the same whatever the seed of a scenario
_CODE_CHARS = 12_000_000
_GENERATED_CHARS = 3_000_000  # of each generated kind


class Corpus:
    """Texts by kind, the same in every process that runs the same interpreter.

    `fingerprint` tells whether two processes have the same one. A kind is built when first asked
    for; `build_all` does it at once, before a run starts.
    """

    def __init__(self, library: Path | None = None) -> None:
        self._files = _source_files(library or Path(sysconfig.get_paths()["stdlib"]))
        self._texts: dict[str, Text] = {}
        self.derived: dict[Hashable, Any] = {}  # what sessions share that is made from the texts

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits over every source file that texts are made from."""
        digest = hashlib.sha256()
        for path, lines in self._files:
            digest.update(path.encode() + b"\0" + "\n".join(lines).encode("utf-8", "replace"))
        return digest.hexdigest()[:16]

    def text(self, kind: str) -> Text:
        """The text of a kind, KeyError for an unknown kind."""
        if kind not in self._texts:
            CHARS_PER_TOKEN[kind]
            self._texts[kind] = Text(self._lines(kind))
        return self._texts[kind]

    def build_all(self) -> None:
        """Build every text and let the source lines go."""
        for kind in CHARS_PER_TOKEN:
            self.text(kind)
        _ = self.fingerprint
        self._files = []

    def _lines(self, kind: str) -> Iterator[str]:
        rng = Random(f"{_CORPUS_SEED}/{kind}")
        if kind == "code":
            return _upto(_CODE_CHARS, generators.code(self._files))
        if kind == "prose":
            return iter(_prose(self._files))
        if kind in ("unbroken", "non_ascii"):
            make = generators.unbroken_runs if kind == "unbroken" else generators.non_ascii
            return make(rng, _GENERATED_CHARS // 3)
        return _upto(_GENERATED_CHARS, self._passes(kind, rng))

    def _passes(self, kind: str, rng: Random) -> Iterator[str]:
        """The generated lines of all files, pass after pass, each in another order."""
        files = self._files[:]
        while True:
            rng.shuffle(files)
            made = False
            for line in self._generated(kind, files, rng):
                made = True
                yield line
            if not made:
                raise ValueError(f"the library's files give no text of kind {kind}")

    def _generated(self, kind: str, files: list[SourceFile], rng: Random) -> Iterator[str]:
        if kind == "view":
            return generators.numbered_views(files)
        if kind == "diff":
            return generators.unified_diffs(files, rng)
        if kind == "listing":
            return generators.listings(files, rng)
        if kind == "grep":
            return generators.grep_output(files, rng)
        if kind == "log":
            return generators.test_logs(files, rng)
        return generators.tool_schemas(files, _prose(files), rng)


def _source_files(library: Path) -> list[SourceFile]:
    """Python files under `library` in order of path; files that are not UTF-8 are left out."""
    files = []
    for folder, subfolders, names in os.walk(library):
        subfolders[:] = sorted(s for s in subfolders if s not in _SKIPPED_FOLDERS)
        for name in sorted(names):
            # _sysconfigdata holds the paths of the machine that built the interpreter
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                file = Path(folder, name)
                try:
                    lines = file.read_text(encoding="utf-8").splitlines()
                except (OSError, UnicodeDecodeError):
                    continue
                if lines:
                    files.append((file.relative_to(library).as_posix(), lines))
    if not files:
        raise FileNotFoundError(f"{library}: no Python source files, so no text for sessions")
    return sorted(files)


def _prose(files: list[SourceFile]) -> list[str]:
    """Lines of running text: at least eight words, most of them plain, as in docstrings."""
    found = []
    for _, lines in files:
        for line in lines:
            text = line.strip().lstrip("# ")
            words = text.split()
            if len(words) >= 8 and sum(w.strip(".,;:()'\"").isalpha() for w in words) >= 0.9 * len(
                words
            ):
                found.append(text)
    return found or ["Read the file, run the tests, then say what has changed in the result."]


def _upto(chars: int, lines: Iterator[str]) -> Iterator[str]:
    made = 0
    for line in lines:
        if made >= chars:
            return
        made += len(line) + 1
        yield line
