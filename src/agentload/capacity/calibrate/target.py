"""A live server as the target of probes, heard by the measuring client."""

# gevent must have patched the process before this module is imported: see calibrate.py.
from __future__ import annotations

import random
import uuid
from collections.abc import Sequence

import gevent

from agentload.capacity.calibrate.probes import Ask, Heard, Probe, ProbeError
from agentload.client.body import PromptBody
from agentload.client.result import StreamResult
from agentload.client.settings import TargetSettings
from agentload.client.transport import Client, prepare_process
from agentload.clock import NS_PER_S, MonotonicClock
from agentload.workload.turn import Message

SETTLE_S = 0.1  # after a cut metronome the server drops it within a step
HEAD_START_CHUNKS = 4
MERGED_SHARE = 0.5
_WORDS = (
    *("def", "return", "import", "class", "self", "for", "in", "if", "else", "open", "path"),
    *("read", "write", "list", "dict", "value", "name", "index", "result", "parse", "test"),
)
_CLOCK = MonotonicClock()

MENDS = {
    "rate_limited": "a gateway limits this key: calibrate past it, or raise its limit",
    "auth": "give a valid key by OPENAI_API_KEY or --api-key-file",
    "context_overflow": "lower --depth: prompts of that length are refused",
    "not_a_stream": "the endpoint does not stream: probe the server itself",
}


class LiveTarget:
    """One server; texts are made once for each name, so that a name's prompts share a prefix.

    `speed`: seconds of the server in a second of the clock; not 1 for a simulated server only.
    """

    def __init__(self, settings: TargetSettings, model: str, speed: float = 1.0) -> None:
        prepare_process(settings)
        self._speed = speed
        self._settings, self._model = settings, model
        self._random = random.Random(uuid.uuid4().int)  # prompts no cache has seen
        self._texts: dict[str, str] = {}
        self._chars_per_token = 3.0
        self._template_tokens = 0
        self._clients: list[Client] = []
        self.sent = 0

    def now_s(self) -> float:
        """Seconds of the server on the monotonic clock."""
        return _CLOCK.now_ns() / NS_PER_S * self._speed

    def warm_up(self) -> Heard:
        """A first request: wakes the server, and tells how many characters a token has."""
        short = self._measure_text(400)
        return self._measure_text(8000, short)

    def play(self, probe: Probe) -> Sequence[Heard]:
        """Send the requests of a probe at their times. Raises `ProbeError` for any failure."""
        while len(self._clients) < len(probe.asks):
            self._clients.append(Client(self._settings))
        bodies = [self._body(ask) for ask in probe.asks]
        results = [StreamResult() for _ in probe.asks]
        # Timers count from the loop's last look at the clock, which building bodies made old.
        gevent.get_hub().loop.update_now()
        jobs = [
            gevent.spawn_later(ask.after_s / self._speed, self._send, client, body, result)
            for ask, client, body, result in zip(
                probe.asks, self._clients, bodies, results, strict=False
            )
        ]
        self.sent += len(jobs)
        gevent.joinall(jobs[1:] if probe.metronome else jobs)
        if probe.metronome and not jobs[0].dead:
            gevent.sleep(0.02)
            jobs[0].kill()
            gevent.sleep(SETTLE_S)
        return [
            heard_of(ask, result, self._speed, alone=len(jobs) == 1)
            for ask, result in zip(probe.asks, results, strict=True)
        ]

    def close(self) -> None:
        """Close all connections."""
        for client in self._clients:
            client.close()

    def _measure_text(self, chars: int, shorter: Heard | None = None) -> Heard:
        ask = Ask(f"warm-up {chars}", 0, 0, 8)
        client = Client(self._settings)
        result = StreamResult()
        self._send(client, self._body_of(self._words(chars), 8), result)
        client.close()
        self.sent += 1
        heard = heard_of(ask, result)
        if shorter is not None:
            more = max(1, heard.prompt_tokens - shorter.prompt_tokens)
            self._chars_per_token = (chars - 400) / more
            self._template_tokens = max(
                0, round(shorter.prompt_tokens - 400 / self._chars_per_token)
            )
        return heard

    def _body(self, ask: Ask) -> PromptBody:
        base = self._chars(ask.base_tokens - self._template_tokens) if ask.base_tokens else 0
        text = self._text(ask.base, base)
        new = ask.new_tokens - (0 if base else self._template_tokens)
        return self._body_of(text + self._words(self._chars(max(1, new))), ask.output_tokens)

    def _body_of(self, text: str, output_tokens: int) -> PromptBody:
        body = PromptBody({"model": self._model, "temperature": 0}, continuous_usage=True)
        body.add([Message("user", (text.encode(),))])
        body.set_turn(
            {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True}
        )
        return body

    def _chars(self, tokens: int) -> int:
        return max(0, round(tokens * self._chars_per_token))

    def _text(self, name: str, chars: int) -> str:
        if chars and len(self._texts.get(name, "")) < chars:
            self._texts[name] = self._words(chars)
        return self._texts.get(name, "")[:chars]

    def _words(self, chars: int) -> str:
        """Words in an order that no earlier prompt had."""
        words: list[str] = []
        length = 0
        while length < chars:
            words.append(f" {self._random.choice(_WORDS)}{self._random.randrange(1000)}")
            length += len(words[-1])
        return "".join(words)[:chars]

    def _send(self, client: Client, body: PromptBody, result: StreamResult) -> None:
        client.stream(body, request_id=f"calibrate-{uuid.uuid4().hex[:12]}", into=result)


def heard_of(ask: Ask, result: StreamResult, speed: float = 1.0, *, alone: bool = True) -> Heard:
    """The measured stream. Raises `ProbeError` when it failed or says nothing of its steps.

    Only a stream that was `alone` tells a buffering proxy from a server that fell behind.
    """
    cut = result.error_class == "aborted_by_test_end"
    if result.status != "success" and not cut:
        name = result.error_class or "error"
        mend = MENDS.get(name, "see that one such request works: agentload doctor")
        wait = "" if result.retry_after_s is None else f" (Retry-After {result.retry_after_s:g} s)"
        raise ProbeError(f"{name}: {result.error_text}{wait}; to mend: {mend}")
    if not result.chunk_ns or result.send_start_ns is None:
        raise ProbeError("a stream was cut before its first token; to mend: raise --limit-s")
    if alone and "buffered_stream" in result.flags:
        raise ProbeError(
            "all chunks of a stream came at once at its end: a proxy buffers the answer; to mend: "
            "turn its response buffering off (nginx: proxy_buffering off), or go past it"
        )
    count, scale = len(result.chunk_ns), speed / NS_PER_S
    tokens = result.chunk_tokens or [1] * count
    return Heard(
        ask=ask,
        sent_s=result.send_start_ns * scale,
        chunks_s=tuple(at * scale for at in result.chunk_ns),
        tokens=tuple(tokens[:count]),
        usable=_own_instants(result.merged),
        prompt_tokens=result.prompt_tokens or ask.prompt_tokens,
        cached_tokens=result.cached_tokens,
    )


def _own_instants(merged: Sequence[bool]) -> tuple[bool, ...]:
    """Whether each chunk's instant is its own: the last of a read has the read's instant."""
    return tuple(not later for later in [*merged[1:], False])
