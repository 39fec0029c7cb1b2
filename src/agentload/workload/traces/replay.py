"""A recorded session played again with text of the scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

from agentload.scenario.model import Scenario
from agentload.workload.arrival import Start
from agentload.workload.calibration import CharsPerToken
from agentload.workload.chat import Step
from agentload.workload.content import Corpus
from agentload.workload.drawing import Task, draw_wait
from agentload.workload.origin import Origin, child_origin
from agentload.workload.session import Session
from agentload.workload.traces.record import SessionFile, TraceCall, TraceError
from agentload.workload.turn import ChildPlan, Message
from agentload.workload.writing import Draft

_MOST_PREFIX_SHARE = 0.5  # of a first prompt; a shorter prompt goes without the shared prefix


class ReplayedSession(Session):
    """A session whose sizes, waits and breaks are those of a trace.

    Its text, its system message, the context window, and waits that the trace does not have are
    the scenario's. `context_scale` scales first prompts and prompts after a break. A cut falls on
    the last message that is wholly within what the trace keeps.
    """

    def __init__(
        self,
        scenario: Scenario,
        corpus: Corpus,
        chars_per_token: CharsPerToken,
        max_model_len: int | None,
        file: SessionFile,
        name: str,
        origin: Origin,
        *,
        run_salt: str = "",
    ) -> None:
        super().__init__(
            scenario, 0, corpus, chars_per_token, max_model_len, run_salt=run_salt, origin=origin
        )
        self._file = file
        self._name = name
        self._calls = file.calls(name)
        self._last: TraceCall | None = None
        self._children: dict[tuple[int, int], str] = {}  # (turn, number) -> recorded session
        self._most_wait_s = (scenario.trace.max_wait_s if scenario.trace else 0.0) / scenario.pace

    def child(self, plan: ChildPlan) -> Session:
        """The recorded subagent that a turn of this session spawned."""
        return ReplayedSession(
            self._scenario, self._corpus, self._chars_per_token, self._basis.max_model_len,
            self._file, self._children[plan.turn_index, plan.number],
            child_origin(self._origin, plan), run_salt=self._basis.run_salt,
        )  # fmt: skip

    def _first(self, rng: Random) -> Step | None:
        call = self._take()
        if call is None:
            return None
        self._task = Task(0, None)
        basis, ratios = self._basis, self._basis.ratios
        wished = call.prompt_tokens * self._scenario.context_scale
        tokens = min(wished, basis.window.most_prompt)
        front = self._chat.front(rng)
        system = Draft(Message("system", front.pieces), front.amounts)
        front_tokens = ratios.tokens(front.amounts) + ratios.message_tokens
        if front_tokens > _MOST_PREFIX_SHARE * tokens:
            system = basis.writer.brief_system()
            front_tokens = ratios.tokens(system.amounts) + ratios.message_tokens
        drafts = [system, *self._chat.converse(tokens - front_tokens, rng, 1)]
        step = self._step(call, 0, drafts, rng)
        return step.with_output(basis.window.most_output(tokens))

    def _following(self, rng: Random) -> Step | None:
        if self._rebuild_next:
            return self._rebuild(rng)
        before, call = self._last, self._take()
        if call is None or before is None:
            return None
        chat, scale = self._chat, self._scenario.context_scale
        if call.keep_tokens >= before.prompt_tokens:
            markers = 2 * self._basis.ratios.message_tokens
            history = before.prompt_tokens + before.output_tokens
            new = max(1.0, call.prompt_tokens - history - markers)
            mix = "user" if call.turn_class == "user" else "tool"
            step = self._step(call, len(chat.ledger), [self._text(mix, new, rng)], rng)
        else:
            keep = chat.keep_for(call.keep_tokens / before.prompt_tokens)
            left = call.prompt_tokens * scale - chat.ledger.planned(keep)
            step = self._step(call, keep, chat.converse(left, rng, keep), rng)
        return self._within_window(step, rng)

    def _text(self, mix: str, tokens: float, rng: Random) -> Draft:
        writer = self._basis.writer
        kind = writer.kind(mix, rng)
        return writer.user(mix, self._basis.ratios.chars(kind, tokens), rng, only=kind)

    def _take(self) -> TraceCall | None:
        self._last = next(self._calls, None)
        return self._last

    def _step(self, call: TraceCall, keep: int, drafts: list[Draft], rng: Random) -> Step:
        wait_s = None if call.wait_s is None else call.wait_s / self._scenario.pace
        if wait_s is None and call.call > 0:
            wait_s = draw_wait(self._scenario, call.wait_kind == "human", 1, rng)[1]
        kind = call.wait_kind if call.call else "none"
        spawns = []
        for number, name in enumerate(self._file.children(self._name, call.call)):
            self._children[self._turn_index, number] = name
            spawns.append(ChildPlan(number, self._turn_index, 0))
        return Step(
            call.turn_class, keep, drafts, call.output_tokens, call.output_tokens,
            (kind, min(wait_s or 0.0, self._most_wait_s)), spawns=tuple(spawns),
            at_s=self._at_s(call),
        )  # fmt: skip

    def _at_s(self, call: TraceCall) -> float | None:
        trace = self._scenario.trace
        if trace is None or trace.replay != "absolute" or call.start_s is None:
            return None
        return call.start_s / self._scenario.pace


class Replay:
    """The sessions of a session file, handed out by index; after the last comes the first again."""

    def __init__(self, path: Path) -> None:
        self._file = SessionFile(path)

    def __len__(self) -> int:
        return len(self._file.roots)

    @property
    def fingerprint(self) -> str:
        """Of the file's bytes; the same on all machines that replay the same sessions."""
        return self._file.fingerprint

    def check_starts(self) -> None:
        """TraceError when a session has no recorded start: absolute replay would leave it out."""
        missing = self._file.starts_s.count(None)
        if missing:
            raise TraceError(
                f"{self._file.path}: {missing} of {len(self)} sessions have no start_s, which"
                " trace.replay absolute needs; set trace.replay to think"
            )

    def session(
        self,
        scenario: Scenario,
        index: int,
        corpus: Corpus,
        chars_per_token: CharsPerToken,
        max_model_len: int | None,
        *,
        run_salt: str = "",
    ) -> Session:
        """The session with this index in a run; a second round has the same sizes, other text."""
        name = self._file.roots[index % len(self._file.roots)]
        origin = Origin(
            key=f"t{index}",
            session_id=f"t{scenario.seed}-{index:06d}",
            parent_session_id=None,
            state="warm",
            opens_run=index == 0,
        )
        return ReplayedSession(
            scenario, corpus, chars_per_token, max_model_len, self._file, name, origin,
            run_salt=run_salt,
        )  # fmt: skip

    def starts(self, pace: float) -> Iterator[Start]:
        """When each session began, in order of time; `pace` as the scenario has it."""
        known = (
            (at_s, index) for index, at_s in enumerate(self._file.starts_s) if at_s is not None
        )
        for at_s, index in sorted(known):
            yield Start(index, at_s / pace)


def load_replay(scenario: Scenario) -> Replay | None:
    """The trace of a scenario that has one; TraceError when it cannot be replayed as wished."""
    if scenario.trace is None:
        return None
    replay = Replay(Path(scenario.trace.file))
    if scenario.trace.replay == "absolute":
        replay.check_starts()
    return replay


def session_source(
    scenario: Scenario,
    corpus: Corpus,
    chars_per_token: CharsPerToken,
    max_model_len: int | None,
    run_salt: str = "",
    replay: Replay | None = None,
) -> Callable[[int], Session]:
    """Makes the session with an index: drawn, or of `replay` when there is one."""
    if replay is None:
        return lambda index: Session(
            scenario, index, corpus, chars_per_token, max_model_len, run_salt=run_salt
        )
    return lambda index: replay.session(
        scenario, index, corpus, chars_per_token, max_model_len, run_salt=run_salt
    )
