"""The text in front of every conversation of a run."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from agentload.scenario.distributions import pick
from agentload.scenario.model import Scenario
from agentload.workload.content import Corpus
from agentload.workload.text import Text, escaped
from agentload.workload.tokens import Amounts, Ratios

Pieces = tuple[bytes | memoryview, ...]


@dataclass(frozen=True, slots=True)
class Front:
    """A system message: its pieces, its size, the tokens of it that no turn changes."""

    pieces: Pieces
    amounts: Amounts
    stable_tokens: float


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tool definitions, then system text, then the repository text of the session's group."""

    mark: bytes  # tells one run or arm from another; empty: none
    tools: tuple[memoryview, ...]
    tools_chars: int
    system: Pieces
    system_chars: int
    groups: tuple[Pieces, ...]
    group_chars: int
    ratios: Ratios

    def stable(self, group: int) -> Front:
        """The system message as every turn of the group has it."""
        pieces = (self.mark, *self.tools, *self.system, *self.groups[group])
        return self._front(pieces, 0, None)

    def with_head(self, group: int, nonce: str) -> Front:
        """A changing line in front of everything."""
        line = escaped(f"Request {nonce}\n")
        pieces = (line, self.mark, *self.tools, *self.system, *self.groups[group])
        return self._front(pieces, len(nonce) + 9, 0.0)

    def with_tail(self, group: int, nonce: str) -> Front:
        """A changing line at the end of the system message."""
        line = escaped(f"\nRequest {nonce}")
        pieces = (self.mark, *self.tools, *self.system, *self.groups[group], line)
        return self._front(pieces, len(nonce) + 9, self.stable(group).stable_tokens)

    def permuted(self, group: int, rng: Random) -> Front:
        """The tool definitions in another order, so that nothing behind them can be reused."""
        order = list(range(len(self.tools)))
        rng.shuffle(order)
        tools = [self.tools[i] for i in order]
        pieces = (self.mark, *tools, *self.system, *self.groups[group])
        return self._front(pieces, 0, 0.0)

    def _front(self, pieces: Pieces, extra_chars: int, stable: float | None) -> Front:
        prose = self.system_chars + self.group_chars + extra_chars + len(self.mark)
        amounts = (("json", self.tools_chars), ("prose", prose))
        tokens = self.ratios.tokens(amounts) if stable is None else stable
        return Front(tuple(p for p in pieces if p), amounts, tokens)


def make_prefix(scenario: Scenario, corpus: Corpus, ratios: Ratios, run_salt: str) -> Prefix:
    """The prefix of all sessions of a run; the seed plays no part in it."""
    settings, scale = scenario.prefix, scenario.context_scale
    json_chars = ratios.chars("json", settings.tools_tokens * scale) if settings.tools_tokens else 0
    tools, tools_chars = _whole_lines(corpus.text("json"), json_chars)
    # What whole tool definitions leave of their share becomes system text.
    left_tokens = ratios.tokens((("json", json_chars - tools_chars),))
    system_chars = ratios.chars("prose", settings.system_tokens * scale + left_tokens)
    prose = corpus.text("prose")
    group_chars = (
        ratios.chars("prose", settings.group_tokens * scale) if settings.group_tokens else 0
    )
    groups = tuple(
        prose.slices(prose.random_line(Random(f"group/{g}")), group_chars)
        for g in range(settings.groups)
    )
    mark = escaped(f"Run {run_salt}\n") if run_salt else b""
    return Prefix(
        mark, tools, tools_chars, prose.slices(0, system_chars), system_chars, groups, group_chars,
        ratios,
    )  # fmt: skip


def make_child_prefix(scenario: Scenario, corpus: Corpus, ratios: Ratios, run_salt: str) -> Prefix:
    """The system text of subagents, all different from the parents' from its first line on."""
    tokens = scenario.subagents.prefix_tokens if scenario.subagents else 1
    chars = ratios.chars("prose", tokens * scenario.context_scale)
    prose = corpus.text("prose")
    system = prose.slices(prose.random_line(Random("subagent")), chars)
    mark = escaped(f"Run {run_salt}\n") if run_salt else b""
    return Prefix(mark, (), 0, system, chars, ((),), 0, ratios)


def _whole_lines(text: Text, chars: int) -> tuple[tuple[memoryview, ...], int]:
    """Lines from the start of a text as long as they fit in `chars`, and their characters."""
    lines: list[memoryview] = []
    at = 0
    while (end := text.line_end(at)) <= min(chars, text.chars):
        lines.extend(text.slices(at, end - at))
        if end == text.chars:
            return tuple(lines), end
        at = end
    return tuple(lines), at


def group_of(scenario: Scenario, index: int) -> int:
    """The group of a session: Zipf over the groups, keyed by seed and index."""
    prefix = scenario.prefix
    if prefix.groups == 1:
        return 0
    weights = [(rank + 1) ** -prefix.group_zipf_alpha for rank in range(prefix.groups)]
    return pick(weights, Random(f"{scenario.seed}/{index}/group"))


def first_of_group(scenario: Scenario, index: int) -> bool:
    """Whether no session of a lower index belongs to the same group."""
    group = group_of(scenario, index)
    return all(group_of(scenario, i) != group for i in range(index))
