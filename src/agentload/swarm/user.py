"""The Locust user that is one coding agent."""

from __future__ import annotations

from typing import Any

import gevent
from gevent.pool import Group
from locust import User, task
from locust.exception import StopUser
from locust.user.task import LOCUST_STATE_STOPPING

from agentload.client.errors import normal_form
from agentload.client.result import StreamResult
from agentload.client.transport import Client
from agentload.clock import NS_PER_S
from agentload.swarm import current
from agentload.swarm.conversation import Conversation
from agentload.swarm.load_run import LoadRun
from agentload.swarm.open_load import ArrivingSessions
from agentload.workload.turn import ChildPlan, Turn

REQUEST_TYPE = "chat"
NEW_SESSION_WAIT_S = 1.0  # between a session that failed and the next


class TurnError(Exception):
    """What Locust groups failures by: the class and a normal form without ids or numbers."""


class CodingAgent(User):
    """Holds one session at a time and sends its turns one after the other.

    A task of Locust is one turn, its wait the think time: so a stop ends a thinking agent at once
    and leaves one whose answer streams until the stop timeout.
    """

    def __init__(self, environment: Any) -> None:
        super().__init__(environment)
        self._run: LoadRun | None = None
        self._seat = -1
        self._talk: Conversation | None = None
        self._warm_turns_left = 0
        self._children: Group[Any] = Group()

    def on_stop(self) -> None:
        """Give the seat back and close the connections."""
        self._children.kill()
        if self._run is not None and self._seat >= 0:
            self._run.seats.leave(self._seat)
            self._client.close()
            self._seat = -1

    def wait_time(self) -> float:
        """Seconds until the next turn is due; prepares it meanwhile."""
        run, talk = self._of_run()
        talk.prepare()
        if talk.due is None:
            return 0.0
        return max(0.0, (talk.due.at_ns - run.clock.now_ns()) / NS_PER_S)

    @task
    def turn(self) -> None:
        """Send the turn that is due, and what follows from it."""
        if self._run is None:
            self._enter()
            self.wait()  # type: ignore[no-untyped-call]  # the first turn has its instant too
        # A stop that found this agent waiting as its wait ended kills it in the next round of the
        # loop: here, and not in the middle of its answer.
        gevent.sleep(0)
        run, talk = self._of_run()
        spawned = talk.send(self._report)
        if spawned:
            self._run_children(run, talk, spawned)
        if talk.due is None:
            self._begin_session(run)

    def _enter(self) -> None:
        """Take a seat in the run and hold a session; without a run there is nothing to do."""
        run = current.load_run()
        if run is None or run.stopping:
            raise StopUser
        self._run = run
        self._client = Client(run.settings)
        self._seat = run.seats.take()
        self._begin_session(run)
        if run.warming_up and current.arrivals() is None:
            self._warm_up(run)

    def _of_run(self) -> tuple[LoadRun, Conversation]:
        if self._run is None or self._talk is None:
            raise StopUser
        return self._run, self._talk

    def _begin_session(self, run: LoadRun) -> None:
        """Hold the next session of this seat; after a failed one only when a moment has passed."""
        arrivals = current.arrivals()
        if arrivals is not None:
            self._take_arrival(run, arrivals)
            return
        start_ns = run.clock.now_ns()
        if self._talk is not None and self._talk.failed:
            start_ns += round(NEW_SESSION_WAIT_S * NS_PER_S)
        self._talk = Conversation(run, run.new_session(self._seat), self._client, start_ns)

    def _take_arrival(self, run: LoadRun, arrivals: ArrivingSessions) -> None:
        """Hold the next session that arrives."""
        taken = arrivals.take(lambda: run.stopping or self._state == LOCUST_STATE_STOPPING)
        if taken is None:
            raise StopUser
        session, due_ns = taken
        self._talk = Conversation(run, session, self._client, due_ns)

    def _warm_up(self, run: LoadRun) -> None:
        """Send the warm-up turns of a warm session, then wait until all others have."""
        _, talk = self._of_run()
        warm_up = run.scenario.warm_up
        turns = warm_up.turns_per_session if talk.session.start_state == "warm" else 0
        for _ in range(turns):
            if run.stopping or not run.warming_up or talk.due is None:
                break
            talk.prepare()
            self._sleep_until(run, talk.due.at_ns)
            talk.due.output_tokens = warm_up.output_tokens
            talk.send(self._report)
        if talk.due is None:
            self._begin_session(run)
        _, talk = self._of_run()
        talk.prepare()
        run.counters.at_gate += 1
        run.gate.wait()
        if run.stopping:
            raise StopUser
        talk.postpone(run.first_start_ns(self._seat))

    def _run_children(
        self, run: LoadRun, talk: Conversation, spawned: tuple[ChildPlan, ...]
    ) -> None:
        """Run the subagents side by side; the parent's next turn waits for the last of them."""
        for plan in spawned:
            self._children.spawn(self._run_child, run, talk.session.child(plan))
        try:
            self._children.join()
        except gevent.GreenletExit:
            self._children.kill()
            raise
        talk.postpone(run.clock.now_ns())

    def _run_child(self, run: LoadRun, session: Any) -> None:
        client = Client(run.settings)
        talk = Conversation(run, session, client, run.clock.now_ns())
        try:
            while talk.due is not None and self._state != LOCUST_STATE_STOPPING:
                talk.prepare()
                self._sleep_until(run, talk.due.at_ns)
                talk.send(self._report)
        finally:
            client.close()

    @staticmethod
    def _sleep_until(run: LoadRun, at_ns: int) -> None:
        gevent.sleep(max(0.0, (at_ns - run.clock.now_ns()) / NS_PER_S))

    def _report(self, turn: Turn, result: StreamResult) -> None:
        report_request(self.environment, turn, result)


def report_request(environment: Any, turn: Turn, result: StreamResult) -> None:
    """One request event of Locust for each attempt, under the few names of the turn classes."""
    begun_ns = result.send_start_ns or result.call_start_ns
    ended_ns = result.end_ns or begun_ns
    error = None
    if result.status == "error":
        error = TurnError(f"{result.error_class}: {normal_form(result.error_text or '')}")
    environment.events.request.fire(
        request_type=REQUEST_TYPE,
        name=turn.turn_class,
        response_time=(ended_ns - begun_ns) / 1e6,
        response_length=len(result.text),
        exception=error,
        context={},
    )
