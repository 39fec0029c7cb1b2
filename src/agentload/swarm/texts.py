"""The text of all sessions, which threads read and build beside the hub."""

from __future__ import annotations

import gevent

from agentload.scenario import Scenario
from agentload.workload.content import Corpus
from agentload.workload.traces.replay import Replay, load_replay


class Texts:
    """Seconds of work that on the hub would hold up heartbeats."""

    def __init__(self) -> None:
        self._corpus = Corpus()
        self._built = gevent.get_hub().threadpool.spawn(self._corpus.build_all)

    def get(self) -> Corpus:
        """The corpus, as soon as it is complete; other greenlets run meanwhile."""
        self._built.get()
        return self._corpus

    @staticmethod
    def replay(scenario: Scenario) -> Replay | None:
        """The sessions of the scenario's trace, None without one; raises TraceError."""
        replay: Replay | None = gevent.get_hub().threadpool.apply(load_replay, (scenario,))
        return replay
