"""Bodies of answers, byte for byte in the shape and field order of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from agentload.sim.server import tokens
from agentload.sim.server.answer import Answer, Part, Segment

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"


@dataclass(frozen=True, slots=True)
class Identity:
    """What every chunk of one response repeats."""

    response_id: str
    created_unix_s: int
    model: str
    fingerprint: str
    is_chat: bool


@dataclass(frozen=True, slots=True)
class Delivery:
    """How an answer is to be told: from the request and from the server's flags."""

    stream: bool = False
    include_usage: bool = False
    running_usage: bool = False
    token_ids: bool = False
    cached_tokens: bool = False  # --enable-prompt-tokens-details
    request_times: bool = False  # --enable-per-request-metrics
    interval: int = 1  # --stream-interval


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a response, summed over its choices; `cached` None: not to be told."""

    prompt: int
    completion: int
    cached: int | None

    def running(self, is_chat: bool) -> dict[str, Any]:
        counts: dict[str, Any] = {
            "prompt_tokens": self.prompt,
            "total_tokens": self.prompt + self.completion,
            "completion_tokens": self.completion,
        }
        if is_chat:
            counts["completion_tokens_details"] = {"reasoning_tokens": 0}
        return counts

    def final(self, is_chat: bool) -> dict[str, Any]:
        counts = self.running(is_chat)
        details = counts.pop("completion_tokens_details", None)
        if self.cached is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": self.cached}
            if is_chat:
                counts["prompt_tokens_details"]["created_cache_tokens"] = 0
        if details is not None:
            counts["completion_tokens_details"] = details
        return counts

    def unstreamed(self, is_chat: bool) -> dict[str, Any]:
        counts = self.running(is_chat)
        details = counts.pop("completion_tokens_details", None)
        prompt_details = None
        if self.cached is not None:
            created = 0 if is_chat else None
            prompt_details = {
                "cached_tokens": self.cached,
                "created_cache_tokens": created,
                "multimodal_tokens": None,
            }
        counts["prompt_tokens_details"] = prompt_details
        counts["completion_tokens_details"] = details
        return counts


def event(data: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(data) + b"\n\n"


def error_event(error: Mapping[str, Any]) -> bytes:
    """An error told inside a 200 stream; vLLM writes this one with spaces."""
    spaced = ", ".join(f'"{key}": {orjson.dumps(value).decode()}' for key, value in error.items())
    return b'data: {"error": {' + spaced.encode() + b"}}\n\n"


_USAGE: Final = {
    True: b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
    b'"completion_tokens_details":{"reasoning_tokens":0}}',
    False: b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}',
}


@dataclass(frozen=True, slots=True)
class Quick:
    """Chunks of one token in the middle of an answer.

    In a step of 200 streams the last chunk waits for the 199 before it, so each microsecond spent
    on one is a fifth of a millisecond of lateness.
    """

    pieces: Sequence[bytes]
    before: bytes
    after: bytes
    usage: bytes | None
    prompt_tokens: int

    def chunk(self, index: int) -> bytes:
        if self.usage is None:
            return self.before + self.pieces[index] + self.after + b"}\n\n"
        prompt, generated = self.prompt_tokens, index + 1
        usage = self.usage % (prompt, prompt + generated, generated)
        return self.before + self.pieces[index] + self.after + usage + b"}\n\n"


class ChunkWriter:
    """Chunks of one choice of a streamed response."""

    def __init__(self, identity: Identity, index: int, answer: Answer, token_ids: bool) -> None:
        self._chat = identity.is_chat
        self._answer = answer
        self._with_ids = token_ids
        kind = "chat.completion.chunk" if self._chat else "text_completion"
        self._fields: dict[str, Any] = {
            "id": identity.response_id,
            "object": kind,
            "created": identity.created_unix_s,
            "model": identity.model,
        }
        self._open = b"data: " + orjson.dumps({**self._fields, "choices": []})[:-2]
        self._index = index
        text = b'"delta":' if self._chat else b'"text":"'
        self._head = self._open + b'{"index":%d,' % index + text
        self._fingerprint = b',"system_fingerprint":' + orjson.dumps(identity.fingerprint)
        self._tail = b',"logprobs":null,"finish_reason":null' + (
            b"" if self._chat else b',"stop_reason":null'
        )

    def quick(self, delivery: Delivery, prompt_tokens: int) -> Quick | None:
        """What makes chunks of one token each, if they are all content without token ids."""
        if self._with_ids or delivery.interval > 1 or self._answer.segments[0].part != "content":
            return None
        return Quick(
            pieces=self._answer.segments[0].pieces,
            before=self._head + (b'{"content":"' if self._chat else b""),
            after=b'"' + (b"}" if self._chat else b"") + self._tail + self._no_ids(),
            usage=_USAGE[self._chat] if delivery.running_usage else None,
            prompt_tokens=prompt_tokens,
        )

    def _no_ids(self) -> bytes:
        return b"".join(self._id_fields(0, 0, None))

    def role(self, prompt: bytes, usage: Usage | None) -> bytes:
        """The first chunk of a chat: the role and no content."""
        ids = orjson.dumps(tokens.ids(prompt)) if self._with_ids else b"null"
        return b"".join(
            (
                self._head,
                b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]',
                b"" if usage is None else b',"usage":' + orjson.dumps(usage.running(True)),
                b',"prompt_token_ids":',
                ids,
                b',"prompt_text":null}\n\n',
            )
        )

    def tokens(self, low: int, high: int, usage: Usage | None, prompt: bytes | None) -> bytes:
        """One chunk for tokens [low, high), or b"" if they have no text of their own.

        `prompt` is given for the first chunk of a completion whose token ids were asked for.
        """
        text = self._delta(low, high) if self._chat else self._text(low, high)
        if text is None:
            return b""
        parts = [self._head, text, self._tail]
        parts += self._id_fields(low, high, prompt)
        if usage is not None:
            parts += (b',"usage":', orjson.dumps(usage.running(self._chat)))
        parts.append(b"}\n\n")
        return b"".join(parts)

    def last(self, low: int, high: int, usage: Usage | None, *, fingerprint: bool) -> bytes:
        """The chunk with the finish reason; it always exists, even without text."""
        text = self._delta(low, high) if self._chat else self._text(low, high)
        reason = orjson.dumps(self._answer.finish_reason)
        parts = [self._head, b"{}" if text is None else text]
        parts += (b',"logprobs":null,"finish_reason":', reason, b',"stop_reason":null')
        parts += self._id_fields(low, high, None)
        if usage is not None:
            parts += (b',"usage":', orjson.dumps(usage.running(self._chat)))
        parts.append(self._fingerprint + b"}\n\n" if fingerprint else b"}\n\n")
        return b"".join(parts)

    def _id_fields(self, low: int, high: int, prompt: bytes | None) -> tuple[bytes, ...]:
        shown = b"null"
        if self._with_ids:
            size = tokens.BYTES_PER_TOKEN
            shown = orjson.dumps(tokens.ids(self._answer.words[low * size : high * size]))
        if self._chat:
            return (b',"token_ids":', shown, b"}]")
        prompt_ids = b"null" if prompt is None else orjson.dumps(tokens.ids(prompt))
        return (b',"prompt_token_ids":', prompt_ids, b',"token_ids":', shown, b"}]")

    def _text(self, low: int, high: int) -> bytes:
        pieces = (text for _, text in texts(self._answer.segments, low, high))
        return b"".join(pieces) + b'"'

    def _delta(self, low: int, high: int) -> bytes | None:
        """The delta of a chat chunk; None when all its tokens are silent."""
        fields = [self._field(part, text) for part, text in texts(self._answer.segments, low, high)]
        return b"{" + b",".join(fields) + b"}" if fields else None

    def _field(self, part: Part, text: bytes) -> bytes:
        if part == "name":
            return (
                b'"tool_calls":[{"id":"%b","type":"function","index":0,"function":{"name":"%b",'
                b'"arguments":""}}]' % (self._call_id(), text)
            )
        if part == "arguments":
            return b'"tool_calls":[{"index":0,"function":{"arguments":"%b"}}]' % text
        return b'"%b":"%b"' % (part.encode(), text)

    def _call_id(self) -> bytes:
        return tool_call_id(self._fields["id"], self._index).encode()


def texts(segments: Sequence[Segment], low: int, high: int) -> list[tuple[Part, bytes]]:
    """Escaped text of tokens [low, high) by the field it goes to; silent tokens give none."""
    found: list[tuple[Part, bytes]] = []
    start = 0
    for segment in segments:
        end = start + len(segment.pieces)
        if end > low and segment.part != "silent":
            found.append(
                (segment.part, b"".join(segment.pieces[max(low - start, 0) : high - start]))
            )
        start = end
        if start >= high:
            break
    return found


def tool_call_id(response_id: str, index: int) -> str:
    return f"chatcmpl-tool-{response_id.removeprefix('chatcmpl-')}{index or ''}"


def usage_chunk(identity: Identity, usage: Usage, metrics: Mapping[str, Any] | None) -> bytes:
    """The chunk without choices that `include_usage` asks for."""
    data: dict[str, Any] = {
        "id": identity.response_id,
        "object": "chat.completion.chunk" if identity.is_chat else "text_completion",
        "created": identity.created_unix_s,
        "model": identity.model,
        "choices": [],
        "usage": usage.final(identity.is_chat),
        "system_fingerprint": identity.fingerprint,
    }
    if metrics is not None:
        data["metrics"] = metrics
    return event(data)


def whole_body(
    identity: Identity,
    answers: Sequence[tuple[Answer, bytes]],
    usage: Usage,
    times: Mapping[str, Any] | None,
    token_ids: bool,
) -> bytes:
    """The body of an unstreamed response; `answers` are (answer, prompt) in order of choices."""
    is_chat = identity.is_chat
    one = _chat_choice if is_chat else _completion_choice
    data: dict[str, Any] = {
        "id": identity.response_id,
        "object": "chat.completion" if is_chat else "text_completion",
        "created": identity.created_unix_s,
        "model": identity.model,
        "choices": [
            one(index, answer, prompt if token_ids else None, identity.response_id)
            for index, (answer, prompt) in enumerate(answers)
        ],
        "service_tier": None,
        "system_fingerprint": identity.fingerprint,
        "usage": usage.unstreamed(is_chat),
    }
    if is_chat:
        data["prompt_logprobs"] = None
        data["prompt_token_ids"] = tokens.ids(answers[0][1]) if token_ids else None
        data["prompt_text"] = None
    data["kv_transfer_params"] = data["ec_transfer_params"] = None
    data["metrics"] = None if times is None else {**times, "speculative_decoding": None}
    return orjson.dumps(data)


def _chat_choice(index: int, answer: Answer, prompt: bytes | None, response_id: str) -> Any:
    said: dict[str, str] = {}
    for part, text in texts(answer.segments, 0, answer.tokens):
        said[part] = said.get(part, "") + orjson.loads(b'"' + text + b'"')
    message: dict[str, Any] = {"role": "assistant", "content": said.get("content")}
    message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
    if "name" in said:
        function = {"name": said["name"], "arguments": said.get("arguments", "")}
        call = {"id": tool_call_id(response_id, index), "type": "function", "function": function}
        message["tool_calls"] = [call]
    message["reasoning"] = said.get("reasoning")
    return {
        "index": index,
        "message": message,
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": None,
        "token_ids": None if prompt is None else tokens.ids(answer.words),
        "routed_experts": None,
    }


def _completion_choice(index: int, answer: Answer, prompt: bytes | None, _: str) -> Any:
    text = b"".join(text for _, text in texts(answer.segments, 0, answer.tokens))
    return {
        "index": index,
        "text": orjson.loads(b'"' + text + b'"'),
        "logprobs": None,
        "finish_reason": answer.finish_reason,
        "stop_reason": None,
        "token_ids": None if prompt is None else tokens.ids(answer.words),
        "prompt_logprobs": None,
        "prompt_token_ids": None if prompt is None else tokens.ids(prompt),
        "routed_experts": None,
    }
