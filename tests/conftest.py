"""What holds for all tests: which of them share a process, and what those do that lack a tool."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import needs

TESTS = Path(__file__).parent
REAL_TIME = ("e2e", "netns", "browser")  # start servers and look at clocks: one after the other


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Two processes share the suite: one has all tests that would disturb each other's times."""
    for item in (item for item in items if item.path.is_relative_to(TESTS)):
        place = item.path.relative_to(TESTS).parts
        group = "real time" if place[0] in REAL_TIME else "/".join(place)
        item.add_marker(pytest.mark.xdist_group(group))


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
