"""Sessions as token counts, for the planner: what each turn asks, shares and waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise

from agentload.scenario.model import Scenario
from agentload.sim.core import Turn as CoreTurn
from agentload.workload.content import Corpus
from agentload.workload.origin import origin_of
from agentload.workload.session import Session

MOST_TURNS = 400  # of one session; endless ones are cut here


class DemandError(ValueError):
    """Sessions that cannot be planned with; the text says which and why."""


@dataclass(frozen=True, slots=True)
class PlannedTurn:
    """One request in tokens. `prefix_tokens` of the prompt equal an earlier prompt's front.

    `wait_s` lies between the completion of the turn before and this one.
    """

    turn_class: str
    prompt_tokens: int
    prefix_tokens: int
    output_tokens: int
    wait_s: float


@dataclass(frozen=True, slots=True, eq=False)
class PlannedSession:
    """The turns of a session; the first `shared_tokens` of its prompts are those of its group.

    Two sessions are equal only when they are the same one: simulations look their paths up.
    """

    group: Hashable
    shared_tokens: int
    turns: tuple[PlannedTurn, ...]


@dataclass(frozen=True, slots=True)
class Demand:
    """Sessions to plan with. `left_out` says in words what of the workload they do not hold."""

    name: str
    sessions: tuple[PlannedSession, ...]
    left_out: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not any(session.turns for session in self.sessions):
            raise DemandError(f"{self.name}: there is no turn to plan with")

    @property
    def turns(self) -> list[PlannedTurn]:
        return [turn for session in self.sessions for turn in session.turns]

    @property
    def longest_tokens(self) -> int:
        """Prompt and answer of the largest turn."""
        return max(turn.prompt_tokens + turn.output_tokens for turn in self.turns)

    @property
    def held_tokens(self) -> float:
        """Mean tokens that a session's context holds, its shared front left out."""
        held = [
            turn.prompt_tokens + turn.output_tokens - session.shared_tokens
            for session in self.sessions
            for turn in session.turns
        ]
        return sum(held) / len(held)

    @property
    def shared_tokens(self) -> int:
        """Tokens that the sessions' groups hold in common, each group once."""
        groups = {session.group: session.shared_tokens for session in self.sessions}
        return sum(groups.values())


def of_scenario(
    scenario: Scenario, count: int, *, chars_per_token: float, max_model_len: int | None
) -> Demand:
    """The first `count` sessions of a scenario as they go when every turn is answered as planned.

    Raises DemandError for a scenario whose sessions come from a trace: give a recorded run.
    """
    if scenario.trace is not None:
        raise DemandError(
            f"{scenario.name}: its sessions come from a trace; plan with a run of it (--run)"
        )
    corpus = _corpus()
    rows = []
    for index in range(count):
        session = Session(scenario, index, corpus, chars_per_token, max_model_len)
        rows.append((origin_of(scenario, index).group, _turns(session)))
    left_out = []
    if scenario.subagents is not None:
        left_out.append("subagents (their turns are not in the plan)")
    if scenario.interference is not None:
        left_out.append("the interfering prompts of the scenario")
    if scenario.aborts is not None:
        left_out.append("interruptions (every answer streams to its end)")
    return Demand(scenario.name, _with_fronts(rows), tuple(left_out))


@cache
def _corpus() -> Corpus:
    """The texts that sessions are drawn from; making them takes seconds."""
    return Corpus()


def _turns(session: Session) -> tuple[PlannedTurn, ...]:
    turns: list[PlannedTurn] = []
    turn = session.next_turn()
    while turn is not None and len(turns) < MOST_TURNS:
        turns.append(
            PlannedTurn(
                turn.turn_class,
                turn.planned_prompt_tokens,
                turn.planned_prefix_tokens,
                turn.output_tokens,
                turn.wait_s,
            )
        )
        session.completed(turn, prompt_tokens=None, output_tokens=None, text=None)
        turn = session.next_turn()
    return tuple(turns)


