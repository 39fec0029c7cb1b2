"""Calls of our own: of a finished run, or of a scenario's plan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from agentload.recording.record import TURNS_CSV
from agentload.workload.plan import SessionPlan
from agentload.workload.traces.fields import LineError, integer, number, word
from agentload.workload.traces.reading import Report, csv_rows
from agentload.workload.traces.record import TraceCall
from agentload.workload.traces.sequence import Kind, Request, Sequence
from agentload.workload.turn import Turn

_NEEDED = (
    "session_id", "parent_session_id", "turn_index", "turn_class", "status", "send_start_s",
    "end_s", "prompt_tokens", "planned_prompt_tokens", "planned_prefix_tokens", "output_tokens",
)  # fmt: skip


def read_run(path: Path, report: Report) -> Iterator[TraceCall]:
    """The turns of a run folder that were answered, also those that were interrupted."""
    sequence = Sequence(report)
    for place, row in csv_rows(path / TURNS_CSV if path.is_dir() else path, report, _NEEDED):
        try:
            if row["status"] == "error":
                report.lose("turns that failed")
                continue
            yield sequence.next(_of_row(row, sequence))
        except LineError as error:
            report.reject(place, str(error))


def _of_row(row: dict[str, Any], sequence: Sequence) -> Request:
    counted = "prompt_tokens" if row["prompt_tokens"] else "planned_prompt_tokens"
    parent = row["parent_session_id"] or None
    kind: Kind = "human" if row["turn_class"] == "user" else "tool"
    prompt = integer(row, counted, low=1)
    return Request(
        session=word(row, "session_id"),
        prompt_tokens=prompt,
        output_tokens=integer(row, "output_tokens") if row["output_tokens"] else 0,
        kind=kind,
        keep_tokens=min(prompt, integer(row, "planned_prefix_tokens")),
        start_s=number(row, "send_start_s"),
        end_s=number(row, "end_s"),
        parent=parent,
        parent_call=None if parent is None else max(0, sequence.calls_of(parent) - 1),
    )


def of_plans(plans: Iterable[SessionPlan], report: Report) -> Iterator[TraceCall]:
    """The calls of planned sessions, children behind their parents."""
    sequence = Sequence(report)
    for plan in plans:
        if plan.cut_short:
            report.lose("turns beyond the most that were asked for")
        for one in (plan, *_descendants(plan)):
            for turn in one.turns:
                yield sequence.next(_of_turn(one, turn))


def _descendants(plan: SessionPlan) -> Iterator[SessionPlan]:
    for child in plan.children:
        yield child
        yield from _descendants(child)


def _of_turn(plan: SessionPlan, turn: Turn) -> Request:
    parent = plan.parent_session_id
    return Request(
        session=plan.session_id,
        prompt_tokens=turn.planned_prompt_tokens,
        output_tokens=turn.output_tokens,
        kind="human" if turn.turn_class == "user" else "tool",
        keep_tokens=turn.planned_prefix_tokens if turn.turn_index else 0,
        wait_s=turn.wait_s if turn.turn_index else None,
        parent=parent,
        parent_call=int(plan.session_id.rsplit(".", 2)[1]) if parent is not None else None,
    )
