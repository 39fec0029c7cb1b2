"""Characters per token of each kind of text, by real vocabularies."""

from __future__ import annotations

from random import Random
from statistics import mean

import orjson
import pytest

from agentload.workload.content import CHARS_PER_TOKEN, Corpus

quicktok = pytest.importorskip("quicktok", reason="needs the extra `tokenizer`")

VOCABULARIES = ("cl100k_base", "o200k_base", "llama3", "qwen3")

# Published by others or measured on other text of the kind; ours may differ by the share stated.
# code, view, diff, json, listing: Python sources and tool output, mean of the same vocabularies.
ELSEWHERE = {"code": 4.35, "view": 3.48, "diff": 3.74, "listing": 2.36, "json": 3.81}


@pytest.fixture(scope="module")
def measured(corpus: Corpus) -> dict[str, dict[str, float]]:
    """kind -> vocabulary -> characters per token, of 60 slices of 6,000 characters."""
    found: dict[str, dict[str, float]] = {}
    for kind in CHARS_PER_TOKEN:
        text, rng = corpus.text(kind), Random(9)
        slices = [
            orjson.loads(b'"' + b"".join(text.slices(text.random_line(rng), 6000)) + b'"')
            for _ in range(60)
        ]
        found[kind] = {
            name: 6000 * 60 / sum(len(quicktok.get_encoding(name).encode(s)) for s in slices)
            for name in VOCABULARIES
        }
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(CHARS_PER_TOKEN))
def test_the_table_is_the_mean_of_real_vocabularies(
    measured: dict[str, dict[str, float]], kind: str
) -> None:
    assert mean(measured[kind].values()) == pytest.approx(CHARS_PER_TOKEN[kind], rel=0.08)


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(ELSEWHERE))
def test_the_text_is_about_as_dense_as_real_text_of_its_kind(
    measured: dict[str, dict[str, float]], kind: str
) -> None:
    assert mean(measured[kind].values()) == pytest.approx(ELSEWHERE[kind], rel=0.25)


@pytest.mark.slow
def test_no_text_is_as_easy_as_repeated_words(measured: dict[str, dict[str, float]]) -> None:
    """Words said again and again have six characters a token; nothing an agent reads has."""
    assert max(max(by.values()) for by in measured.values()) < 5.0
