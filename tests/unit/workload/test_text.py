"""Slices of a text are exact in characters, and valid on their own."""

from __future__ import annotations

from random import Random

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentload.workload.text import Text, escaped

LINES = st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n")), min_size=1)


@given(LINES, st.data())
def test_a_slice_has_just_the_characters_asked_for(lines: list[str], data: st.DataObject) -> None:
    text = Text(lines)
    whole = "".join(line + "\n" for line in lines)
    start = data.draw(st.integers(0, len(whole) - 1))
    chars = data.draw(st.integers(0, 3 * len(whole)))
    parts = [orjson.loads(b'"' + bytes(p) + b'"') for p in text.slices(start, chars)]
    assert "".join(parts) == (whole * 5)[start : start + chars]
    assert text.chars == len(whole)


def test_slices_share_the_bytes_of_the_text() -> None:
    text = Text(["one", "two", 'three "quoted" \\ é 漢字'])
    (piece,) = text.slices(1, 12)
    assert isinstance(piece, memoryview)
    assert piece.obj is text.data


def test_random_lines_begin_after_a_line_end() -> None:
    text = Text(["a", "bb", "漢\t\\", ""])
    starts = {text.random_line(Random(seed)) for seed in range(60)}
    assert starts == {0, 2, 5, 9}
    assert [text.line_end(start) for start in sorted(starts)] == [2, 5, 9, 10]


def test_inside_a_word_is_between_two_letters() -> None:
    text = Text(["ab c\té", "x1"])
    inside = [i for i in range(1, text.chars) if text.inside_word(i)]
    assert inside == [1, 8]


def test_a_text_needs_a_line() -> None:
    with pytest.raises(ValueError, match="at least one line"):
        Text([])


def test_a_lone_surrogate_is_replaced() -> None:
    assert escaped('a\ud800"') == b'a?\\"'
