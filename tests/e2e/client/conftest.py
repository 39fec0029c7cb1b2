"""The measuring client in a process of its own."""

from collections.abc import Iterator

import pytest

from tests.e2e.client.driving import Driver


@pytest.fixture(scope="session")
def driver() -> Iterator[Driver]:
    with Driver() as running:
        yield running
