"""Network namespaces for the tests of this folder."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import pytest

from tests import needs
from tests.netns.network import sweep, what_is_missing


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "plays(*names): what is played for the test")


def wanted(session: pytest.Session) -> list[str]:
    """All that the chosen tests want to have played, so that it can be played at once."""
    marks = [mark for item in session.items for mark in item.iter_markers("plays")]
    return list(dict.fromkeys(name for mark in marks for name in mark.args))


class Starts:
    """Lets few clusters start at a time: ten processes that start on two cores are so slow that
    Locust takes workers for missing. Those that run need little."""

    def __init__(self, at_once: int = 2) -> None:
        self._free = threading.Semaphore(at_once)

    @contextlib.contextmanager
    def one(self) -> Iterator[Callable[[], object]]:
        """The call that says that the cluster runs; its end says so, too."""
        self._free.acquire()
        releases = iter((self._free.release,))

        def is_running() -> None:
            next(releases, lambda: None)()

        try:
            yield is_running
        finally:
            is_running()


@pytest.fixture(scope="session", autouse=True)
def namespaces() -> None:
    """Skip where no namespace can be made; where CI runs, that is an error."""
    missing = what_is_missing()
    if missing is None:
        sweep()
    else:
        needs.skip(missing)
