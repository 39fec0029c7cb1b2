"""Which workers of a run went missing, left or joined, and when."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

MISSING = "missing"  # Locust's word for a worker without heartbeat


@dataclass(frozen=True, slots=True)
class Change:
    """One change among the workers. `kind` is the kind of the event in `events.csv`."""

    at_s: float
    kind: str  # worker_missing, worker_returned, worker_left, worker_joined
    client_id: str


@dataclass(slots=True)
class WorkerWatch:
    """Compares the workers Locust knows, once a second, with those the run began with.

    Locust itself tells nobody: it exits with 0 when workers die.
    """

    started_with: frozenset[str]
    changes: list[Change] = field(default_factory=list)
    absent_since_s: dict[str, float] = field(default_factory=dict)
    intervals_s: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    _joined: set[str] = field(default_factory=set)
    _left: set[str] = field(default_factory=set)

    def observe(self, now_s: float, states: Mapping[str, str]) -> list[Change]:
        """What changed since the last call; `states` are Locust's, by worker id."""
        found = [change for id_ in self._known() if (change := self._look(now_s, id_, states))]
        for client_id in sorted(states.keys() - self._known()):
            self._joined.add(client_id)
            found.append(Change(now_s, "worker_joined", client_id))
        self.changes += found
        return found

    def close(self, now_s: float) -> None:
        """The run is over: intervals that are still open end here."""
        for client_id, since_s in self.absent_since_s.items():
            self.intervals_s.setdefault(client_id, []).append((since_s, now_s))

    def _known(self) -> list[str]:
        return sorted(self.started_with | self._joined)

    def _look(self, now_s: float, client_id: str, states: Mapping[str, str]) -> Change | None:
        state = states.get(client_id)
        was_absent = client_id in self.absent_since_s
        if state is not None and state != MISSING:
            if not was_absent:
                return None
            since_s = self.absent_since_s.pop(client_id)
            self.intervals_s.setdefault(client_id, []).append((since_s, now_s))
            self._left.discard(client_id)
            return Change(now_s, "worker_returned", client_id)
        self.absent_since_s.setdefault(client_id, now_s)
        if state is None and client_id not in self._left:
            self._left.add(client_id)
            return None if was_absent else Change(now_s, "worker_left", client_id)
        return None if was_absent else Change(now_s, "worker_missing", client_id)
