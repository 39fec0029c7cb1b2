"""Texts of conversations: ShareGPT, vLLM's multi-turn files, OpenAI batch; vLLM's also written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import orjson

from agentload.workload.session import Session
from agentload.workload.traces.fields import LineError, integer, items, text, word
from agentload.workload.traces.reading import Report, json_lines, json_objects
from agentload.workload.traces.record import TraceCall
from agentload.workload.traces.sequence import Request, Sequence
from agentload.workload.turn import Message

_CHARS_PER_TOKEN = 4.0
_USER = ("human", "user", "system", "tool")
_ASSISTANT = ("gpt", "assistant", "chatgpt", "bing", "bard")
_DEFAULT_OUTPUT_TOKENS = 214  # of a batch request that sets no limit; TraceLab's median


def read(path: Path, report: Report) -> Iterator[TraceCall]:
    """Items with `conversations` (from, value) or `messages` (role, content); each a session."""
    for count, (place, item) in enumerate(json_objects(path, report)):
        try:
            name = word(item, "id") if item.get("id") is not None else f"conversation-{count}"
            turns = _turns(item)
        except LineError as error:
            report.reject(place, str(error))
            continue
        if not turns:
            report.reject(place, "no question that is followed by an answer")
            continue
        report.lose("text: replaced by text of the scenario, its tokens taken as characters / 4")
        report.lose("waits: not recorded, drawn from the scenario's")
        sequence, prompt = Sequence(report), 0
        for question, answer in turns:
            keep, prompt = prompt, prompt + question
            yield sequence.next(Request(name, prompt, answer, "human", keep_tokens=keep))
            prompt += answer


def _turns(item: dict[str, Any]) -> list[tuple[int, int]]:
    """(tokens of what is asked, tokens of the answer) of each turn of a conversation."""
    messages = items(item, "messages") or items(item, "conversations")
    turns, asked = [], 0
    for message in messages:
        role = message.get("role", message.get("from")) if isinstance(message, dict) else None
        if role not in _USER + _ASSISTANT:
            raise LineError(f"role {role!r} is none of {', '.join(_USER + _ASSISTANT)}")
        tokens = _tokens(text(message, "content" if "content" in message else "value"))
        if role in _USER:
            asked += tokens
        elif asked:
            turns.append((asked, tokens))
            asked = 0
    return turns


def _tokens(said: str) -> int:
    return max(1, round(len(said) / _CHARS_PER_TOKEN))


def read_batch(path: Path, report: Report) -> Iterator[TraceCall]:
    """An OpenAI batch file: each request is a session of one call."""
    sequence = Sequence(report)
    for place, row in json_lines(path, report):
        try:
            name, body = word(row, "custom_id"), row.get("body")
            if not isinstance(body, dict):
                raise LineError("body is not a JSON object")
            limit = next((k for k in ("max_completion_tokens", "max_tokens") if body.get(k)), None)
            if limit is None:
                report.lose(f"the length of an answer: {_DEFAULT_OUTPUT_TOKENS} where none is set")
            content = items(body, "messages") or body.get("prompt") or body.get("input")
            if not content:
                raise LineError("body has neither messages nor prompt nor input")
            yield sequence.next(
                Request(
                    session=name,
                    prompt_tokens=_tokens(orjson.dumps(content).decode()),
                    output_tokens=integer(body, limit) if limit else _DEFAULT_OUTPUT_TOKENS,
                )
            )
        except LineError as error:
            report.reject(place, str(error))
            continue
        report.lose("text: replaced by text of the scenario, its tokens taken as characters / 4")


def write(sessions: Iterable[Session], most_turns: int, report: Report) -> Iterator[bytes]:
    """vLLM's multi-turn file: a JSON array of {id, messages}, user and assistant in turn.

    The format has no system messages: that text goes in front of the first question.
    """
    yield b"["
    for session in sessions:
        messages: list[Message] = []
        for _ in range(most_turns):
            turn = session.next_turn()
            if turn is None:
                break
            if turn.keep_messages < len(messages):
                report.lose("a prompt that drops part of the one before")
            if not messages and len(turn.append) > 2:
                report.lose("that a session begins with a history: its questions are asked too")
            del messages[turn.keep_messages :]
            messages += turn.append
            messages += session.completed(turn, prompt_tokens=None, output_tokens=None, text=None)
            report.calls += 1
            report.lose("waits and lengths of answers: the tool sets its own")
        item = {"id": session.session_id, "messages": _as_json(messages)}
        yield (b",\n" if report.sessions else b"\n") + orjson.dumps(item)
        report.sessions += 1
    yield b"\n]\n"


def _as_json(messages: list[Message]) -> list[dict[str, str]]:
    rows = [{"role": m.role, "content": _plain(m)} for m in messages]
    if len(rows) > 1 and rows[0]["role"] == "system":
        rows[1]["content"] = rows[0]["content"] + "\n" + rows[1]["content"]
        del rows[0]
    return rows


def _plain(message: Message) -> str:
    return str(orjson.loads(b'"' + b"".join(bytes(p) for p in message.pieces) + b'"'))
