"""The ledger of a session's tokens, by hand."""

from __future__ import annotations

import pytest

from agentload.workload.tokens import Ledger, Ratios

RATIOS = Ratios({"code": 4.0, "prose": 5.0}, message_tokens=10)


def ledger() -> Ledger:
    made = Ledger(RATIOS)
    made.push((("code", 4000),))  # 1,000 + 10
    made.push((("prose", 500),))  # 100 + 10
    return made


def test_a_report_moves_what_is_known_and_not_what_is_planned() -> None:
    made = ledger()
    assert [made.planned(n) for n in range(3)] == [0, 1010, 1120]
    made.report(1400)
    assert made.planned(2) == 1120
    assert made.known(2) == 1400
    assert made.known(1) == pytest.approx(1010 * 1400 / 1120)  # spread over the prompt
    assert made.counted(1) == made.known(1)
    made.push((("code", 400),))
    assert made.known(3) == pytest.approx(1400 + 10 + 100 * 1.25)
    assert made.counted(3) == 1400


def test_later_reports_correct_the_kinds_that_were_added() -> None:
    made = ledger()
    made.report(1120)
    for _ in range(12):
        made.push((("code", 40_000),))
        made.report(round(made.known(len(made) - 1)) + 20_010)  # code is twice as dense
    before = made.known(len(made))
    made.push((("code", 4000),))
    assert made.known(len(made)) - before == pytest.approx(2010, rel=0.02)
    before = made.known(len(made))
    made.push((("prose", 5000),))
    assert made.known(len(made)) - before == pytest.approx(1010)


def test_a_cut_forgets_what_came_after() -> None:
    made = ledger()
    made.report(1400)
    made.push((("code", 400),))
    made.cut(2)
    assert (len(made), made.known(2)) == (2, 1400)
    made.cut(1)
    made.push((("prose", 5000),))
    assert made.planned(2) == 1010 + 1010
    made.report(2600)
    assert made.known(2) == 2600


def test_a_report_below_what_was_known_stands() -> None:
    made = ledger()
    made.report(1400)
    made.push((("code", 400),))
    made.report(1300)
    assert made.known(3) == 1300
