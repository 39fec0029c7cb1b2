"""The strict model of a scenario file."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from agentload.scenario.distributions import Distribution, Strict
from agentload.scenario.running import (
    Arrivals,
    Deadlines,
    Interference,
    Request,
    Slo,
    Stage,
    Stalls,
    Stickiness,
    Stop,
    WarmUp,
)

Share = Annotated[float, Field(ge=0, le=1)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)]
ContentKind = Literal["code", "view", "diff", "listing", "grep", "log", "json", "prose", "unbroken"]
TokenizerName = Literal["server", "cl100k_base", "o200k_base", "o200k_harmony", "llama3", "qwen3"]
TurnClassName = Literal["cold", "tool", "user", "child", "rebuild"]


def _at_least(low: float, what: str) -> AfterValidator:
    def check(dist: Distribution) -> Distribution:
        if dist.lowest() < low:
            raise ValueError(f"can draw {dist.lowest():g}; {what} has to be at least {low:g}")
        return dist

    return AfterValidator(check)


def _within(low: float, high: float) -> AfterValidator:
    def check(dist: Distribution) -> Distribution:
        if dist.lowest() < low or dist.highest() > high:
            raise ValueError(
                f"can draw {dist.lowest():g} to {dist.highest():g}; allowed is {low:g} to {high:g}"
            )
        return dist

    return AfterValidator(check)


Tokens = Annotated[Distribution, _at_least(1, "a number of tokens")]
Chars = Annotated[Distribution, _at_least(1, "a number of characters")]
Count = Annotated[Distribution, _at_least(0.5, "a count (rounded to a whole number)")]
Waits = Annotated[Distribution, _within(0, 86_400)]
ShareDraw = Annotated[Distribution, _within(0, 1)]


class Window(Strict):
    """The context window, and what a session does when the next turn would not fit."""

    tokens: int | None = Field(default=None, ge=256)  # None: the server's max_model_len alone
    end_share: float = Field(default=0.95, gt=0, le=1)  # a longer prompt ends the session
    at_limit: Literal["end", "compact", "lower_output"] = "end"


class Prefix(Strict):
    """What stands before every conversation: tool definitions, system text, repository text."""

    tools_tokens: int = Field(ge=0)
    system_tokens: int = Field(ge=1)
    groups: int = Field(default=1, ge=1, le=1000)
    group_tokens: int = Field(default=0, ge=0)
    group_zipf_alpha: float = Field(default=0.0, ge=0)
    dynamic: Literal["none", "head", "system_tail", "tools_permuted"] = "none"


class StartMix(Strict):
    """Shares of the start states among sessions; they add up to 1."""

    warm: Share = 0.0
    fresh: Share = 0.0
    resumed_cold: Share = 0.0

    @model_validator(mode="after")
    def _whole(self) -> Self:
        total = self.warm + self.fresh + self.resumed_cold
        if abs(total - 1.0) > 1e-9:
            raise ValueError(f"warm + fresh + resumed_cold is {total:g}; it has to be 1")
        return self


class Start(Strict):
    """What a session holds when it begins."""

    mix: StartMix
    warm_tokens: Tokens | None = None  # whole prompt of the first turn, prefix included
    fresh_tokens: Tokens | None = None  # after the prefix
    message_chars: Chars  # one tool result in the history a session starts with

    @model_validator(mode="after")
    def _drawn_where_used(self) -> Self:
        if self.warm_tokens is None and (self.mix.warm or self.mix.resumed_cold):
            raise ValueError("warm_tokens is missing, and mix has warm or resumed_cold sessions")
        if self.fresh_tokens is None and self.mix.fresh:
            raise ValueError("fresh_tokens is missing, and mix has fresh sessions")
        return self


class Reasoning(Strict):
    """Turns that think: their output is longer, and the thinking never joins the history."""

    share: Share
    output_factor: float = Field(ge=1)


class Turns(Strict):
    """What a turn adds, what it is answered with, and how turns make up a session."""

    append_chars: Chars
    output_tokens: Tokens
    calls_per_user_turn: Count | None = None  # None: tool turns to the end of the session
    user_turns_per_session: Count | None = None  # None: to the end of the window
    parallel_tool_calls: Count | None = None  # None: one
    assistant_history: Literal["canned", "live"] = "canned"
    reasoning: Reasoning | None = None


class Think(Strict):
    """Waits between a turn's completion and the next turn, in seconds."""

    tool: Waits
    human: Waits | None = None  # None: user turns wait as tool turns do


class Content(Strict):
    """What the text is made of."""

    tool_results: dict[ContentKind, float]
    answers: dict[ContentKind, float]
    user_text: dict[ContentKind, float]
    non_ascii_share: Share = 0.0  # of the characters of every append
    cut: Literal["message", "inside_word"] = "message"

    @model_validator(mode="after")
    def _weights(self) -> Self:
        for name in ("tool_results", "answers", "user_text"):
            weights = getattr(self, name)
            if any(w < 0 for w in weights.values()) or sum(weights.values()) <= 0:
                raise ValueError(f"{name}: weights have to be 0 or more, with a sum above 0")
        return self


