"""The body of an answer that is not streamed, in the shape and field order of vLLM 0.32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from agentload.sim.server import logprobs, tokens
from agentload.sim.server.answer import Answer, texts
from agentload.sim.server.wire import Delivery, Identity, Usage


def whole_body(
    identity: Identity,
    delivery: Delivery,
    answers: Sequence[tuple[Answer, bytes]],
    usage: Usage,
    times: Mapping[str, Any] | None,
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
            one(index, answer, prompt, delivery, identity.response_id)
            for index, (answer, prompt) in enumerate(answers)
        ],
        "service_tier": None,
        "system_fingerprint": identity.fingerprint,
        "usage": usage.unstreamed(is_chat),
    }
    if is_chat:
        data["prompt_logprobs"] = None
        data["prompt_token_ids"] = tokens.ids(answers[0][1]) if delivery.token_ids else None
        data["prompt_text"] = None
    data["kv_transfer_params"] = data["ec_transfer_params"] = None
    data["metrics"] = None if times is None else {**times, "speculative_decoding": None}
    return orjson.dumps(data)


def _chat_choice(
    index: int, answer: Answer, _: bytes, delivery: Delivery, response_id: str
) -> dict[str, Any]:
    said = _said(answer)
    message: dict[str, Any] = {"role": "assistant", "content": said.get("content")}
    message |= dict.fromkeys(("refusal", "annotations", "audio", "function_call"))
    if "name" in said:
        function = {"name": said["name"], "arguments": said.get("arguments", "")}
        call = {"id": tool_call_id(response_id, index), "type": "function", "function": function}
        message["tool_calls"] = [call]
    message["reasoning"] = said.get("reasoning")
    top = delivery.logprobs
    return {
        "index": index,
        "message": message,
        "logprobs": None if top is None else logprobs.for_chat(answer.words, top),
        "finish_reason": answer.finish_reason,
        "stop_reason": None,
        "token_ids": tokens.ids(answer.words) if delivery.token_ids else None,
        "routed_experts": None,
    }


def _completion_choice(
    index: int, answer: Answer, prompt: bytes, delivery: Delivery, _: str
) -> dict[str, Any]:
    top = delivery.logprobs
    return {
        "index": index,
        "text": _said(answer).get("content", ""),
        "logprobs": None if top is None else logprobs.for_completion(answer.words, top, 0),
        "finish_reason": answer.finish_reason,
        "stop_reason": None,
        "token_ids": tokens.ids(answer.words) if delivery.token_ids else None,
        "prompt_logprobs": None,
        "prompt_token_ids": tokens.ids(prompt) if delivery.token_ids else None,
        "routed_experts": None,
    }


def _said(answer: Answer) -> dict[str, str]:
    """The whole text of each field of the answer."""
    said = texts(answer.segments, 0, answer.tokens)
    return {part: orjson.loads(b'"' + text + b'"') for part, text in said.items()}


def tool_call_id(response_id: str, index: int) -> str:
    return f"chatcmpl-tool-{response_id.removeprefix('chatcmpl-')}{index or ''}"
