"""Which user of the whole run takes which session, alike on any number of workers."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

# A user's sessions lie this far apart, so that no two users ever share one, however many join.
SESSION_STRIDE = 1_000_000
# Users of a worker that joined after the start are numbered from multiples of this.
LATE_BLOCK = 50_000

_CLIENT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}_[0-9a-f]{32}")


def is_client_id(text: str) -> bool:
    """Whether it is `host_uuid` as Locust makes it. Folders are named after it."""
    return _CLIENT_ID.fullmatch(text) is not None


def dispatch_ranks(client_ids: Iterable[str]) -> dict[str, int]:
    """The order in which Locust deals users out to workers: round the hosts, then by id.

    Locust ids are `host_uuid`. With this rank, user k of the run lands on the worker of rank
    k modulo the number of workers.
    """
    on_host: dict[str, int] = {}
    places = []
    for client_id in sorted(client_ids):
        host = client_id.split("_")[0]
        places.append((on_host.get(host, 0), client_id))
        on_host[host] = on_host.get(host, 0) + 1
    return {client_id: rank for rank, (_, client_id) in enumerate(sorted(places))}


def rank_of(client_id: str, ranks: Mapping[str, int]) -> int:
    """The worker's rank; a worker the run did not start with comes after all others."""
    return ranks.get(client_id, len(ranks))


@dataclass(slots=True)
class Seats:
    """Numbers the users of one worker. A seat that became free is taken again, lowest first.

    `rank` of `workers` is this worker's place in `dispatch_ranks`; a rank beyond them is a worker
    that joined late. `stride` lies between two sessions of a user; it is no less than the users.
    """

    rank: int
    workers: int
    stride: int = SESSION_STRIDE
    _next: int = 0
    _free: list[int] = field(default_factory=list)
    _sessions: dict[int, int] = field(default_factory=dict)

    def take(self) -> int:
        """The number, in the whole run, of a user that starts now on this worker."""
        if self._free:
            return heapq.heappop(self._free)
        place, self._next = self._next, self._next + 1
        if self.rank < self.workers:
            return self.rank + place * self.workers
        return (self.rank - self.workers + 1) * LATE_BLOCK + place

    def leave(self, user: int) -> None:
        heapq.heappush(self._free, user)

    def owns(self, index: int) -> bool:
        """Whether a start that all workers know of is for this one; late workers own none."""
        return self.rank < self.workers and index % self.workers == self.rank

    def next_session(self, user: int) -> int:
        """The index of this user's next session; no other user of the run ever takes it."""
        nth = self._sessions.get(user, 0)
        self._sessions[user] = nth + 1
        return user + nth * self.stride
