"""Lines of what coding agents read, made from source files: views, diffs, listings, logs, schemas.

Each generator takes files as (path, lines) and yields lines without their end. All randomness
comes from the `Random` passed in.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from random import Random

from agentload.workload.languages import SENTENCES

SourceFile = tuple[str, list[str]]

_DEF = re.compile(r"^\s*(?:def|class) (\w+)")
_WORD = re.compile(r"[A-Za-z_]\w{3,}")
_ERRORS = ("KeyError", "ValueError", "TypeError", "AssertionError", "OSError", "IndexError")
_JSON_TYPES = ("string", "integer", "boolean", "number", "array")


def code(files: Iterable[SourceFile]) -> Iterator[str]:
    """Source files as they are."""
    for _, lines in files:
        yield from lines


def numbered_views(files: Iterable[SourceFile]) -> Iterator[str]:
    """Source files with line numbers in front, as file-reading tools print them."""
    for _, lines in files:
        for number, line in enumerate(lines, 1):
            yield f"{number:6d}\t{line}"


def unified_diffs(files: Iterable[SourceFile], rng: Random) -> Iterator[str]:
    """One diff a file: hunks of context, removed lines, and the same lines with a name changed."""
    for path, lines in files:
        yield f"diff --git a/{path} b/{path}"
        yield f"index {rng.getrandbits(28):07x}..{rng.getrandbits(28):07x} 100644"
        yield f"--- a/{path}"
        yield f"+++ b/{path}"
        at = rng.randrange(20)
        while at + 12 < len(lines):
            changed = rng.randint(1, 4)
            yield f"@@ -{at + 1},{6 + changed} +{at + 1},{6 + changed} @@"
            yield from _hunk(lines[at : at + 6 + changed], changed, rng)
            at += 6 + changed + rng.randrange(120)


def _hunk(lines: list[str], changed: int, rng: Random) -> Iterator[str]:
    before, middle, after = lines[:3], lines[3 : 3 + changed], lines[3 + changed :]
    yield from (f" {line}" for line in before)
    yield from (f"-{line}" for line in middle)
    suffix = rng.choice(("_new", "_checked", "_all", "2"))
    yield from (f"+{_WORD.sub(lambda m: m[0] + suffix, line, count=1)}" for line in middle)
    yield from (f" {line}" for line in after)


def listings(files: Iterable[SourceFile], rng: Random) -> Iterator[str]:
    """Long directory listings: mode, owner, size, date, path."""
    for path, _ in files:
        month = rng.choice(("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct"))
        size = rng.randrange(60, 120_000)
        clock = f"{rng.randrange(24):02d}:{rng.randrange(60):02d}"
        yield f"-rw-r--r-- 1 dev dev {size:8d} {month} {rng.randint(1, 28):2d} {clock} {path}"


def grep_output(files: Iterable[SourceFile], rng: Random) -> Iterator[str]:
    """Matches of a word, as `path:number:line`."""
    for path, lines in files:
        words = _WORD.findall(" ".join(lines[:400]))
        if not words:
            continue
        word = rng.choice(words)
        for number, line in enumerate(lines, 1):
            if word in line:
                yield f"{path}:{number}:{line[:200]}"


def test_logs(files: Iterable[SourceFile], rng: Random) -> Iterator[str]:
    """Output of a test runner, with a traceback for about one test in twelve."""
    for path, lines in files:
        module = path.removesuffix(".py").replace("/", ".")
        found = [(n, m[1]) for n, line in enumerate(lines, 1) if (m := _DEF.match(line))]
        for number, name in found:
            share = rng.randrange(101)
            if rng.randrange(12):
                yield f"tests/test_{path}::test_{name} PASSED [{share:3d}%]"
                continue
            yield f"tests/test_{path}::test_{name} FAILED [{share:3d}%]"
            yield "Traceback (most recent call last):"
            for at in sorted(rng.sample(range(1, len(lines) + 1), min(3, len(lines)))):
                yield f'  File "/srv/app/{path}", line {at}, in {name}'
                yield f"    {lines[at - 1].strip()[:160]}"
            error = rng.choice(_ERRORS)
            yield f"{error}: {module}.{name} at line {number}: 0x{rng.getrandbits(44):012x}"


def tool_schemas(files: Iterable[SourceFile], prose: list[str], rng: Random) -> Iterator[str]:
    """Tool definitions, one compact JSON object a line, named after functions of the files."""
    for _, lines in files:
        for name in [m[1] for line in lines if (m := _DEF.match(line))]:
            words = _WORD.findall(" ".join(rng.sample(lines, min(8, len(lines)))))[:4]
            fields = {
                word: {"type": rng.choice(_JSON_TYPES), "description": _sentence(prose, rng)}
                for word in words
            }
            yield json.dumps(
                {
                    "type": "function",
                    "function": {
                        "name": name,
                        "description": " ".join(_sentence(prose, rng) for _ in range(2)),
                        "parameters": {
                            "type": "object",
                            "properties": fields,
                            "required": words[: rng.randrange(len(words) + 1)],
                        },
                    },
                },
                separators=(",", ":"),
            )


def _sentence(prose: list[str], rng: Random) -> str:
    return prose[rng.randrange(len(prose))].strip()


def non_ascii(rng: Random, chars: int) -> Iterator[str]:
    """Sentences of other scripts in random order, a few to a line."""
    made = 0
    while made < chars:
        line = "".join(rng.choices(SENTENCES, k=rng.randint(1, 6)))
        made += len(line) + 1
        yield line


def unbroken_runs(rng: Random, chars: int) -> Iterator[str]:
    """Base64 text in lines of 2,000 to 8,000 characters without a blank, as embedded data is."""
    made = 0
    while made < chars:
        line = base64.b64encode(rng.randbytes(rng.randint(1500, 6000))).decode()
        made += len(line) + 1
        yield line
