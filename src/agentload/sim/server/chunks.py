"""The chunks of a streamed answer, byte for byte as vLLM 0.32 writes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from agentload.sim.server import logprobs, tokens
from agentload.sim.server.answer import Answer, texts
from agentload.sim.server.bodies import tool_call_id
from agentload.sim.server.wire import Delivery, Identity, Usage

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
    """Chunks of one choice."""

    def __init__(self, identity: Identity, index: int, answer: Answer, delivery: Delivery) -> None:
        self._chat = identity.is_chat
        self._answer = answer
        self._delivery = delivery
        self._call_id = tool_call_id(identity.response_id, index)
        fields: dict[str, Any] = {
            "id": identity.response_id,
            "object": "chat.completion.chunk" if self._chat else "text_completion",
            "created": identity.created_unix_s,
            "model": identity.model,
            "choices": [],
        }
        name = b'"delta":' if self._chat else b'"text":'
        self._head = b"data: " + orjson.dumps(fields)[:-2] + b'{"index":%d,' % index + name
        self._fingerprint = b',"system_fingerprint":' + orjson.dumps(identity.fingerprint)

    def quick(self, prompt_tokens: int) -> Quick | None:
        """What makes chunks of one token each, if they are all content and nothing else."""
        delivery, front = self._delivery, self._answer.segments[0]
        if delivery.token_ids or delivery.logprobs is not None or delivery.interval > 1:
            return None
        if front.part != "content":
            return None
        return Quick(
            pieces=front.pieces,
            before=self._head + (b'{"content":"' if self._chat else b'"'),
            after=(b'"}' if self._chat else b'"') + self._fields(0, 0, False, None),
            usage=_USAGE[self._chat] if delivery.running_usage else None,
            prompt_tokens=prompt_tokens,
        )

    def role(self, prompt: bytes, usage: Usage | None) -> bytes:
        """The first chunk of a chat: the role and no content."""
        ids = orjson.dumps(tokens.ids(prompt)) if self._delivery.token_ids else b"null"
        delta = b'{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        end = b',"prompt_token_ids":' + ids + b',"prompt_text":null}\n\n'
        return self._head + delta + self._usage(usage) + end

    def tokens(self, low: int, high: int, usage: Usage | None, prompt: bytes | None) -> bytes:
        """One chunk for tokens [low, high), or b"" if they have no text of their own.

        `prompt` is given for the first chunk of a completion whose token ids were asked for.
        """
        text = self._said(low, high)
        if text is None:
            return b""
        fields = self._fields(low, high, False, prompt)
        return self._head + text + fields + self._usage(usage) + b"}\n\n"

    def last(self, low: int, high: int, usage: Usage | None, *, fingerprint: bool) -> bytes:
        """The chunk with the finish reason; it always exists, even without text."""
        text = self._said(low, high) or b"{}"
        fields = self._fields(low, high, True, None)
        end = self._fingerprint + b"}\n\n" if fingerprint else b"}\n\n"
        return self._head + text + fields + self._usage(usage) + end

    def _usage(self, usage: Usage | None) -> bytes:
        return b"" if usage is None else b',"usage":' + orjson.dumps(usage.running(self._chat))

    def _fields(self, low: int, high: int, last: bool, prompt: bytes | None) -> bytes:
        """What follows the text inside a choice, and the ends of choice and list."""
        reason = orjson.dumps(self._answer.finish_reason) if last else b"null"
        words = self._answer.part_of(low, high)
        ids = orjson.dumps(tokens.ids(words)) if self._delivery.token_ids else b"null"
        parts = [b',"logprobs":', self._logprobs(low, words), b',"finish_reason":', reason]
        if last or not self._chat:
            parts.append(b',"stop_reason":null')
        if not self._chat:
            parts.append(b',"prompt_token_ids":')
            parts.append(b"null" if prompt is None else orjson.dumps(tokens.ids(prompt)))
        parts += (b',"token_ids":', ids, b"}]")
        return b"".join(parts)

    def _logprobs(self, low: int, words: bytes) -> bytes:
        top = self._delivery.logprobs
        if top is None:
            return b"null"
        if self._chat:
            return orjson.dumps(logprobs.for_chat(words, top))
        offset = len(tokens.decode(self._answer.part_of(0, low)))
        return orjson.dumps(logprobs.for_completion(words, top, offset))

    def _said(self, low: int, high: int) -> bytes | None:
        """The delta or the text of a chunk; None for a delta of silent tokens alone."""
        said = texts(self._answer.segments, low, high)
        if not self._chat:
            return b'"' + said.get("content", b"") + b'"'
        fields = [b'"%b":"%b"' % (part.encode(), said[part]) for part in _PLAIN if part in said]
        if "name" in said:
            call = {"id": self._call_id, "type": "function", "index": 0}
            named = b'{"name":"%b","arguments":"%b"}' % (said["name"], said.get("arguments", b""))
            front = orjson.dumps(call)[:-1]
            fields.append(b'"tool_calls":[' + front + b',"function":' + named + b"}]")
        elif "arguments" in said:
            added = b'{"index":0,"function":{"arguments":"%b"}}' % said["arguments"]
            fields.append(b'"tool_calls":[' + added + b"]")
        return b"{" + b",".join(fields) + b"}" if fields else None


_PLAIN: Final = ("reasoning", "content")
