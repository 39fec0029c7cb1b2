"""What the simulated model answers: planned whole when the request comes.

The same prompt, seed and choice give the same answer, so a run can be repeated. The tokens an
answer is made of are the tokens its text has when it comes back as history.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from agentload.sim.server import corpus, tokens
from agentload.sim.server.protocol import ChatBody, Lengths

# Output tokens per call of coding agents: median 214, mean about 500 (public agent traces).
_MEDIAN_TOKENS: Final = 214
_LOG_SIGMA: Final = 1.3
_LEAST_TOKENS: Final = 8
_LEAST_REASONING: Final = 8

Part = Literal["content", "reasoning", "name", "arguments", "silent"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tokens that go to one field of the answer, as JSON-escaped pieces.

    A silent segment (marks of reasoning and of tool calls) has tokens and no text.
    """

    part: Part
    pieces: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Answer:
    """All tokens of one answer, in order. `finish_reason` as the API says it."""

    words: bytes
    segments: tuple[Segment, ...]
    finish_reason: str
    ends_itself: bool  # the last token is the end token, which has no text

    @property
    def tokens(self) -> int:
        return tokens.count(self.words)

    def part_of(self, low: int, high: int) -> bytes:
        """The words of tokens [low, high)."""
        return self.words[low * tokens.BYTES_PER_TOKEN : high * tokens.BYTES_PER_TOKEN]


def texts(segments: Sequence[Segment], low: int, high: int) -> dict[Part, bytes]:
    """Escaped text of tokens [low, high) by the field it goes to; silent tokens give none."""
    found: dict[Part, bytes] = {}
    start = 0
    for segment in segments:
        end = start + len(segment.pieces)
        if end > low and segment.part != "silent":
            text = b"".join(segment.pieces[max(low - start, 0) : high - start])
            found[segment.part] = found.get(segment.part, b"") + text
        start = end
        if start >= high:
            break
    return found


@dataclass(frozen=True, slots=True)
class Options:
    """What the server does unasked: call tools when given some, reason before answering."""

    auto_tool_choice: bool = False
    reasoning: bool = False


def plan_tokens(lengths: Lengths, most: int, draw: random.Random) -> tuple[int, bool]:
    """Tokens of the answer, and whether it ends itself before its limit."""
    if lengths.ignore_end:
        return most, False
    drawn = round(_MEDIAN_TOKENS * draw.lognormvariate(0.0, _LOG_SIGMA))
    wanted = max(drawn, _LEAST_TOKENS, lengths.least) + 1  # the end token counts
    return (wanted, True) if wanted <= most else (most, False)


def draw_for(prompt: bytes, seed: int | None, choice: int) -> random.Random:
    """The random source of one answer; a tail of the prompt tells prompts apart."""
    tail = zlib.crc32(prompt[-4096:], len(prompt))
    return random.Random(f"{tail}:{seed}:{choice}")


def text(lengths: Lengths, most: int, draw: random.Random, *, reasoning: bool = False) -> Answer:
    """Plain text, with reasoning in front when asked for."""
    count, ends = plan_tokens(lengths, most, draw)
    spoken = count - ends
    start = draw.randrange(corpus.PIECES)
    segments, words = [], b""
    if reasoning:
        thought = min(spoken, max(_LEAST_REASONING, spoken // 4))
        segments.append(Segment("reasoning", corpus.escaped(start, thought)))
        words = corpus.words(start, thought)
        start, spoken = start + thought, spoken - thought
        if spoken:
            segments.append(Segment("silent", [b""]))
            words += tokens.THINK_END
            spoken -= 1
    if spoken or not segments:
        segments.append(Segment("content", corpus.escaped(start, spoken)))
        words += corpus.words(start, spoken)
    if ends:
        words += tokens.END
        segments.append(Segment(segments[-1].part, [b""]))
    return Answer(words, tuple(segments), "stop" if ends else "length", ends)


def tool_call(
    function: Mapping[str, Any], lengths: Lengths, most: int, draw: random.Random
) -> Answer:
    """A call of `function`; cut short (finish reason length) when `most` leaves no room for it."""
    count, ends = plan_tokens(lengths, most, draw)
    name = str(function.get("name", ""))
    name_words = tokens.encode_text(name)
    name_tokens = tokens.count(name_words)
    room = count - ends - name_tokens - 3  # three marks
    arguments = _arguments(function, room, draw)
    words = tokens.CALL + name_words + tokens.CALL_ARGUMENTS + arguments + tokens.CALL_END
    complete = len(words) == (count - ends) * tokens.BYTES_PER_TOKEN
    words = (words + tokens.END if ends else words)[: count * tokens.BYTES_PER_TOKEN]
    before = [b""] * name_tokens  # the mark, and all of the name but its last token
    segments = (
        Segment("silent", before),
        Segment("name", [corpus.json_escaped(name)]),
        Segment("silent", [b""]),
        Segment("arguments", _pieces(arguments)),
        Segment("silent", [b""] * (1 + ends)),
    )
    return Answer(words, segments, "tool_calls" if complete else "length", ends and complete)


def _arguments(function: Mapping[str, Any], room: int, draw: random.Random) -> bytes:
    """JSON arguments of exactly `room` tokens, or the shortest possible if that is more."""
    properties = _mapping(_mapping(function.get("parameters")).get("properties"))
    key = next(iter(properties), "input")
    front, back = f'{{{json.dumps(key)}:"'.encode("ascii"), b'"}'
    fixed = len(front) + len(back)
    size = max(room * tokens.BYTES_PER_TOKEN, fixed + -fixed % tokens.BYTES_PER_TOKEN)
    letters = corpus.WORDS.translate(None, b'"\n ')
    start = draw.randrange(len(letters))
    wanted = size - fixed
    filler = (letters * (2 + (start + wanted) // len(letters)))[start : start + wanted]
    return front + filler + back


def _pieces(data: bytes) -> list[bytes]:
    size = tokens.BYTES_PER_TOKEN
    slices = [data[i : i + size] for i in range(0, len(data), size)]
    return [corpus.json_escaped(piece.decode("ascii")) for piece in slices]


def for_chat(
    body: ChatBody, prompt: bytes, lengths: Lengths, most: int, choice: int, options: Options
) -> Answer:
    """The answer to a chat: a tool call or reasoning where the request asks for it."""
    draw = draw_for(prompt, body.seed, choice)
    function = _called_function(body, options.auto_tool_choice)
    if function is not None:
        return tool_call(function, lengths, most, draw)
    asked = (body.chat_template_kwargs or {}).get("enable_thinking")
    reasoning = options.reasoning if asked is None else bool(asked)
    return text(lengths, most, draw, reasoning=reasoning)


def _called_function(body: ChatBody, auto: bool) -> Mapping[str, Any] | None:
    """The function to call: the one named, else the first given if a call is required."""
    functions = [_mapping(tool.get("function")) for tool in body.tools or ()]
    choice = body.tool_choice
    if isinstance(choice, dict):
        wanted = _mapping(choice.get("function")).get("name")
        return next((f for f in functions if f.get("name") == wanted), {"name": wanted})
    if not functions or choice == "none":
        return None
    return functions[0] if choice == "required" or auto else None


def _mapping(given: object) -> Mapping[str, Any]:
    """What a client sent where an object belongs; anything else counts as an empty one."""
    return given if isinstance(given, dict) else {}
