"""The text of all sessions, which threads read and build beside the hub."""

from __future__ import annotations

import gevent

from agentload.scenario import Scenario
from agentload.swarm.examine import Found
from agentload.swarm.plan import Wishes
from agentload.workload.content import Corpus
from agentload.workload.reach import planned_warning
from agentload.workload.traces.replay import Replay, load_replay, session_source


class Texts:
    """Seconds of work that on the hub would hold up heartbeats."""

    def __init__(self) -> None:
        self._corpus = Corpus()
        self._built = gevent.get_hub().threadpool.spawn(self._corpus.build_all)

    def get(self) -> Corpus:
        """The corpus, as soon as it is complete; other greenlets run meanwhile."""
        self._built.get()
        return self._corpus

    def length_warning(self, wishes: Wishes, found: Found, replay: Replay | None) -> str | None:
        """What is to be said when the run ends before its sessions do; None when it does not."""
        scenario = wishes.scenario
        make = session_source(
            scenario, self.get(), found.chars_per_token, found.max_model_len, replay=replay
        )
        pace = found.target["sim_speed"] or 1.0
        work = (scenario, make, wishes.stages.planned_s, pace)
        warning: str | None = gevent.get_hub().threadpool.apply(planned_warning, work)
        return warning

    @staticmethod
    def replay(scenario: Scenario) -> Replay | None:
        """The sessions of the scenario's trace, None without one; raises TraceError."""
        replay: Replay | None = gevent.get_hub().threadpool.apply(load_replay, (scenario,))
        return replay
