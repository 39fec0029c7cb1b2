"""Closed-loop sessions run through API server queues and engines on a virtual clock."""

import heapq
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from agentload.sim.core.blocks import Node
from agentload.sim.core.config import EngineConfig
from agentload.sim.core.cost import StepCost
from agentload.sim.core.engine import Engine
from agentload.sim.core.frontend import Frontend
from agentload.sim.core.request import Request


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a session.

    `prompt` holds (segment name, tokens) from the start of the prompt; equal names mean equal
    text, and a name stands below one parent only. Every segment but the last covers whole blocks.
    The answer continues the last one. `think_s` is the pause between the answer's last token and
    the next turn.
    """

    prompt: tuple[tuple[Hashable, int], ...]
    output_tokens: int
    think_s: float = 0.0
    token_ids: bool = False  # the prompt needs no tokenization


@dataclass(frozen=True, slots=True)
class TurnResult:
    """A completed turn: when it was sent, and the request with its times in s."""

    session: int
    turn_index: int
    replica: int
    sent_s: float
    engine_s: float  # tokenized and in the waiting queue
    request: Request

    @property
    def ttft_s(self) -> float:
        """First token minus sent, API server included."""
        return _known(self.request.first_token_s) - self.sent_s

    @property
    def e2e_s(self) -> float:
        """Last token minus sent."""
        return _known(self.request.last_token_s) - self.sent_s


class Replica:
    """An API server and its engine."""

    def __init__(self, config: EngineConfig, cost: StepCost, frontend: Frontend) -> None:
        self.engine = Engine(config, cost, on_finish=self._finished)
        self.frontend = frontend
        self.finished: list[Request] = []
        self._nodes: dict[Hashable, Node] = {}

    def cached_tokens(self, turn: Turn) -> int:
        """Tokens of the prompt that a lookup would find now, in whole blocks."""
        size, found = self.engine.config.block_size, 0
        for name, tokens in turn.prompt:
            node = self._nodes.get(name)
            cached = min(node.cached_blocks, tokens // size) if node else 0
            found += cached * size
            if cached < tokens // size:
                break
        return found

    def send(self, number: int, turn: Turn, at_s: float) -> tuple[Request, float]:
        """Queue a turn; returns its request and when that reaches the engine."""
        path = [(self._nodes.setdefault(name, Node()), tokens) for name, tokens in turn.prompt]
        request = Request(number, path, turn.output_tokens, at_s)
        engine_s = self.frontend.ready_s(at_s, request.prompt_tokens, token_ids=turn.token_ids)
        self.engine.add(request, engine_s)
        return request, engine_s

    def _finished(self, request: Request, now_s: float) -> None:
        del now_s
        self.finished.append(request)


Route = Callable[[int, Turn, Sequence[Replica]], int]


def by_session(session: int, turn: Turn, replicas: Sequence[Replica]) -> int:
    """Each session stays on one replica, sessions spread evenly."""
    del turn
    return session % len(replicas)


@dataclass(slots=True)
class _Session:
    number: int
    turns: Iterator[Turn]
    pending: Turn | None = None
    turn_index: int = -1


class Offline:
    """Replicas, the sessions on them, and what came of it.

    `route(session, turn, replicas)` picks the replica of each turn. Deterministic: of events at
    one time those of clients come first, then in the order they were made.
    """

    def __init__(self, replicas: Sequence[Replica], route: Route = by_session) -> None:
        self.replicas = replicas
        self.results: list[TurnResult] = []
        self.now_s = 0.0
        self._route = route
        self._events: list[tuple[float, int, int, _Session | int]] = []
        self._open: dict[Request, tuple[_Session, int, float, float]] = {}
        self._wakes: dict[int, float] = {}  # the valid wake of each busy replica
        self._sessions = 0
        self._sent = 0
        self._serial = 0

    def add_session(self, turns: Iterator[Turn], start_s: float) -> int:
        """A session whose first turn is sent at `start_s`; returns its number."""
        session = _Session(self._sessions, turns)
        self._sessions += 1
        self._next_turn(session, start_s)
        return session.number

    def run(self, until_s: float = math.inf) -> list[TurnResult]:
        """Play everything up to `until_s`; returns all turns completed so far."""
        events = self._events
        while events and events[0][0] <= until_s:
            at_s, _, _, subject = heapq.heappop(events)
            if isinstance(subject, int):
                if self._wakes.get(subject) != at_s:
                    continue
                self._wake(subject, at_s)
            else:
                self._send(subject, at_s)
            self.now_s = at_s
        return self.results

    def unfinished(self) -> list[tuple[int, int, float]]:
        """(session, turn index, sent at s) of the turns under way, oldest first."""
        open_turns = [
            (session.number, session.turn_index, sent_s)
            for session, _, sent_s, _ in self._open.values()
        ]
        return sorted(open_turns, key=lambda turn: turn[2])

    def _push(self, at_s: float, subject: _Session | int) -> None:
        self._serial += 1
        priority = int(isinstance(subject, int))
        heapq.heappush(self._events, (at_s, priority, self._serial, subject))

    def _next_turn(self, session: _Session, at_s: float) -> None:
        session.pending = next(session.turns, None)
        session.turn_index += 1
        if session.pending is not None:
            self._push(at_s, session)

    def _send(self, session: _Session, at_s: float) -> None:
        turn = session.pending
        if turn is None:
            raise AssertionError("a session without a turn is never queued")
        replica = self._route(session.number, turn, self.replicas)
        request, engine_s = self.replicas[replica].send(self._sent, turn, at_s)
        self._sent += 1
        self._open[request] = (session, replica, at_s, engine_s)
        self._reschedule(replica)

    def _wake(self, replica: int, at_s: float) -> None:
        self.replicas[replica].engine.run_until(at_s)
        self._reschedule(replica)
        finished = self.replicas[replica].finished
        for request in finished:
            session, _, sent_s, engine_s = self._open.pop(request)
            turn = session.pending
            self.results.append(
                TurnResult(session.number, session.turn_index, replica, sent_s, engine_s, request)
            )
            self._next_turn(session, at_s + (turn.think_s if turn else 0.0))
        finished.clear()

    def _reschedule(self, replica: int) -> None:
        wake_s = self.replicas[replica].engine.next_wake_s()
        if wake_s is None:
            self._wakes.pop(replica, None)
        elif self._wakes.get(replica) != wake_s:
            self._wakes[replica] = wake_s
            self._push(wake_s, replica)


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError("the request has no such time yet")
    return value
