"""One session on the wire: its body grows, its turns are sent, its attempts are recorded."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace

from agentload.client.errors import RequestFailure
from agentload.client.result import StreamResult
from agentload.client.transport import Client
from agentload.clock import NS_PER_S
from agentload.swarm.bodies import new_body, turn_params
from agentload.swarm.load_run import LoadRun
from agentload.workload.session import Session
from agentload.workload.turn import ChildPlan, Turn

RATE_LIMITED = "rate_limited"
RATE_LIMITED_ATTEMPTS = 10  # then the turn is given up as any other that failed
# Trying these again cannot help.
TOKENIZE_ERROR = "tokenize_error"  # the prompt's ids could not be had; nothing was sent
FINAL_ERRORS = frozenset({"auth", "model_not_found", "context_overflow", "not_a_stream"})
FAILED_WAIT_S = 1.0  # after a failure without Retry-After: a dead target is not hammered

Report = Callable[[Turn, StreamResult], None]


@dataclass(slots=True)
class Due:
    """An attempt that is to be sent, and when."""

    turn: Turn
    at_ns: int
    attempt: int = 1
    output_tokens: int | None = None  # instead of the turn's, in the warm-up


class Conversation:
    """Drives one session. `due` is what to send next; None when the session is over.

    `failed` says that the last attempt was an error.
    """

    def __init__(self, run: LoadRun, session: Session, client: Client, start_ns: int) -> None:
        self.session = session
        self.due: Due | None = None
        self.failed = False
        self._run = run
        self._client = client
        self._body = new_body(run.scenario, run.settings, run.spec.model, run.tokenizer(client))
        self._prepared: Due | None = None
        self._not_ready: RequestFailure | None = None
        self._headers = run.scenario.stickiness.headers_for(
            session.session_id, session.parent_session_id
        )
        self._next(start_ns)

    def prepare(self) -> None:
        """Put what is due into the body, ids included; blocks the calling greenlet.

        Meant for the time the agent thinks. What it takes beyond the instant the turn is due moves
        that instant: making ids is work of the client, and no lateness.
        """
        due = self.due
        if due is None or due is self._prepared:
            return
        now_ns = self._run.clock.now_ns
        if due.attempt == 1:
            self._body.truncate(due.turn.keep_messages)
            self._body.add(due.turn.append)
        self._prepared, self._not_ready = due, None
        begun_ns = now_ns()
        try:
            self._body.prepare()
        except RequestFailure as failure:
            self._not_ready = failure
        due.at_ns += max(0, now_ns() - max(begun_ns, due.at_ns))

    def send(self, report: Report) -> tuple[ChildPlan, ...]:
        """Send what is due and record it; the children that its completion spawns.

        A killed greenlet leaves the record of an aborted attempt behind and dies on.
        """
        due = self.due
        if due is None:
            raise RuntimeError(f"{self.session.session_id}: nothing is due")
        self.prepare()
        if due.attempt == 1:
            self._run.counters.planned += 1
        result = self._attempt(due)
        report(due.turn, result)
        return self._after(due, result)

    def postpone(self, start_ns: int) -> None:
        """Send what is due at this instant instead, if that is later.

        A turn with an instant of its own keeps it: what it is late by is its lag.
        """
        if self.due is not None and self.due.turn.at_s is None:
            self.due.at_ns = max(self.due.at_ns, start_ns)

    def _attempt(self, due: Due) -> StreamResult:
        run, turn, result = self._run, due.turn, StreamResult()
        output_tokens = due.output_tokens or turn.output_tokens
        self._body.set_turn(turn_params(run.scenario, run.settings, output_tokens))
        request_id = uuid.uuid4().hex
        in_flight, run.in_flight = run.in_flight, run.in_flight + 1
        run.counters.sent += 1
        run.live.turns.in_flight[turn.turn_class] += 1
        try:
            if self._not_ready is not None:
                self._fail(result, self._not_ready)
            else:
                self._client.stream(
                    self._body,
                    request_id=request_id,
                    headers=self._headers,
                    deadlines=run.deadlines,
                    cancel_after_first_token_s=turn.abort_after_s,
                    into=result,
                )
        finally:
            run.in_flight -= 1
            run.live.turns.in_flight[turn.turn_class] -= 1
            run.record(
                self._as_sent(turn),
                result,
                request_id=request_id,
                intended_start_ns=due.at_ns,
                in_flight=in_flight,
                attempt=due.attempt,
            )
        return result

    def _fail(self, result: StreamResult, failure: RequestFailure) -> None:
        result.error_class = TOKENIZE_ERROR
        result.error_text = f"{failure.error_class}: {failure}"
        result.call_start_ns = result.end_ns = self._run.clock.now_ns()

    def _as_sent(self, turn: Turn) -> Turn:
        """The turn with the length of its prompt where that is known before it is sent."""
        tokens = None if self._not_ready else self._body.prompt_tokens
        return turn if tokens is None else replace(turn, planned_prompt_tokens=tokens)

    def _after(self, due: Due, result: StreamResult) -> tuple[ChildPlan, ...]:
        ended_ns = result.end_ns or self._run.clock.now_ns()
        self.failed = result.status == "error"
        if self.failed:
            self._after_failure(due, result, ended_ns)
            return ()
        answer = self.session.completed(
            due.turn,
            prompt_tokens=result.prompt_tokens,
            output_tokens=result.output_tokens,
            text=result.text,
        )
        self._body.add(answer)
        self._next(ended_ns)
        return due.turn.spawns

    def _after_failure(self, due: Due, result: StreamResult, ended_ns: int) -> None:
        resume_ns = ended_ns + self._pause_ns(result)
        if self._may_retry(due, result):
            self.due = replace(due, at_ns=resume_ns, attempt=due.attempt + 1)
            return
        self.due = None
        if self.session.failed(due.turn, result.error_class or "unknown"):
            self._body.truncate(due.turn.keep_messages)
            self._next(resume_ns)

    def _may_retry(self, due: Due, result: StreamResult) -> bool:
        if result.error_class == RATE_LIMITED:
            return due.attempt < RATE_LIMITED_ATTEMPTS
        wished = self._run.settings.max_retries
        return result.error_class not in FINAL_ERRORS and due.attempt <= wished

    def _pause_ns(self, result: StreamResult) -> int:
        """The wait a failed attempt asks for; it counts as think time, not as latency."""
        wished_s = result.retry_after_s
        seconds = FAILED_WAIT_S if wished_s is None else wished_s
        return round(min(seconds, self._run.settings.max_retry_after_s) * NS_PER_S)

    def _next(self, from_ns: int) -> None:
        turn = self.session.next_turn()
        self.due = None
        if turn is None:
            return
        if turn.at_s is None:
            self.due = Due(turn, from_ns + round(turn.wait_s * NS_PER_S))
        else:
            self.due = Due(turn, self._run.stage_instant_ns(turn.at_s))
