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


def test_a_quantile_is_in_the_bucket_of_its_rank() -> None:
    # 4 observations between the pages: 3 up to 0.1 s, 1 above 0.1 up to 0.5 s
    assert DELTA.quantile_bucket("gap_seconds", 0.5) == (0.0, 0.1)
    assert DELTA.quantile_bucket("gap_seconds", 0.75) == (0.0, 0.1)
    assert DELTA.quantile_bucket("gap_seconds", 0.76) == (0.1, 0.5)
    assert DELTA.quantile_bucket("gap_seconds", 1.0) == (0.1, 0.5)


def test_a_quantile_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="no observation"):
        Delta(DELTA.after, DELTA.after).quantile_bucket("gap_seconds", 0.5)
