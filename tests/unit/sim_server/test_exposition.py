"""Text pages of metrics, read back by the official parser."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from agentload.sim.server.exposition import Family


def samples(family: Family) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    page = "\n".join(family.lines()) + "\n"
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for found in text_string_to_metric_families(page)
        for sample in found.samples
    }


def test_a_histogram_counts_up_to_each_edge() -> None:
    family = Family("wait_seconds", "histogram", "Waiting.", 12.5, {"engine": "0"}, (), (0.1, 1.0))
    for value, times in ((0.05, 2), (0.1, 1), (0.5, 3), (7.0, 1)):
        family.histogram().observe(value, times)
    read = samples(family)
    engine = ("engine", "0")
    assert (
        read["wait_seconds_bucket", (engine, ("le", "0.1"))] == 3
    )  # an edge belongs to its bucket
    assert read["wait_seconds_bucket", (engine, ("le", "1.0"))] == 6
    assert read["wait_seconds_bucket", (engine, ("le", "+Inf"))] == 7
    assert read["wait_seconds_count", (engine,)] == 7
    assert read["wait_seconds_sum", (engine,)] == pytest.approx(0.1 + 0.1 + 1.5 + 7)
    assert read["wait_seconds_created", (engine,)] == 12.5


def test_series_of_a_family_are_told_apart_by_their_label() -> None:
    family = Family("done_total", "counter", "Done.", 1.0, {}, ("reason",))
    family.value("stop").add(2)
    family.value("length").add(1)
    read = samples(family)
    assert read["done_total", (("reason", "stop"),)] == 2
    assert read["done_created", (("reason", "length"),)] == 1


def test_a_summary_has_count_and_sum() -> None:
    family = Family("size_bytes", "summary", "Sizes.", 1.0, {}, ("handler",))
    family.summary("/a").observe(3)
    family.summary("/a").observe(4)
    read = samples(family)
    assert read["size_bytes_count", (("handler", "/a"),)] == 2
    assert read["size_bytes_sum", (("handler", "/a"),)] == 7


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=20))
def test_any_label_value_is_read_back(value: str) -> None:
    family = Family("level", "gauge", "A level.", 1.0, {"name": value})
    family.value().value = 2.5
    assert samples(family) == {("level", (("name", value),)): 2.5}
