"""One coding agent's conversation as a seeded sequence of turns."""

from __future__ import annotations

import math
from random import Random

from agentload.scenario.model import Scenario
from agentload.workload.basis import basis
from agentload.workload.calibration import CharsPerToken
from agentload.workload.chat import Chat, Step
from agentload.workload.compaction import rebuild_step, summary_step
from agentload.workload.content import Corpus
from agentload.workload.drawing import (
    Task,
    draw_abort,
    draw_break,
    draw_output,
    draw_spawns,
    draw_start_tokens,
    draw_task,
    draw_wait,
    whole,
)
from agentload.workload.origin import Origin, StartState, child_origin, one_shot_origin, origin_of
from agentload.workload.turn import ChildPlan, Message, Turn, TurnClass
from agentload.workload.writing import Draft, Place

_ANSWER_AFTER_EDIT_TOKENS = 60.0


class Session:
    """Yields turns; every draw is keyed by (seed, session, turn).

    The text follows from the scenario, the index and `chars_per_token`: one number for the mix of
    the scenario, or one for each kind of content (`calibration`). What the server reports
    changes `planned_prompt_tokens` and `planned_prefix_tokens`, and ends, compacts or shortens
    where the server would refuse the next request. Use: `next_turn`, send it, `completed` or
    `failed`, and again until None.
    """

    def __init__(
        self,
        scenario: Scenario,
        index: int,
        corpus: Corpus,
        chars_per_token: CharsPerToken,
        max_model_len: int | None,
        *,
        run_salt: str = "",
        origin: Origin | None = None,
    ) -> None:
        self._scenario = scenario
        self._corpus = corpus
        self._chars_per_token = chars_per_token
        self._basis = basis(scenario, corpus, chars_per_token, max_model_len, run_salt)
        self._origin = origin or origin_of(scenario, index)
        self._chat = Chat(self._basis, self._origin)
        self._turn_index = 0
        self._pending: tuple[Turn, Step] | None = None
        self._ended = False
        self._rebuild_next = False
        self._summary_tokens = 0.0
        self._reports_due = 0  # children whose result joins the next turn
        self._task = Task(math.inf, None)
        self._user_turns_left = math.inf

    @classmethod
    def one_shot(
        cls,
        scenario: Scenario,
        number: int,
        corpus: Corpus,
        chars_per_token: CharsPerToken,
        max_model_len: int | None,
        *,
        run_salt: str = "",
    ) -> Session:
        """The session of one turn that `interference` sends as its prompt `number`."""
        return cls(
            scenario, 0, corpus, chars_per_token, max_model_len, run_salt=run_salt,
            origin=one_shot_origin(scenario, number),
        )  # fmt: skip

    def child(self, plan: ChildPlan) -> Session:
        """The session of a subagent that a turn of this one spawned."""
        basis = self._basis
        return Session(
            self._scenario, 0, self._corpus, self._chars_per_token, basis.max_model_len,
            run_salt=basis.run_salt, origin=child_origin(self._origin, plan),
        )  # fmt: skip

    @property
    def session_id(self) -> str:
        return self._origin.session_id

    @property
    def parent_session_id(self) -> str | None:
        return self._origin.parent_session_id

    @property
    def start_state(self) -> StartState:
        """`warm` sessions take part in the warm-up; the others begin with a measured turn."""
        return self._origin.state

    def next_turn(self) -> Turn | None:
        """The next turn, or None when the session is over."""
        if self._pending is not None:
            raise RuntimeError(f"{self.session_id}: a turn is still open")
        if self._ended:
            return None
        rng = self._rng("turn", self._turn_index)
        step = self._first(rng) if self._turn_index == 0 else self._following(rng)
        if step is None:
            self._ended = True
            return None
        turn = self._chat.turn(step, self._turn_index, rng)
        self._pending = (turn, step)
        self._turn_index += 1
        return turn

    def completed(
        self, turn: Turn, *, prompt_tokens: int | None, output_tokens: int | None, text: str | None
    ) -> tuple[Message, ...]:
        """The messages that join the history after an answer, an interrupted one included.

        A canned answer has its planned length whatever came; with live history it is `text`.
        """
        step = self._close(turn)
        writer, live_tokens = self._basis.writer, 0.0
        if self._scenario.turns.assistant_history == "live" and text is not None:
            draft = writer.answer_of(text)
            live_tokens = output_tokens or self._chat.ledger.estimate(draft.amounts)
        else:
            rng = self._rng("answer", turn.turn_index)
            draft = writer.answer(step.answer_tokens, rng, step.place)
        self._chat.answered(prompt_tokens, live_tokens)
        self._chat.push(draft)
        self._reports_due = len(turn.spawns)
        return (draft.message,)

    def failed(self, turn: Turn, error_class: str) -> bool:
        """The turn is given up, its messages leave the history; whether the session goes on.

        `context_overflow` compacts the session or ends it, by `window.at_limit`. A session whose
        first turn fails is over.
        """
        step = self._close(turn)
        self._chat.cut(step.keep)
        self._rebuild_next = step.rebuilds
        if error_class == "context_overflow":
            compacts = self._scenario.window.at_limit == "compact"
            self._rebuild_next = compacts and not step.rebuilds
            self._ended = not self._rebuild_next
        self._ended = self._ended or turn.turn_index == 0
        return not self._ended

    def _close(self, turn: Turn) -> Step:
        if self._pending is None or self._pending[0] is not turn:
            raise RuntimeError(f"{self.session_id}: turn {turn.turn_index} is not the open one")
        step = self._pending[1]
        self._pending = None
        return step

    def _rng(self, what: str, turn_index: int) -> Random:
        return Random(f"{self._scenario.seed}/{self._origin.key}/{what}/{turn_index}")

    def _first(self, rng: Random) -> Step | None:
        scenario, origin, window = self._scenario, self._origin, self._basis.window
        self._user_turns_left = whole(scenario.turns.user_turns_per_session, rng, math.inf) - 1
        self._task = draw_task(scenario, rng)
        self._task.abort_call = None  # what warms a session is not interrupted
        output, answer = draw_output(scenario, rng)
        if origin.state == "one_shot" and scenario.interference is not None:
            output = answer = int(whole(scenario.interference.output_tokens, rng))
        if origin.turns is not None:
            self._task, self._user_turns_left = Task(origin.turns, None), 0
        self._task.take_call()
        front = self._chat.front(rng)
        front_tokens = self._basis.ratios.tokens(front.amounts) + self._basis.ratios.message_tokens
        wished = draw_start_tokens(scenario, origin.state, front_tokens, rng)
        tokens = min(wished, window.most_prompt)
        system = Draft(Message("system", front.pieces), front.amounts)
        drafts = [system, *self._chat.converse(tokens - front_tokens, rng, 1)]
        step = Step("child" if origin.state == "child" else "cold", 0, drafts, output, answer)
        return step.with_output(window.most_output(tokens))

    def _following(self, rng: Random) -> Step | None:
        ledger = self._chat.ledger
        if self._rebuild_next:
            return self._rebuild(rng)
        is_main = self._origin.state not in ("child", "one_shot")
        if is_main and ledger.planned(len(ledger)) >= self._basis.window.compact:
            return self._compact(rng)
        step = self._call(rng)
        return None if step is None else self._within_window(step, rng)

    def _call(self, rng: Random) -> Step | None:
        """A tool turn, or a user turn once the calls of the one before are used up."""
        scenario, chat = self._scenario, self._chat
        user = self._task.calls_left < 1
        spawns: tuple[ChildPlan, ...] = ()
        if user:
            if self._user_turns_left < 1:
                return None
            self._user_turns_left -= 1
            self._task = draw_task(scenario, rng)
            spawns = draw_spawns(scenario, self._turn_index, rng)
        aborted = self._task.take_call()
        if aborted:
            spawns = ()
        elif spawns:
            self._task.calls_left = max(1, self._task.calls_left)  # the call that joins them
        parts = 1 if user else int(whole(scenario.turns.parallel_tool_calls, rng))
        wait = draw_wait(scenario, user, parts, rng)
        output, answer = draw_output(scenario, rng)
        share, after_s = draw_abort(scenario, output, rng) if aborted else (1.0, None)
        keep, drafts = self._kept(rng)
        draft, place = self._append("user" if user else "tool", parts, keep + len(drafts), rng)
        return Step(
            self._class_of(user, keep < len(chat.ledger)),
            keep, [*drafts, draft], output, max(1.0, answer * share), wait, after_s, spawns, place,
        )  # fmt: skip

    def _class_of(self, user: bool, broken: bool) -> TurnClass:
        if self._origin.state == "child":
            return "child"
        if broken:
            return "rebuild"
        return "user" if user else "tool"

    def _append(self, mix: str, parts: int, before: int, rng: Random) -> tuple[Draft, Place | None]:
        """The one message a turn adds, with the reports of children that have ended."""
        scenario, writer = self._scenario, self._basis.writer
        chars = int(whole(scenario.turns.append_chars, rng))
        if scenario.subagents is not None:
            for _ in range(self._reports_due):
                chars += int(whole(scenario.subagents.report_chars, rng))
        if scenario.content.cut == "inside_word":
            return writer.ending_inside_word(mix, chars, rng)
        return writer.user(mix, chars, rng, parts=parts, head=self._chat.salt(before)), None

    def _kept(self, rng: Random) -> tuple[int, list[Draft]]:
        """How many messages stay, and what an edit puts in the place of the rest."""
        chat = self._chat
        broken = None if self._origin.state == "child" else draw_break(self._scenario, rng)
        if broken is None:
            return len(chat.ledger), []
        share, rewind = broken
        keep = chat.keep_for(share)
        if rewind:
            return keep, []
        lost = chat.ledger.planned(len(chat.ledger)) - chat.ledger.planned(keep)
        answer = self._basis.writer.answer(_ANSWER_AFTER_EDIT_TOKENS, rng)
        return keep, [*chat.converse(lost, rng, keep), answer]

    def _within_window(self, step: Step, rng: Random) -> Step | None:
        """The step, or what `window.at_limit` says when its prompt or its answer does not fit."""
        window = self._basis.window
        planned, known, uncounted = self._chat.size(step)
        if planned <= window.end and window.fits(known, uncounted, step.output_tokens):
            return step
        at_limit = self._scenario.window.at_limit
        if at_limit == "compact" and self._origin.state != "child":
            return self._compact(rng)
        if at_limit == "lower_output" and planned <= window.end:
            room = window.room(known, uncounted)
            return step.with_output(room) if room > 0 else None
        return None

    def _compact(self, rng: Random) -> Step:
        """Ask for a summary; without the room for one only the shared prefix stays."""
        step = summary_step(self._basis, self._chat, rng)
        if step is None:
            return self._rebuild(rng)
        self._rebuild_next = True
        self._summary_tokens = step.answer_tokens
        return step

    def _rebuild(self, rng: Random) -> Step:
        self._rebuild_next = False
        return rebuild_step(self._basis, self._chat, self._summary_tokens, rng)
