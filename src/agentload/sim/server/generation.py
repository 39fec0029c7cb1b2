"""Chat and text completions: from a checked body to requests of the engine."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from agentload.clock import wall_unix_s
from agentload.sim.core.blocks import Node
from agentload.sim.core.request import Request
from agentload.sim.server import answer, errors, protocol, tokens
from agentload.sim.server.answer import Answer
from agentload.sim.server.exchange import Choice, Exchange
from agentload.sim.server.faults import Fault
from agentload.sim.server.http import Call
from agentload.sim.server.live import LiveEngine
from agentload.sim.server.prefix import PrefixTree
from agentload.sim.server.protocol import GenerationBody, Prompt
from agentload.sim.server.response import Headers
from agentload.sim.server.settings import Settings
from agentload.sim.server.wire import Delivery, Identity

Ended = Callable[[Exchange, str], None]
Plan = tuple[Prompt, Answer, int]  # one choice: its prompt, its answer, the limit asked for

_ID_DIGITS: Final = 16


class Generator:
    """Makes exchanges and hands their requests to the engine."""

    def __init__(self, settings: Settings, live: LiveEngine, tree: PrefixTree | None) -> None:
        self._settings = settings
        self._live = live
        self._tree = tree
        self._serial = 0

    def chat(self, call: Call, faults: Sequence[Fault], headers: Headers, ended: Ended) -> Exchange:
        """Raises ApiError for what vLLM refuses."""
        body = protocol.parse(protocol.ChatBody, call.body)
        self.check_model(body.model)
        protocol.check_sampling(body)
        asked = (
            body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        )
        lengths = protocol.lengths(body, asked)
        prompt = self._marked(Prompt(protocol.chat_words(body), False), faults)
        limit = self._limit(prompt, asked)
        options = self._settings.answers
        plans = [
            (prompt, answer.for_chat(body, prompt.words, lengths, limit, i, options), limit)
            for i in range(body.n)
        ]
        return self._begin(call, body, plans, faults, headers, ended, is_chat=True)

    def completion(
        self, call: Call, faults: Sequence[Fault], headers: Headers, ended: Ended
    ) -> Exchange:
        """Raises ApiError for what vLLM refuses."""
        body = protocol.parse(protocol.CompletionBody, call.body)
        self.check_model(body.model)
        protocol.check_sampling(body)
        lengths = protocol.lengths(body, body.max_tokens)
        plans: list[Plan] = []
        for prompt in protocol.completion_prompts(body.prompt):
            prompt = self._marked(prompt, faults)
            limit = self._limit(prompt, body.max_tokens)
            for i in range(body.n):
                draw = answer.draw_for(prompt.words, body.seed, i)
                plans.append((prompt, answer.text(lengths, limit, draw), limit))
        return self._begin(call, body, plans, faults, headers, ended, is_chat=False)

    def check_model(self, model: str | None) -> None:
        served = self._settings.served_model_names
        if model is not None and model not in served:
            raise errors.unknown_model(model, served)

    def _limit(self, prompt: Prompt, asked: int | None) -> int:
        count = tokens.count(prompt.words)
        return protocol.most_output(count, asked, self._settings.engine.max_model_len)

    def _marked(self, prompt: Prompt, faults: Sequence[Fault]) -> Prompt:
        """Put a line that is never the same in front, if a fault asks for it."""
        if not any(fault.kind == "timestamp" for fault in faults):
            return prompt
        mark = tokens.encode_text(f"Current time: {wall_unix_s():.6f} ({self._serial})\n")
        return Prompt(mark + prompt.words, prompt.is_token_ids)

    def _begin(
        self, call: Call, body: GenerationBody, plans: Sequence[Plan], faults: Sequence[Fault],
        headers: Headers, ended: Ended, *, is_chat: bool,
    ) -> Exchange:  # fmt: skip
        if self._live.queue_is_full:
            raise errors.busy()
        exchange = Exchange(
            self._identity(call, body, is_chat),
            self._delivery(body),
            call.response,
            headers,
            self._live,
            ended,
        )
        exchange.begin()
        arrival_s = self._live.simulated_s(call.received_ns)
        for index, (prompt, planned, limit) in enumerate(plans):
            self._serial += 1
            unplaced = [(Node(), tokens.count(prompt.words))]
            request = Request(self._serial, unplaced, planned.tokens, arrival_s)
            path = partial(self._path, prompt.words, planned.words, body.cache_salt)
            choice = Choice(exchange, index, request, prompt.words, planned, limit, path)
            exchange.choices.append(choice)
        factor = _tokenizer_factor(faults)
        for first in range(0, len(plans), body.n):
            prompt = plans[first][0]
            load = tokens.count(prompt.words) * factor
            same = exchange.choices[first : first + body.n]
            self._live.submit(same, load, token_ids=prompt.is_token_ids)
        return exchange

    def _path(self, prompt: bytes, planned: bytes, salt: str | None) -> list[tuple[Node, int]]:
        if self._tree is None:
            return [(Node(), tokens.count(prompt))]
        return self._tree.place(prompt, planned, salt)

    def _identity(self, call: Call, body: GenerationBody, is_chat: bool) -> Identity:
        own = call.headers.get(b"x-request-id") or uuid.uuid4().hex[:_ID_DIGITS]
        return Identity(
            response_id=f"{'chatcmpl' if is_chat else 'cmpl'}-{own}",
            created_unix_s=int(wall_unix_s()),
            model=body.model or self._settings.served_model_names[0],
            fingerprint=self._settings.fingerprint,
            is_chat=is_chat,
        )

    def _delivery(self, body: GenerationBody) -> Delivery:
        options, settings = body.stream_options, self._settings
        include_usage = bool(options and options.include_usage)
        return Delivery(
            stream=bool(body.stream),
            include_usage=include_usage,
            running_usage=include_usage and bool(options and options.continuous_usage_stats),
            token_ids=bool(body.return_token_ids),
            cached_tokens=settings.enable_prompt_tokens_details,
            request_times=settings.enable_per_request_metrics,
            interval=settings.stream_interval,
            logprobs=protocol.told_logprobs(body),
        )


def _tokenizer_factor(faults: Sequence[Fault]) -> float:
    factor = 1.0
    for fault in faults:
        if fault.kind == "slow-tokenizer":
            factor *= fault.number("factor")
    return factor
