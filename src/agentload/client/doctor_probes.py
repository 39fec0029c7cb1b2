"""The requests the doctor sends, each followed by what is made of the answer."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import gevent

from agentload.client import findings
from agentload.client.base_url import server_root
from agentload.client.body import PromptBody
from agentload.client.chunking import Chunking, chunking
from agentload.client.errors import MENDS, NO_MODEL_LIST, RequestFailure
from agentload.client.findings import Finding
from agentload.client.models import compare_models
from agentload.client.result import StreamResult
from agentload.client.token_body import cuts_are_safe
from agentload.client.tokenizers import SERVER, server_encoder
from agentload.client.transport import Answer, Client
from agentload.clock import NS_PER_S, MonotonicClock, wall_unix_s
from agentload.scenario.model import Scenario
from agentload.workload.turn import Message
from agentload.workload.window import misfit

ROUND_TRIPS = 5
STREAM_TOKENS = 48
PREFIX_TOKENS = 3_000
NEIGHBOUR_TOKENS = 2_000  # of a fast server too few would be over before the long prompt begins
NEIGHBOUR_WAIT_S = 60.0  # for its headers
NEIGHBOUR_STARTS_S = 0.5  # at most, from its headers until it decodes
_WORDS = ("get", "set", "list", "open", "close", "read", "write", "parse", "path", "file", "name")
_CLOCK = MonotonicClock()


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the doctor was asked beside the target's settings."""

    scenario: Scenario | None
    metrics_url: str | None
    long_prompt_tokens: int


