"""The reader of the server's page is right about sums, differences and bucket edges."""

import pytest

from tests.vllm.page import Delta, Page

PAGE = """\
# TYPE vllm:done counter
vllm:done_total{{reason="stop"}} {stop}
vllm:done_total{{reason="length"}} {length}
# TYPE vllm:gap_seconds histogram
vllm:gap_seconds_bucket{{le="0.1"}} {upto_100ms}
vllm:gap_seconds_bucket{{le="0.5"}} {upto_500ms}
vllm:gap_seconds_bucket{{le="+Inf"}} {count}
vllm:gap_seconds_count {count}
vllm:gap_seconds_sum 3.5
# TYPE python_info gauge
python_info 1
"""


def page(stop: int, length: int, upto_100ms: int, upto_500ms: int, count: int) -> Page:
    return Page.parse(
        PAGE.format(
            stop=stop, length=length, upto_100ms=upto_100ms, upto_500ms=upto_500ms, count=count
        )
    )


DELTA = Delta(page(1, 10, 5, 6, 7), page(4, 12, 8, 10, 11))


def test_a_total_sums_the_samples_that_carry_the_labels() -> None:
    assert DELTA.total("done_total") == 5
    assert DELTA.total("done_total", reason="stop") == 3


def test_a_missing_sample_is_an_error_not_a_zero() -> None:
    with pytest.raises(KeyError, match="vllm:other_total"):
        DELTA.total("other_total")


def test_the_largest_bucket_is_the_highest_that_grew() -> None:
    assert DELTA.largest_bucket("gap_seconds") == (0.1, 0.5)
    assert Delta(DELTA.after, DELTA.after).largest_bucket("gap_seconds") is None
