"""One configuration under load on the virtual clock, and what its turns saw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from agentload.capacity.plan.demand import Demand, PlannedTurn, core_turns
from agentload.capacity.plan.draws import CostDraw
from agentload.capacity.plan.routing import Routing, make_route, seat_users
from agentload.sim.core import EngineConfig, Histogram, Offline, Replica, Turn, TurnResult
from agentload.turn_metrics import min_samples

WARM_UP_SHARE = 1.3  # of the cold prefills of all users, one after the other on each replica
_STRETCHES = 12  # the measured window grows in so many steps at most
_DRAIN_S = 600.0  # how long turns of the window may still take
_DRAIN_STEP_S = 20.0


@dataclass(frozen=True, slots=True)
class Load:
    """How one simulation is played: `users` closed-loop sessions over `replicas` engines."""

    users: int
    replicas: int
    routing: Routing = "sticky"
    seed: int = 0
    least_turns: int = 600  # measured, beside the cold ones


@dataclass(frozen=True, slots=True)
class SeenTurn:
    """A turn of the measured window. `tpot_s` is None below two tokens.

    A turn that never ended has the time it had waited for its `ttft_s`, a lower bound.
    """

    turn_class: str
    ttft_s: float
    tpot_s: float | None
    e2e_s: float | None
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Played:
    """What one simulation came to; `itl` holds gaps of all turns in s."""

    turns: tuple[SeenTurn, ...]
    itl: Histogram
    seconds: float
    output_tokens: int
    preemptions: int
    replicas: int

    @property
    def hit_ratio(self) -> float | None:
        """Cached / prompt tokens of all answered turns but cold ones."""
        later = [turn for turn in self.later() if turn.e2e_s is not None]
        prompt = sum(turn.prompt_tokens for turn in later)
        return sum(turn.cached_tokens for turn in later) / prompt if prompt else None

    @property
    def tokens_per_s(self) -> float:
        """Output tokens a second of one replica."""
        return self.output_tokens / self.seconds / self.replicas

    def of_class(self, *names: str) -> list[SeenTurn]:
        return [turn for turn in self.turns if turn.turn_class in names]

    def later(self) -> list[SeenTurn]:
        """All turns but the first ones of sessions."""
        return [turn for turn in self.turns if turn.turn_class != "cold"]


def play(config: EngineConfig, draw: CostDraw, demand: Demand, load: Load) -> Played:
    """Let all users get warm one by one, then measure until enough turns were sent.

    Users begin somewhere inside a session, and take a new one when theirs ends. Turns sent in the
    window are followed to their end while the load goes on. Deterministic by `load.seed`.
    """
    world = _World(config, draw, demand, load)
    begin_s = world.warm_up()
    end_s = world.measure(begin_s)
    return world.seen(begin_s, end_s)


@dataclass(slots=True)
class _User:
    """The turns one user was given, in order."""

    turns: list[PlannedTurn] = field(default_factory=list)


class _World:
    def __init__(self, config: EngineConfig, draw: CostDraw, demand: Demand, load: Load) -> None:
        self._config, self._draw, self._demand, self._load = config, draw, demand, load
        self._replicas = [Replica(config, draw.cost, draw.frontend()) for _ in range(load.replicas)]
        seats = seat_users(load.routing, load.users, load.replicas, str(load.seed))
        self._offline = Offline(self._replicas, make_route(load.routing, seats))
        self._users = [_User() for _ in range(load.users)]
        self._itl = Histogram()

    def warm_up(self) -> float:
        """Start the users one by one; returns when all have long begun."""
        load, demand = self._load, self._demand
        firsts = [session.turns[0].prompt_tokens for session in demand.sessions]
        tokens = sum(firsts) / len(firsts)
        cold_s = self._draw.cost.c1 * tokens + self._draw.cost.c4 * tokens**2 / 2
        spacing_s = WARM_UP_SHARE * cold_s / load.replicas
        for number, user in enumerate(self._users):
            self._offline.add_session(self._stream(number, user), number * spacing_s)
        begin_s = load.users * spacing_s + 2 * cold_s
        self._offline.run(begin_s)
        return begin_s

    def _stream(self, number: int, user: _User) -> Iterator[Turn]:
        """Sessions one after the other; the first begins in its middle."""
        sessions = self._demand.sessions
        rng = Random(f"{self._load.seed}/{number}")
        size, first, serial = self._config.block_size, None, 0
        while True:
            session = sessions[rng.randrange(len(sessions))]
            first = rng.randrange(len(session.turns)) if first is None else 0
            for planned, turn in core_turns(session, (number, serial), size, first):
                user.turns.append(planned)
                yield turn
            serial += 1

    def measure(self, begin_s: float) -> float:
        """Extend the window until it holds enough turns; returns its end.

        The first stretch is long enough for the turns there would be if answers took no time.
        """
        load, turns = self._load, self._demand.turns
        waits_s = sum(turn.wait_s for turn in turns) / len(turns)
        tokens = sum(turn.output_tokens for turn in turns) / len(turns)
        stretch_s = load.least_turns / load.users * (waits_s + tokens * self._draw.cost.c0)
        self._forget_gaps()
        end_s = begin_s
        for _ in range(_STRETCHES):
            end_s += stretch_s
            self._offline.run(end_s)
            sent = [r for r in self._offline.results if r.sent_s >= begin_s]
            if sum(self._class_of(r) != "cold" for r in sent) >= load.least_turns:
                break
        for replica in self._replicas:
            self._itl.merge(replica.engine.itl)
        drained_s = end_s
        while drained_s < end_s + _DRAIN_S and self._open(begin_s, end_s):
            drained_s += _DRAIN_STEP_S
            self._offline.run(drained_s)
        return end_s

    def seen(self, begin_s: float, end_s: float) -> Played:
        """The turns sent in the window, those that never ended among them.

        The first turn of each user is none of them: it begins inside a session, on a cold cache.
        """
        done = [r for r in self._offline.results if r.turn_index and begin_s <= r.sent_s < end_s]
        turns = [_seen(self._class_of(r), r, self._draw.ttft_factor) for r in done]
        now_s = self._offline.now_s
        for user, turn_index, sent_s in self._open(begin_s, end_s):
            planned = self._users[user].turns[turn_index]
            turns.append(
                SeenTurn(planned.turn_class, now_s - sent_s, None, None, planned.prompt_tokens, 0)
            )
        return Played(
            turns=tuple(turns),
            itl=self._itl,
            seconds=end_s - begin_s,
            output_tokens=sum(r.request.output_tokens for r in done),
            preemptions=sum(r.engine.counters.preemptions for r in self._replicas),
            replicas=self._load.replicas,
        )

    def _class_of(self, result: TurnResult) -> str:
        return self._users[result.session].turns[result.turn_index].turn_class

    def _open(self, begin_s: float, end_s: float) -> list[tuple[int, int, float]]:
        return [t for t in self._offline.unfinished() if t[1] and begin_s <= t[2] < end_s]

    def _forget_gaps(self) -> None:
        for replica in self._replicas:
            replica.engine.itl = Histogram()


def _seen(turn_class: str, result: TurnResult, ttft_factor: float) -> SeenTurn:
    request = result.request
    ttft_s, e2e_s = result.ttft_s, result.e2e_s
    tokens = request.output_tokens
    tpot_s = (e2e_s - ttft_s) / (tokens - 1) if tokens > 1 else None
    return SeenTurn(
        turn_class,
        ttft_s * ttft_factor,
        tpot_s,
        e2e_s + ttft_s * (ttft_factor - 1),
        request.prompt_tokens,
        request.cached_tokens or 0,
    )


def percentile(values: Sequence[float], share: float) -> float | None:
    """Linear interpolation between order statistics; None with too few for this percentile."""
    if len(values) < min_samples(share):
        return None
    return float(np.quantile(values, share))