class Examination:
    """One target, asked question after question; stops when the answers would all be alike."""

    def __init__(self, client: Client, wishes: Wishes) -> None:
        self._client = client
        self._wishes = wishes
        self._model = ""
        self._max_model_len: int | None = None
        self._chars_per_token = 3.0
        self._small_ttft_s = NEIGHBOUR_STARTS_S
        self._random = random.Random(uuid.uuid4().int)  # prompts no cache has seen

    def findings(self) -> Iterator[Finding]:
        """Findings as they come; some take seconds."""
        settings = self._client.settings
        try:
            page = self._client.ask("GET", "/models")
            seconds = self._round_trips()
        except RequestFailure as failure:
            seen = f"{settings.base_url}: {failure.error_class}: {failure}"
            if failure.error_class in NO_MODEL_LIST and settings.model:
                yield from self._without_models(settings.model, seen)
                return
            mend = MENDS.get(failure.error_class, "look into the server's log")
            yield Finding("reachable", "fail", seen, mend)
            return
        yield Finding("reachable", "ok", f"{settings.base_url} answers")
        yield findings.of_round_trip(seconds)
        yield findings.of_clock(_date_of(page), wall_unix_s())
        found = self._find_model(page)
        yield found
        if found.level == "fail":
            return
        yield self._context()
        yield self._metrics()
        yield from self._tokenizer()
        yield from self._streams(page)

    def _without_models(self, model: str, seen: str) -> Iterator[Finding]:
        """A gateway may have no model list: whether it is one, the first request shows."""
        self._model = model
        mend = f"none if this is a gateway; {model!r} and its context length are not checked"
        yield Finding("reachable", "warn", f"no model list at {seen}", mend)
        yield self._metrics()
        yield from self._streams(Answer(200, {}, b""))

    def _round_trips(self) -> list[float]:
        seconds = []
        for _ in range(ROUND_TRIPS):
            start_ns = _CLOCK.now_ns()
            self._client.ask("GET", "/models")
            seconds.append((_CLOCK.now_ns() - start_ns) / NS_PER_S)
        return seconds

    def _find_model(self, page: Answer) -> Finding:
        configured = self._client.settings.model
        try:
            served = compare_models(configured, page.json())
        except RequestFailure as failure:
            return Finding("model", "fail", str(failure), "mend base_url: this is no API")
        self._model = served.model or ""
        self._max_model_len = served.max_model_len
        return findings.of_models(configured, served)

    def _context(self) -> Finding:
        limit, scenario = self._max_model_len, self._wishes.scenario
        if limit is None:
            mend = "vLLM tells max_model_len in /v1/models; ask the gateway to pass it"
            return Finding("context", "warn", "the server does not tell its context length", mend)
        fault = misfit(scenario, limit) if scenario is not None else None
        if fault is not None:
            return Finding("context", "fail", fault, "scale the contexts, or raise --max-model-len")
        fits = "; the scenario fits" if scenario is not None else ""
        return Finding("context", "ok", f"max_model_len {limit}{fits}")

    def _metrics(self) -> Finding:
        root = server_root(self._client.settings.base_url)
        url = self._wishes.metrics_url or f"{root}/metrics"
        try:
            answer = self._client.ask("GET", url)
        except RequestFailure as failure:
            return findings.of_metrics_page(None, f"{failure.error_class}: {failure}", url)
        return findings.of_metrics_page(answer.body.decode("utf-8", "replace"), "", url)

    def _tokenizer(self) -> Iterator[Finding]:
        """Only where the scenario sends the server's own ids."""
        scenario = self._wishes.scenario
        local = scenario is not None and scenario.tokenizer not in (None, SERVER)
        if scenario is None or scenario.wire != "token_ids" or local:
            return
        try:
            yield findings.of_tokenizer(cuts_are_safe(server_encoder(self._client, self._model)))
        except RequestFailure as failure:
            mend = "let the gateway pass /tokenize on, or set tokenizer in the scenario"
            seen = f"/tokenize: {failure.error_class}: {failure}"
            yield Finding("tokenizer", "fail", seen, mend)

    def _streams(self, page: Answer) -> Iterator[Finding]:
        request_id = f"doctor-{uuid.uuid4().hex[:12]}"
        text = self._text(600)
        result = self._ask(text, STREAM_TOKENS, request_id)
        yield findings.of_request(result)
        if result.status != "success":
            return
        self._learn(text, result)
        yield findings.of_streaming(result)
        yield findings.of_stamps(result, self._client.proxy)
        yield findings.of_usage(result)
        yield findings.of_cached_tokens(result)
        yield findings.of_chunk_tokens(result)
        yield findings.of_server_times(result)
        yield findings.of_request_id(result, request_id)
        yield findings.of_rate_limits(page.headers)
        yield self._prefix_cache()
        yield self._chunked_prefill()

    def _prefix_cache(self) -> Finding:
        text = self._text(self._chars_of(PREFIX_TOKENS))
        changed = "#" + text[1:]
        cold, again, other = (self._ask(t, 1) for t in (text, text, changed))
        return findings.of_prefix_cache(cold, again, other)

    def chunking(self) -> Chunking:
        """Only whether long prompts are taken in chunks; raises RequestFailure."""
        self._find_model(self._client.ask("GET", "/models"))
        text = self._text(600)
        self._learn(text, self._ask(text, 4))
        return chunking(*self._prompt_beside_a_stream())

    def _learn(self, text: str, answer: StreamResult) -> None:
        """What later prompts go by: characters per token, and how soon a stream begins."""
        if answer.status == "success" and answer.prompt_tokens:
            self._chars_per_token = max(1.0, len(text) / answer.prompt_tokens)
            start_ns = answer.send_start_ns or answer.call_start_ns
            self._small_ttft_s = (answer.chunk_ns[0] - start_ns) / NS_PER_S

    def _chunked_prefill(self) -> Finding:
        return findings.of_chunked_prefill(*self._prompt_beside_a_stream())

    def _prompt_beside_a_stream(self) -> tuple[StreamResult, StreamResult]:
        """The long prompt goes out when the neighbour decodes; both end before it is judged."""
        decoding, prompt = StreamResult(), StreamResult()
        text = self._text(self._chars_of(self._wishes.long_prompt_tokens))
        limit = self._max_model_len
        tokens = NEIGHBOUR_TOKENS if limit is None else min(NEIGHBOUR_TOKENS, limit // 4)
        neighbour = gevent.spawn(self._ask, self._text(200), tokens, "", decoding)
        with gevent.Timeout(NEIGHBOUR_WAIT_S, False):
            while not neighbour.ready() and decoding.http_status is None:
                gevent.sleep(0.002)
        gevent.sleep(min(NEIGHBOUR_STARTS_S, 3 * self._small_ttft_s))
        self._ask(text, 1, "", prompt)
        neighbour.join(timeout=1.0)
        neighbour.kill()
        return decoding, prompt

    def _chars_of(self, tokens: int) -> int:
        room = tokens if self._max_model_len is None else min(tokens, self._max_model_len // 2)
        return int(room * self._chars_per_token)

    def _text(self, chars: int) -> str:
        """Words in an order that no earlier prompt had."""
        words: list[str] = []
        length = 0
        while length < chars:
            words.append(f"{self._random.choice(_WORDS)}{self._random.randrange(1000)}")
            length += len(words[-1]) + 1
        return " ".join(words)[:chars]

    def _ask(
        self, text: str, tokens: int, request_id: str = "", into: StreamResult | None = None
    ) -> StreamResult:
        body = PromptBody({"model": self._model, "temperature": 0}, continuous_usage=True)
        body.add([Message("user", (text.encode(),))])
        body.set_turn({"max_tokens": tokens, "ignore_eos": True})
        request_id = request_id or f"doctor-{uuid.uuid4().hex[:12]}"
        return self._client.stream(body, request_id=request_id, into=into)


def _date_of(page: Answer) -> float | None:
    try:
        return parsedate_to_datetime(page.headers["date"]).timestamp()
    except (KeyError, ValueError):
        return None
