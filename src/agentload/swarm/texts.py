"""The text of all sessions, built in a thread while the process comes up."""

from __future__ import annotations

import gevent

from agentload.workload.content import Corpus


class Texts:
    """Two seconds of work that on the hub would hold up heartbeats."""

    def __init__(self) -> None:
        self._corpus = Corpus()
        self._built = gevent.get_hub().threadpool.spawn(self._corpus.build_all)

    def get(self) -> Corpus:
        """The corpus, as soon as it is complete; other greenlets run meanwhile."""
        self._built.get()
        return self._corpus
