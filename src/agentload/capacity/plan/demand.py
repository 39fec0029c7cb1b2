"""Sessions as token counts, for the planner: what each turn asks, shares and waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from agentload.capacity.paths import Reusing, paths
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
    """The turns of a session from `first` on as paths of the prefix tree; `name` tells this
    session from all others."""
    turns = session.turns[first:]
    for number, prompt in enumerate(_prompts(session, first, block_size)):
        turn = turns[number]
        own = tuple(
            ((name, *part[1:]) if part[0] is _OWN else part, tokens) for part, tokens in prompt
        )
        wait_s = turns[number + 1].wait_s if number + 1 < len(turns) else 0.0
        yield turn, CoreTurn(own, turn.output_tokens, wait_s)


_OWN = object()  # in the place of a session's name, so that its paths are worked out once


@lru_cache(maxsize=10_000)
def _prompts(
    session: PlannedSession, first: int, block_size: int
) -> list[tuple[tuple[Any, int], ...]]:
    """The prompts of the turns from `first` on, which finds nothing but the front in the cache."""
    reused = [session.shared_tokens, *(turn.prefix_tokens for turn in session.turns[first + 1 :])]
    turns = [
        Reusing(turn.prompt_tokens, turn.output_tokens, tokens)
        for turn, tokens in zip(session.turns[first:], reused, strict=True)
    ]
    group = ("front", session.group)
    found = paths(_OWN, turns, session.shared_tokens, block_size, group)
    return [turn.prompt for turn in found]