def _with_fronts(
    rows: Sequence[tuple[Hashable, tuple[PlannedTurn, ...]]],
) -> tuple[PlannedSession, ...]:
    """The front of a group is what most of its sessions share with an earlier one; the session
    that opens the group shares nothing yet."""
    seen: dict[Hashable, Counter[int]] = {}
    for group, turns in rows:
        if turns and turns[0].prefix_tokens:
            seen.setdefault(group, Counter())[turns[0].prefix_tokens] += 1
    fronts = {group: counter.most_common(1)[0][0] for group, counter in seen.items()}
    return tuple(
        PlannedSession(group, min(fronts.get(group, 0), turns[0].prompt_tokens - 1), turns)
        for group, turns in rows
        if turns
    )


def core_turns(
    session: PlannedSession, name: Hashable, block_size: int, first: int = 0
) -> Iterator[tuple[PlannedTurn, CoreTurn]]:
    """The turns of a session from `first` on as paths of the prefix tree.

    `name` tells this session from all others. Prompts share whole blocks only. The text of a
    session is cut wherever a later turn leaves it, so that equal names are equal text.
    """
    turns = session.turns[first:]
    paths = _paths(session, first, block_size)
    for number, turn in enumerate(turns):
        prompt = tuple(
            (part if part[0] == "front" else (name, *part), tokens)
            for part, tokens in paths[number]
        )
        after = turns[number + 1].wait_s if number + 1 < len(turns) else 0.0
        yield turn, CoreTurn(prompt, turn.output_tokens, after)


Part = tuple[Hashable, ...]


@lru_cache(maxsize=10_000)
def _paths(session: PlannedSession, first: int, size: int) -> list[list[tuple[Part, int]]]:
    """For each turn from `first` on its parts (name, tokens); all but the last are whole blocks.

    First every turn's text is written as intervals of the texts that turns added; then those texts
    are cut at every place where some prompt leaves them. A prompt that leaves its group's front
    inside it keeps none of it: what others share of it would have to be cut at the same place.
    """
    written: list[list[tuple[Part, int, int]]] = []  # (text, from, to), in tokens of that text
    cuts: dict[Part, set[int]] = {}
    before: list[tuple[Part, int, int]] = []
    turns = session.turns[first:]
    front = min(session.shared_tokens, turns[0].prompt_tokens - 1) // size * size
    if front:
        before = [(("front", session.group, front), 0, front)]
    for number, turn in enumerate(turns):
        keep = _keep(turn, number, front, size)
        kept = _kept(before, min(keep, turn.prompt_tokens - 1) // size * size)
        length = sum(high - low for _, low, high in kept)
        body = (turn.prompt_tokens - length) // size * size
        text = [*kept, (("turn", number), 0, body)] if body else kept
        for part, low, high in text:
            cuts.setdefault(part, set()).update((low, high))
        written.append(text)
        before = text
    tails = [turn.prompt_tokens for turn in turns]
    return [
        _cut(text, cuts, number, tails[number] - sum(h - low for _, low, h in text))
        for number, text in enumerate(written)
    ]


def _keep(turn: PlannedTurn, number: int, front: int, size: int) -> int:
    """Tokens of the text before that the turn's prompt begins with."""
    if number and turn.prefix_tokens + size < front:
        return 0
    return max(front, turn.prefix_tokens) if number else front


def _kept(text: list[tuple[Part, int, int]], tokens: int) -> list[tuple[Part, int, int]]:
    """The front of a text, up to `tokens`."""
    kept = []
    for part, low, high in text:
        if tokens <= 0:
            break
        high = min(high, low + tokens)
        tokens -= high - low
        kept.append((part, low, high))
    return kept


def _cut(
    text: list[tuple[Part, int, int]], cuts: dict[Part, set[int]], number: int, rest: int
) -> list[tuple[Part, int]]:
    """Named pieces between cuts, then what is left of the prompt, where the answer goes on."""
    pieces: list[tuple[Part, int]] = []
    for part, low, high in text:
        edges = sorted(edge for edge in cuts[part] if low <= edge <= high)
        for start, end in pairwise(edges):
            piece: Part = part if part[0] == "front" else (*part, start)
            pieces.append((piece, end - start))
    return [*pieces, (("rest", number), rest)]
