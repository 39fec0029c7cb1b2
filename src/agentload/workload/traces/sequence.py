"""Requests of a trace, put in a row as the calls of their sessions."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal

from agentload.workload.traces.fields import LineError
from agentload.workload.traces.reading import Report
from agentload.workload.traces.record import TraceCall
from agentload.workload.turn import TurnClass

Kind = Literal["tool", "human"]
_BREAK_SHARE = 0.9  # a call that keeps less than this of the prompt before is a rebuild


@dataclass(slots=True)
class _Before:
    """The call before, of one session."""

    call: int
    prompt_tokens: int
    output_tokens: int
    start_s: float | None
    end_s: float | None
    blocks: array[int] | None


@dataclass(frozen=True, slots=True)
class Request:
    """One request as a trace has it; None is what the trace does not say.

    `keep_tokens` counts from the start of the prompt; `blocks` are hashes of its whole blocks.
    `end_s` is the end of the answer; without it the wait runs from the start of the call before.
    """

    session: str
    prompt_tokens: int
    output_tokens: int
    kind: Kind | None = None
    keep_tokens: int | None = None
    blocks: list[int] | None = None
    block_size: int = 16
    start_s: float | None = None
    end_s: float | None = None
    wait_s: float | None = None
    parent: str | None = None
    parent_call: int | None = None


@dataclass(slots=True)
class Sequence:
    """The state of all sessions of a trace: of each its last call."""

    report: Report
    origin_s: float | None = None  # the first instant of the trace
    _before: dict[str, _Before] = field(default_factory=dict)

    def calls_of(self, session: str) -> int:
        """Calls of the session so far."""
        before = self._before.get(session)
        return 0 if before is None else before.call + 1

    def forget(self, session: str) -> None:
        """No further call of the session comes."""
        self._before.pop(session, None)

    def next(self, request: Request) -> TraceCall:
        """The request as its session's next call. LineError when it lies before the last one."""
        before = self._before.get(request.session)
        if before and None not in (before.start_s, request.start_s):
            assert before.start_s is not None
            assert request.start_s is not None
            if request.start_s < before.start_s:
                raise LineError(f"an earlier time than the call before of {request.session!r}")
        if self.origin_s is None:
            self.origin_s = request.start_s
        output_tokens = max(1, request.output_tokens)
        if request.output_tokens < 1:
            self.report.lose("an answer of no tokens is replayed as one of one token")
        keep = self._keep(request, before)
        call = TraceCall(
            session=request.session,
            call=0 if before is None else before.call + 1,
            turn_class=_class_of(request, before, keep),
            wait_kind="none" if before is None else (request.kind or "tool"),
            wait_s=self._wait_s(request, before),
            start_s=self._since_origin(request.start_s),
            keep_tokens=keep,
            append_tokens=request.prompt_tokens - keep,
            output_tokens=output_tokens,
            parent=request.parent,
            parent_call=request.parent_call,
        )
        self._remember(request, call)
        return call

    def _remember(self, request: Request, call: TraceCall) -> None:
        self.report.sessions += call.call == 0
        self.report.calls += 1
        self._before[request.session] = _Before(
            call.call,
            request.prompt_tokens,
            call.output_tokens,
            request.start_s,
            request.end_s,
            None if request.blocks is None else array("q", request.blocks),
        )

    def _since_origin(self, start_s: float | None) -> float | None:
        if start_s is None or self.origin_s is None:
            return None
        return max(0.0, start_s - self.origin_s)

    def _keep(self, request: Request, before: _Before | None) -> int:
        """Tokens in common with the prompt before and its answer."""
        if before is None:
            return 0
        rounding = 0
        keep = request.keep_tokens
        if keep is None and request.blocks is not None and before.blocks is not None:
            rounding = request.block_size
            keep = _common(request.blocks, before.blocks) * request.block_size
        if keep is None:
            self.report.lose("what a call keeps of the prompt before is not recorded, but assumed")
            keep = before.prompt_tokens if request.prompt_tokens > before.prompt_tokens else 0
        # The last block of a prompt is not hashed, so up to a block less than was kept is seen.
        if before.prompt_tokens - rounding <= keep < before.prompt_tokens:
            keep = before.prompt_tokens
        return min(keep, before.prompt_tokens + before.output_tokens, request.prompt_tokens)

    def _wait_s(self, request: Request, before: _Before | None) -> float | None:
        if request.wait_s is not None or before is None:
            return request.wait_s
        if request.start_s is None:
            return None
        if before.end_s is not None:
            return max(0.0, request.start_s - before.end_s)
        if before.start_s is None:
            return None
        self.report.lose("a wait also has the time of the answer before it, which is not recorded")
        return request.start_s - before.start_s


def _common(ids: list[int], before: array[int]) -> int:
    return next(
        (i for i, (a, b) in enumerate(zip(ids, before, strict=False)) if a != b),
        min(len(ids), len(before)),
    )


def _class_of(request: Request, before: _Before | None, keep: int) -> TurnClass:
    if request.parent is not None:
        return "child"
    if before is None:
        return "cold"
    if keep < _BREAK_SHARE * before.prompt_tokens:
        return "rebuild"
    return "user" if request.kind == "human" else "tool"