class PrefixBreaks(Strict):
    """Calls whose prompt leaves the earlier one before its end."""

    probability: Share  # per call
    keep_share: ShareDraw  # of the prompt, cut at a message
    rewind_share: (
        Share  # rewound (the rest is dropped); the others are edits (the rest is new text)
    )


class Compaction(Strict):
    """One summary call with the whole context, then a prompt rebuilt behind the shared prefix."""

    trigger_share: float = Field(gt=0, le=1)  # of the window
    summary_tokens: Tokens
    rebuild_tokens: Tokens  # the whole new prompt, prefix included


class Aborts(Strict):
    """User turns that the human interrupts while an answer streams."""

    probability: Share  # per user turn
    output_share: ShareDraw  # of the answer that has streamed by then
    stream_tokens_per_s: float = Field(gt=0)  # turns that share into seconds after the first token


class Subagents(Strict):
    """Children that a user turn starts, that run side by side, and that the parent waits for."""

    probability: Share  # per user turn
    fanout: Count
    prefix_tokens: int = Field(ge=1)  # the children's own, shared by all children
    start_tokens: Tokens  # whole prompt of a child's first turn
    calls: Count
    report_chars: Chars  # what each child adds to the parent's next turn


class Trace(Strict):
    """A session file to replay in the place of drawn sessions."""

    file: str = Field(min_length=1)  # relative to the scenario file
    replay: Literal["think", "absolute"] = "think"
    max_wait_s: float = Field(default=300.0, ge=0)


class Scenario(Strict):
    """A scenario file. Sizes in tokens are before `context_scale`."""

    name: Name
    description: str = Field(min_length=1)
    seed: int = Field(ge=0, lt=2**63)
    context_scale: float = Field(default=1.0, gt=0, le=100)
    pace: float = Field(default=1.0, gt=0, le=10_000)  # the times below are 1/pace of real time
    chars_per_token: Literal["calibrate"] | Annotated[float, Field(gt=0.2, le=20)] = "calibrate"
    wire: Literal["chat", "completions", "token_ids"] = "chat"
    tokenizer: TokenizerName | None = None  # of wire token_ids; None: the server's
    window: Window = Window()
    prefix: Prefix
    start: Start
    turns: Turns
    waits: Think
    content: Content
    prefix_breaks: PrefixBreaks | None = None
    compaction: Compaction | None = None
    aborts: Aborts | None = None
    subagents: Subagents | None = None
    trace: Trace | None = None
    arrivals: Arrivals = Arrivals()
    interference: Interference | None = None
    warm_up: WarmUp = WarmUp()
    stages: tuple[Stage, ...] = Field(strict=False)
    stop: Stop = Stop()
    slos: dict[TurnClassName, Slo] = Field(default_factory=dict)
    stalls: Stalls = Stalls()
    request: Request = Request()
    deadlines: Deadlines = Deadlines()
    stickiness: Stickiness = Stickiness()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._start_fits()
        if self.window.at_limit == "compact" and self.compaction is None:
            raise ValueError("window.at_limit is compact, and there is no compaction section")
        self._wire_fits()
        if self.prefix.dynamic == "tools_permuted" and self.prefix.tools_tokens == 0:
            raise ValueError("prefix.dynamic tools_permuted needs prefix.tools_tokens above 0")
        if not self.stages:
            raise ValueError("stages: at least one is needed")
        self.arrivals.check_stages(self.stages)
        names = [stage.name for stage in self.stages]
        if len(set(names)) != len(names):
            raise ValueError("stages: every name may stand once only")
        return self

    def _wire_fits(self) -> None:
        if self.content.cut == "inside_word" and self.wire == "chat":
            raise ValueError(
                "content.cut inside_word needs wire completions or token_ids:"
                " chat messages end at a special token, which no cut can move"
            )
        if self.tokenizer is not None and self.wire != "token_ids":
            raise ValueError("tokenizer needs wire token_ids: no other has ids to make")

    def _start_fits(self) -> None:
        if self.window.tokens is None or self.start.warm_tokens is None:
            return
        most = self.window.tokens * self.window.end_share
        highest = self.start.warm_tokens.highest()
        if math.isfinite(highest) and highest > most:
            raise ValueError(
                f"start.warm_tokens goes up to {highest:,.0f}, and window.tokens x"
                f" window.end_share lets a prompt have {most:,.0f}"
            )

    @property
    def sessions_arrive(self) -> bool:
        """Whether sessions start by themselves: by a rate, or at the instants of a trace."""
        absolute = self.trace is not None and self.trace.replay == "absolute"
        return absolute or self.arrivals.population == "open"

    def resolved(self) -> dict[str, Any]:
        """Every setting with its value, defaults included, as JSON holds it."""
        return self.model_dump(mode="json")

    @property
    def starting_chars_per_token(self) -> float:
        """The ratio to plan with until one has been measured."""
        return 4.0 if self.chars_per_token == "calibrate" else self.chars_per_token
