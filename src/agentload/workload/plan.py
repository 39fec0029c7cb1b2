"""The plan of sessions, worked out without a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from agentload.workload.session import Session
from agentload.workload.turn import Turn


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """A session as it goes when every turn succeeds; children follow the turn that starts them."""

    session_id: str
    parent_session_id: str | None
    start_state: str
    turns: tuple[Turn, ...]
    children: tuple[SessionPlan, ...]
    cut_short: bool  # more turns would have followed

    def all_turns(self) -> Iterator[Turn]:
        """The turns of the session, then those of its children."""
        yield from self.turns
        for child in self.children:
            yield from child.all_turns()

    def duration_s(self, ttft_s: float, tokens_per_s: float) -> float:
        """Seconds from the first send to the last byte, if every turn is answered like this.

        A parent waits for the slowest of the children of a turn.
        """
        own = sum(t.wait_s + ttft_s + t.output_tokens / tokens_per_s for t in self.turns)
        joins: dict[str, float] = {}
        for child in self.children:
            spawned_by = child.session_id.rpartition(".")[0]
            seconds = child.duration_s(ttft_s, tokens_per_s)
            joins[spawned_by] = max(joins.get(spawned_by, 0.0), seconds)
        return own + sum(joins.values())


def plan_session(session: Session, max_turns: int) -> SessionPlan:
    """Go through up to `max_turns` turns of a session, with the answers as planned."""
    turns: list[Turn] = []
    children: list[SessionPlan] = []
    turn = session.next_turn()
    while turn is not None and len(turns) < max_turns:
        turns.append(turn)
        children.extend(plan_session(session.child(plan), max_turns) for plan in turn.spawns)
        session.completed(turn, prompt_tokens=None, output_tokens=None, text=None)
        turn = session.next_turn()
    return SessionPlan(
        session.session_id,
        session.parent_session_id,
        session.start_state,
        tuple(turns),
        tuple(children),
        turn is not None,
    )


def cached_tokens(prompt_tokens: int, shared_tokens: int, block_size: int) -> int:
    """Prompt tokens that vLLM's prefix cache gives when it holds `shared_tokens` of them.

    Whole blocks only, and the last token of a prompt is always computed.
    """
    return min(shared_tokens, prompt_tokens - 1) // block_size * block_size


def hit_ratio(turns: Iterable[Turn], block_size: int) -> float | None:
    """Cached / prompt tokens of turns before any eviction; None without turns."""
    prompt = cached = 0
    for turn in turns:
        prompt += turn.planned_prompt_tokens
        cached += cached_tokens(turn.planned_prompt_tokens, turn.planned_prefix_tokens, block_size)
    return cached / prompt if prompt else None


def live_tokens(turn: Turn) -> int:
    """KV tokens a session holds at the end of a turn."""
    return turn.planned_prompt_tokens + turn.output_tokens


def kv_pressure(plans: list[SessionPlan], users: int, blocks: int, block_size: int) -> float | None:
    """Tokens that `users` sessions hold at once / tokens the KV cache holds; None without plans.

    A session counts with the mean over its turns; prefixes that sessions share are counted once.
    """
    held = [
        sum(map(live_tokens, plan.turns)) / len(plan.turns) - plan.turns[0].planned_prefix_tokens
        for plan in plans
        if plan.turns
    ]
    if not held:
        return None
    shared = max(plan.turns[0].planned_prefix_tokens for plan in plans if plan.turns)
    return (users * sum(held) / len(held) + shared) / (blocks * block_size)
