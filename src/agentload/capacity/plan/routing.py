"""Which replica a turn goes to, as gateways decide it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Literal

from agentload.sim.core import Replica
from agentload.sim.core import Turn as CoreTurn
from agentload.sim.core.offline import Route

Routing = Literal["sticky", "bounded-hash", "hash", "prefix-aware", "least-loaded", "round-robin"]
ROUTINGS: dict[Routing, str] = {
    "sticky": "each session stays where it began, sessions spread evenly",
    "bounded-hash": "by a hash of the session, no replica above 1.25 x the mean of sessions",
    "hash": "by a hash of the session alone",
    "prefix-aware": "where the fewest tokens have to be computed first",
    "least-loaded": "the fewest requests in flight, whatever is cached",
    "round-robin": "each turn to the next replica",
}
BOUND = 1.25  # of the mean load: consistent hashing with bounded loads (arXiv 1608.01350)
_TOKENS_PER_RUNNING = 64  # what a running request weighs beside tokens to compute


def make_route(routing: Routing, seats: Sequence[int]) -> Route:
    """The rule for one simulation. `seats[user]` is the user's replica where sessions stay."""
    if routing == "round-robin":
        return _RoundRobin()
    if routing == "least-loaded":
        return _least_loaded
    if routing == "prefix-aware":
        return _prefix_aware
    return lambda session, _turn, _replicas: seats[session % len(seats)]


def seat_users(routing: Routing, users: int, replicas: int, salt: str) -> list[int]:
    """The replica of each user under a rule that keeps sessions; even for all other rules."""
    if routing not in ("hash", "bounded-hash"):
        return [user % replicas for user in range(users)]
    most = users if routing == "hash" else math.ceil(BOUND * users / replicas)
    loads = [0] * replicas
    seats = []
    for user in range(users):
        digest = hashlib.sha256(f"{salt}/{user}".encode()).digest()
        at = int.from_bytes(digest[:8], "big") % replicas
        while loads[at] >= most:
            at = (at + 1) % replicas
        loads[at] += 1
        seats.append(at)
    return seats


class _RoundRobin:
    def __init__(self) -> None:
        self._next = -1

    def __call__(self, _session: int, _turn: CoreTurn, replicas: Sequence[Replica]) -> int:
        self._next += 1
        return self._next % len(replicas)


def _in_flight(replica: Replica) -> int:
    return replica.engine.running_count + replica.engine.waiting_count


def _least_loaded(_session: int, _turn: CoreTurn, replicas: Sequence[Replica]) -> int:
    return min(range(len(replicas)), key=lambda n: (_in_flight(replicas[n]), n))


def _prefix_aware(_session: int, turn: CoreTurn, replicas: Sequence[Replica]) -> int:
    prompt = sum(tokens for _, tokens in turn.prompt)

    def work(number: int) -> tuple[float, int]:
        replica = replicas[number]
        uncached = prompt - replica.cached_tokens(turn)
        return replica.engine.queued_tokens + uncached + _TOKENS_PER_RUNNING * (
            replica.engine.running_count
        ), number

    return min(range(len(replicas)), key=work)
