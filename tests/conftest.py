"""What holds for all tests: those whose tools are missing are skipped, but never where CI runs."""

from __future__ import annotations

import pytest

from tests import needs


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """`needs(...)` is looked at before the first fixture starts anything."""
    wanted = [name for mark in item.iter_markers("needs") for name in mark.args]
    unknown = [name for name in wanted if name not in needs.NEEDS]
    if unknown:
        pytest.fail(f"needs{tuple(unknown)}: only {', '.join(needs.NEEDS)}", pytrace=False)
    reasons = [reason for name in dict.fromkeys(wanted) if (reason := needs.missing(name))]
    if reasons:
        needs.skip("; ".join(reasons))
