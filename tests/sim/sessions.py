"""Sessions of a scenario against the engine core, on the virtual clock: no server, no waiting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import orjson

from agentload.experiment.server import command_line
from agentload.scenario import Scenario
from agentload.sim.core.offline import Offline, Replica, TurnResult
from agentload.sim.core.offline import Turn as OfflineTurn
from agentload.sim.core.request import Request
from agentload.sim.server import settings, tokens
from agentload.sim.server.prefix import PrefixTree
from agentload.workload.arrival import interference_starts
from agentload.workload.calibration import calibrate
from agentload.workload.content import Corpus
from agentload.workload.plan import hit_ratio
from agentload.workload.session import Session
from agentload.workload.turn import Message, Turn

NEXT_SESSION = 1_000_000
PREFIX_TOKENS = 15_000  # that all sessions of the shipped scenarios share
BETWEEN_STARTS_S = 10.0  # a cold prefill of 105K tokens takes seven


@dataclass(frozen=True, slots=True)
class TextTurn(OfflineTurn):
    """A planned turn with the words of its whole prompt."""

    words: bytes = b""
    plan: Turn | None = None


class TextReplica(Replica):
    """Finds the blocks that prompts share as the embedded server does: by their text."""

    def __init__(self, flags: Mapping[str, bool | int | float | str]) -> None:
        found = settings.read(command_line(flags), {})
        super().__init__(found.engine, found.cost_file.step_cost(), found.cost_file.make_frontend())
        self.sent: dict[Request, Turn] = {}
        self._tree = PrefixTree(self.engine.split_node, found.engine.num_blocks)

    def send(self, number: int, turn: OfflineTurn, at_s: float) -> tuple[Request, float]:
        assert isinstance(turn, TextTurn)
        assert turn.plan is not None
        request = Request(number, self._tree.place(turn.words, b""), turn.output_tokens, at_s)
        engine_s = self.frontend.ready_s(at_s, request.prompt_tokens)
        self.engine.add(request, engine_s)
        self.sent[request] = turn.plan
        return request, engine_s


@dataclass
class Outcome:
    """What a run on the virtual clock came to."""

    replica: TextReplica
    results: list[TurnResult]

    def planned(self) -> list[Turn]:
        """The turns that completed, but for the first ones of sessions and what interferes."""
        done = (self.replica.sent[result.request] for result in self.results)
        return [turn for turn in done if turn.turn_index > 0]

    def planned_hit_ratio(self) -> float:
        ratio = hit_ratio(self.planned(), self.replica.engine.config.block_size)
        assert ratio is not None
        return ratio

    def hit_ratio(self) -> float:
        """Cached / prompt tokens of the same turns, by the engine."""
        requests = [r.request for r in self.results if self.replica.sent[r.request].turn_index > 0]
        cached = sum(request.cached_tokens or 0 for request in requests)
        return cached / sum(request.prompt_tokens for request in requests)

    def kv_pressure(self, users: int) -> float:
        """Tokens that the users' sessions hold, by the mean of their turns / tokens that fit."""
        turns, shared = self.planned(), PREFIX_TOKENS
        held = sum(turn.planned_prompt_tokens + turn.output_tokens for turn in turns) / len(turns)
        config = self.replica.engine.config
        return (users * (held - shared) + shared) / (config.usable_blocks * config.block_size)

    def longest_gap_s(self) -> float:
        """Between two tokens of one answer, true to half a percent."""
        gap_s = self.replica.engine.itl.quantile(1.0)
        assert gap_s is not None
        return gap_s


def play(
    scenario: Scenario,
    flags: Mapping[str, bool | int | float | str],
    corpus: Corpus,
    seconds: float,
) -> Outcome:
    """The users of the first stage, each with one session after the other, and what interferes.

    The stage lasts all the `seconds`: those of the file are meant for a server at its own speed.
    """
    stage = scenario.stages[0].model_copy(update={"duration_s": seconds})
    scenario = scenario.model_copy(update={"stages": (stage,)})
    replica = TextReplica({k: v for k, v in flags.items() if k != "speed"})
    world = Offline([replica])
    made = Sessions(scenario, corpus, replica.engine.config.max_model_len)
    users = scenario.stages[0].users
    for user in range(users):
        world.add_session(made.of_user(user), BETWEEN_STARTS_S * user)
    for start in interference_starts(scenario):
        world.add_session(made.one_shot(start.index), BETWEEN_STARTS_S * users + start.at_s)
    return Outcome(replica, world.run(seconds))


class Sessions:
    """Makes the turns of a scenario's sessions, with the prompts as the server has them."""

    def __init__(self, scenario: Scenario, corpus: Corpus, max_model_len: int) -> None:
        measured = calibrate(scenario, corpus, max_model_len, _count)
        assert measured is not None
        self._scenario = scenario
        self._text = (corpus, measured, max_model_len)

    def of_user(self, user: int) -> Iterator[TextTurn]:
        index = user
        while True:
            yield from _turns(Session(self._scenario, index, *self._text))
            index += NEXT_SESSION

    def one_shot(self, number: int) -> Iterator[TextTurn]:
        yield from _turns(Session.one_shot(self._scenario, number, *self._text))


def _turns(session: Session) -> Iterator[TextTurn]:
    """The answers are canned, so a turn can be answered before it is sent; its successor's wait
    has to be known by then."""
    history: list[dict[str, str]] = []
    turn = session.next_turn()
    while turn is not None:
        del history[turn.keep_messages :]
        history += map(_chat, turn.append)
        words = tokens.encode_chat(history, None)
        answer = session.completed(
            turn, prompt_tokens=tokens.count(words), output_tokens=turn.output_tokens, text=None
        )
        history += map(_chat, answer)
        following = session.next_turn()
        think_s = 0.0 if following is None else following.wait_s
        yield TextTurn((), turn.output_tokens, think_s, words=words, plan=turn)
        turn = following


def _chat(message: Message) -> dict[str, str]:
    content = orjson.loads(b'"' + b"".join(map(bytes, message.pieces)) + b'"')
    return {"role": message.role, "content": content}


def _count(pieces: list[bytes]) -> int:
    return tokens.count(tokens.encode_text(orjson.loads(b'"' + b"".join(pieces) + b'"')))
