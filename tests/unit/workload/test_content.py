"""The corpus is the same in every process, and each kind looks like what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import orjson
import pytest

from agentload.workload.content import CHARS_PER_TOKEN, Corpus

SCRIPT = """
import hashlib
from agentload.workload.content import CHARS_PER_TOKEN, Corpus
corpus = Corpus()
digest = hashlib.sha256()
for kind in CHARS_PER_TOKEN:
    digest.update(corpus.text(kind).data)
print(corpus.fingerprint, digest.hexdigest())
"""

LOOKS = {
    "code": r"^\s*(def|import|class|return) ?",
    "view": r"^ +\d+\t",
    "diff": r"^@@ -\d+,\d+ \+\d+,\d+ @@$",
    "listing": r"^-rw-r--r-- 1 dev dev +\d+ [A-Z][a-z]{2} +\d+ \d\d:\d\d \S+\.py$",
    "grep": r"^\S+\.py:\d+:",
    "log": r"^tests/test_\S+::test_\w+ (PASSED|FAILED) \[ *\d+%\]$",
    "json": r'^\{"type":"function","function":\{"name":"\w+","description":',
    "prose": r"^\S+( \S+){5,}$",
    "unbroken": r"^[A-Za-z0-9+/=]{2000,}$",
    "non_ascii": r"[\u0400-\u9fff]",
}


def lines(corpus: Corpus, kind: str, chars: int = 200_000) -> list[str]:
    text = corpus.text(kind)
    joined = b"".join(text.slices(text.random_line(Random(1)), chars))
    return orjson.loads(b'"' + joined + b'"').split("\n")[:-1]


@pytest.mark.parametrize("kind", sorted(CHARS_PER_TOKEN))
def test_a_kind_looks_like_what_it_is(corpus: Corpus, kind: str) -> None:
    found = lines(corpus, kind)
    matching = sum(bool(re.search(LOOKS[kind], line)) for line in found)
    assert matching >= 0.02 * len(found)


def test_tool_definitions_are_json(corpus: Corpus) -> None:
    for line in lines(corpus, "json"):
        assert orjson.loads(line)["function"]["parameters"]["type"] == "object"


def test_line_numbers_of_a_view_count_up(corpus: Corpus) -> None:
    numbers = [int(line.split("\t")[0]) for line in lines(corpus, "view")]
    steps = [b - a for a, b in pairwise(numbers)]
    assert sum(step == 1 for step in steps) > 0.97 * len(steps)


@pytest.mark.slow
def test_two_processes_have_the_same_bytes() -> None:
    """Hash randomisation differs between processes; the text must not."""
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            check=True, capture_output=True, text=True, env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }  # fmt: skip
    assert len(outputs) == 1


def test_another_library_has_another_fingerprint(tmp_path: Path, corpus: Corpus) -> None:
    (tmp_path / "a.py").write_text("def f():\n    return 1\n")
    other = Corpus(tmp_path)
    first = other.fingerprint
    assert re.fullmatch("[0-9a-f]{16}", first)
    assert first != corpus.fingerprint
    (tmp_path / "a.py").write_text("def f():\n    return 2\n")
    assert Corpus(tmp_path).fingerprint != first


def test_files_that_are_not_source_text_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("x = 1\n")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "t.py").write_text("y = 1\n")
    text = Corpus(tmp_path).text("code")
    assert text.data == b"x = 1\\n"


def test_a_library_without_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no Python source files"):
        Corpus(tmp_path)


def test_an_unknown_kind_is_an_error(corpus: Corpus) -> None:
    with pytest.raises(KeyError, match="poem"):
        corpus.text("poem")


def test_build_all_lets_the_sources_go(tmp_path: Path) -> None:
    source = (
        "def function_of_tests(argument):\n    # " + "some words of running text here and more\n"
    )
    (tmp_path / "a.py").write_text(source * 20)
    built = Corpus(tmp_path)
    before = Corpus(tmp_path).fingerprint
    built.build_all()
    assert built.fingerprint == before
    assert {kind for kind in CHARS_PER_TOKEN if built.text(kind).chars > 0} == set(CHARS_PER_TOKEN)
