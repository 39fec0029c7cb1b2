"""The part of a scenario that says how a run goes, as against what its sessions are."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from agentload.scenario.distributions import Distribution, Strict

StageName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
HeaderName = Annotated[str, StringConstraints(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}$")]

# Fields the client owns: a scenario that set them would change what is measured.
OWNED_FIELDS = frozenset(
    {"messages", "prompt", "model", "stream", "stream_options", "max_tokens"}
    | {"max_completion_tokens", "min_tokens", "ignore_eos", "temperature", "n"}
)
SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key"})


class Stage(Strict):
    """One step of the load: to `users` over `ramp_s`, then held; all within `duration_s`."""

    name: StageName
    duration_s: float = Field(gt=0)
    users: int = Field(ge=0, le=100_000)
    ramp_s: float = Field(default=0.0, ge=0)
    sessions_per_s: float | None = Field(default=None, gt=0)  # open arrivals only
    measured: bool = True

    @model_validator(mode="after")
    def _ramp_within(self) -> Self:
        if self.ramp_s > self.duration_s:
            raise ValueError(f"ramp_s {self.ramp_s:g} is above duration_s {self.duration_s:g}")
        return self


class Arrivals(Strict):
    """Where new sessions come from.

    `closed`: every user holds one session and takes a new one when it ends. `open`: sessions start
    at `sessions_per_s` of the stage with Gamma gaps of this coefficient of variation (1 = Poisson);
    `users` of the stage is then the most that run at once, and starts beyond it are counted late.
    """

    population: Literal["closed", "open"] = "closed"
    cv: float = Field(default=1.0, gt=0, le=100)

    def check_stages(self, stages: tuple[Stage, ...]) -> None:
        """Every stage has a rate exactly when arrivals are open, else ValueError."""
        for stage in stages:
            if (self.population == "open") != (stage.sessions_per_s is not None):
                raise ValueError(
                    f"stages {stage.name}: sessions_per_s is needed when arrivals.population is"
                    f" open, and not allowed when it is closed"
                )


class Interference(Strict):
    """One-turn sessions with a prompt no cache knows, sent beside the others."""

    every_s: float = Field(gt=0)
    burst: int = Field(ge=1, le=1000)  # this many at the same instant
    prompt_tokens: Distribution
    output_tokens: Distribution


class WarmUp(Strict):
    """What comes before measuring. Its turns are recorded with the stage name `warm_up`."""

    turns_per_session: int = Field(default=1, ge=0)  # of the sessions that start a run warm
    output_tokens: int | None = Field(default=None, ge=1)  # of those turns; None: as drawn
    max_s: float = Field(default=600.0, gt=0)


class Stop(Strict):
    """What ends a run before its stages do; the first that holds."""

    after_s: float | None = Field(default=None, gt=0)
    after_turns: int | None = Field(default=None, ge=1)
    ttft_p99_interval: float | None = Field(default=None, gt=0, lt=1)  # half width / P99, 95 %
    not_before_s: float = Field(default=0.0, ge=0)  # for the interval rule


class Slo(Strict):
    """Limits of one turn class in seconds; a turn is good when it meets all that are given."""

    ttft_s: float | None = Field(default=None, gt=0)
    tpot_s: float | None = Field(default=None, gt=0)
    itl_p99_s: float | None = Field(default=None, gt=0)
    e2e_s: float | None = Field(default=None, gt=0)


class Stalls(Strict):
    """A gap between chunks is a stall above both `times_median` x the turn's median and `min_s`."""

    times_median: float = Field(default=5.0, gt=1)
    min_s: float = Field(default=0.25, gt=0)


def _no_owned_field(extra: dict[str, Any]) -> dict[str, Any]:
    taken = sorted(OWNED_FIELDS & set(extra))
    if taken:
        raise ValueError(f"{', '.join(taken)}: set by the client, not allowed here")
    return extra


class Request(Strict):
    """Parameters of every request."""

    temperature: float | None = Field(default=None, ge=0, le=2)
    exact_output: bool = True  # ignore_eos and min_tokens, so that every arm decodes as much
    extra: Annotated[dict[str, Any], AfterValidator(_no_owned_field)] = Field(default_factory=dict)


class Deadlines(Strict):
    """How long each step of a request may take, in seconds."""

    connect_s: float = Field(default=10.0, gt=0)
    first_token_s: float = Field(default=300.0, gt=0)
    between_chunks_s: float = Field(default=120.0, gt=0)
    total_s: float = Field(default=1800.0, gt=0)


def _usable_headers(headers: dict[str, str]) -> dict[str, str]:
    for name, text in headers.items():
        if name.lower() in SECRET_HEADERS:
            raise ValueError(f"{name}: secrets do not belong in a scenario file")
        rest = text.replace("{session_id}", "").replace("{parent_session_id}", "")
        if re.search(r"[{}]", rest) or not text.isprintable() or not text.isascii():
            raise ValueError(
                f"{name}: allowed is printable ASCII with {{session_id}} or {{parent_session_id}}"
            )
    return headers


class Stickiness(Strict):
    """Headers a router can read to send a session's turns to the same replica."""

    headers: Annotated[dict[HeaderName, str], AfterValidator(_usable_headers)] = Field(
        default_factory=dict
    )

    def headers_for(self, session_id: str, parent_session_id: str | None) -> dict[str, str]:
        """The headers of one session; a session without parent is its own parent here."""
        parent = parent_session_id or session_id
        return {
            name: text.replace("{session_id}", session_id).replace("{parent_session_id}", parent)
            for name, text in self.headers.items()
        }
