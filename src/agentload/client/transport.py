"""The measuring client: the openai SDK over sockets that the gevent hub reads."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any, Literal

import gevent
import httpx2
import openai
import orjson

from agentload.client import errors
from agentload.client.answer import MAX_NAME_CHARS
from agentload.client.body import PromptBody, dumps
from agentload.client.connection import IdleConnections
from agentload.client.deadlines import Deadlines
from agentload.client.errors import RequestFailure
from agentload.client.exchange import Exchange
from agentload.client.hub_transport import CURRENT, Call, close
from agentload.client.measure import measure
from agentload.client.parsing_turn import PARSING
from agentload.client.proxied import ProxiedExchange
from agentload.client.reader import TICK_S, HubReader
from agentload.client.result import StreamResult
from agentload.client.sdk import NO_KEY, shared_sdk
from agentload.client.settings import TargetSettings
from agentload.clock import NS_PER_S, MonotonicClock, realtime_offset_ns, wall_unix_s

_CLOCK = MonotonicClock()


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that is no stream."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body's JSON. Raises `RequestFailure` when it is none."""
        try:
            return orjson.loads(self.body)
        except ValueError:
            start = self.body[:80].decode("utf-8", "replace")
            raise RequestFailure("not_json", f"the answer is no JSON: {start}") from None


@cache
def default_reader() -> HubReader:
    """The reader all clients of the process share."""
    return HubReader()


def prepare_process(settings: TargetSettings) -> None:
    """Do what is slow once, before the clock of a run starts: lazy imports, the first client.

    Ends with a garbage collection whose survivors are never looked at again (a full collection
    with locust and openai loaded stops everything for 150 ms).
    """
    shared_sdk(settings, default_reader())
    with httpx2.Client(transport=httpx2.MockTransport(lambda _: httpx2.Response(200))) as nowhere:
        sdk = openai.OpenAI(
            base_url=settings.base_url, api_key=NO_KEY, max_retries=0, http_client=nowhere
        )
        post: Any = sdk.post
        post("/warm-up", cast_to=httpx2.Response, content=[b"{}"], stream=True).close()
    gc.collect()
    gc.freeze()


class Client:
    """One user of a target: shares the process's SDK client, keeps its own connections.

    Its connections are never shared with another user, as those of a real agent are not.
    """

    def __init__(self, settings: TargetSettings, reader: HubReader | None = None) -> None:
        self.settings = settings
        self._sdk = shared_sdk(settings, reader or default_reader())
        self._idle = IdleConnections(settings.keepalive_expiry_s, _CLOCK)
        self._deadlines = Deadlines.of(settings)
        self._secrets = settings.secrets()
        self._close_gaps = False

    def stream(
        self,
        body: PromptBody,
        *,
        request_id: str,
        headers: Mapping[str, str] | None = None,
        deadlines: Deadlines | None = None,
        cancel_after_first_token_s: float | None = None,
        into: StreamResult | None = None,
    ) -> StreamResult:
        """Send `body` and follow its stream to the end; blocks the calling greenlet only.

        Every failure is a result with its `error_class`. `cancel_after_first_token_s` is the
        human who interrupts: status `aborted`, class `aborted_by_user`. When the greenlet is
        killed meanwhile, `into` holds what was measured so far (`aborted`,
        `aborted_by_test_end`) as the exception goes on.
        """
        result = into if into is not None else StreamResult()
        limits = deadlines or self._deadlines
        if cancel_after_first_token_s is not None:
            limits = replace(limits, cancel_after_first_token_s=cancel_after_first_token_s)
        call = Call(limits, self._idle, self._close_gaps)
        result.call_start_ns = _CLOCK.now_ns()
        offset_ns = realtime_offset_ns()
        try:
            with self._response(body, request_id, headers or {}, call, result) as response:
                exchange = self._follow(call, response, result)
            with PARSING:
                offsets_ns = (offset_ns, realtime_offset_ns())
                measure(exchange, result, offsets_ns, PARSING.pause)
            if result.http_status != 200 and result.status == "error":
                result.error_class = _class_of_odd_success(result)
        except (openai.APIError, httpx2.HTTPError, RequestFailure) as error:
            self._failed(error, call, result)
        except BaseException:
            self._killed(call, result, offset_ns)
            raise
        if result.error_text is not None:
            result.error_text = errors.scrub(result.error_text, self._secrets)
        self._close_gaps = _has_close_gaps(result)
        return result

    def ask(
        self,
        method: Literal["GET", "POST"],
        url: str,
        body: object = None,
        deadlines: Deadlines | None = None,
    ) -> Answer:
        """One small request, a path below the base URL or a whole address; blocks like `stream`.

        Raises `RequestFailure` when no answer came or its status is no success.
        """
        call = Call(deadlines or self._deadlines, self._idle)
        token = CURRENT.set(call)
        request: Any = self._sdk.client.post if method == "POST" else self._sdk.client.get
        content = {} if method == "GET" else {"content": dumps(body)}
        headers = {"content-type": "application/json", **self._sdk.headers}
        try:
            response: httpx2.Response = request(
                url, cast_to=httpx2.Response, options={"headers": headers}, **content
            )
        except (openai.APIError, httpx2.HTTPError) as error:
            result = StreamResult()
            self._failed(error, call, result)
            text = errors.scrub(result.error_text or "", self._secrets)
            raise RequestFailure(result.error_class or "", text) from None
        except BaseException:  # the greenlet is killed
            if call.exchange is not None:
                close(call.exchange, None)
            raise
        finally:
            CURRENT.reset(token)
        return Answer(response.status_code, dict(response.headers), response.content)

    @property
    def proxy(self) -> str | None:
        """The proxy that requests go through; None is straight to the target."""
        return self._sdk.proxy

    def close(self) -> None:
        """Close the idle connections."""
        self._idle.close()

    @contextmanager
    def _response(
        self,
        body: PromptBody,
        request_id: str,
        headers: Mapping[str, str],
        call: Call,
        result: StreamResult,
    ) -> Iterator[httpx2.Response]:
        sent_headers = {
            "content-type": "application/json",
            "content-length": str(body.size),
            "accept": "text/event-stream",
            "x-request-id": request_id,
            **self._sdk.headers,
            **headers,
        }
        content: Any = body.buffers()  # memoryviews pass through the SDK untouched
        post: Any = self._sdk.client.post
        token = CURRENT.set(call)
        try:
            result.send_start_ns = _CLOCK.now_ns()
            with self._proxys_deadline(call.deadlines):
                response: httpx2.Response = post(
                    body.path,
                    cast_to=httpx2.Response,
                    content=content,
                    options={"headers": sent_headers},
                    stream=True,
                )
        finally:
            CURRENT.reset(token)
            _copy_instants(call.exchange, result)
        try:
            yield response
        finally:
            response.close()

    def _proxys_deadline(self, deadlines: Deadlines) -> AbstractContextManager[object]:
        """The first token's deadline where no `Exchange` keeps it: until the headers come."""
        if self._sdk.proxy is None:
            return nullcontext()
        seconds = min(deadlines.first_token_s, deadlines.total_s)
        late = RequestFailure("timeout_first_token", "no answer came through the proxy")
        return gevent.Timeout(seconds, late)  # type: ignore[no-any-return]

    def _follow(
        self, call: Call, response: httpx2.Response, result: StreamResult
    ) -> Exchange | ProxiedExchange:
        result.http_status = response.status_code
        names = self.settings.replica_headers
        said = next((response.headers[n] for n in names if n in response.headers), None)
        result.replica = said and said[:MAX_NAME_CHARS]
        if call.exchange is None:
            return ProxiedExchange(response, call.deadlines, result.send_start_ns or 0, _CLOCK)
        call.exchange.wait_end()
        return call.exchange

    def _failed(self, error: Exception, call: Call, result: StreamResult) -> None:
        result.status = "error"
        exchange = call.exchange
        result.end_ns = _CLOCK.now_ns() if exchange is None else exchange.end_ns or _CLOCK.now_ns()
        if isinstance(error, openai.APIStatusError):
            response = error.response
            _refused(result, response.status_code, response.headers, response.text)
        elif exchange is not None and exchange.status >= 300:  # its body broke; its head says it
            _refused(result, exchange.status, dict(exchange.headers), str(error))
        else:
            result.error_class = errors.of_exception(error)
            result.error_text = str(error.__cause__ or error)

    def _killed(self, call: Call, result: StreamResult, offset_ns: int) -> None:
        exchange = call.exchange
        if exchange is not None:
            close(exchange, None)
            _copy_instants(exchange, result)
            # From the start, should the kill have come in the middle of the parsing.
            result.chunk_ns.clear()
            result.merged.clear()
            result.merged_reads = result.late_merged = 0
            result.flags, result.end_ns = (), None
            measure(exchange, result, (offset_ns, realtime_offset_ns()))
        result.status = "aborted"
        result.error_class = "aborted_by_test_end"
        result.error_text = None
        result.end_ns = _CLOCK.now_ns() if result.end_ns is None else result.end_ns


def _copy_instants(exchange: Exchange | None, result: StreamResult) -> None:
    if exchange is not None:
        result.send_start_ns = exchange.send_start_ns
        result.send_end_ns = exchange.send_end_ns


def _class_of_odd_success(result: StreamResult) -> str | None:
    """204, 206 and the like: what was no stream has the class of its status."""
    no_stream = ("stream_cut", "empty_response", "not_a_stream")
    if result.error_class in no_stream and not result.chunk_ns:
        return f"http_{result.http_status}"
    return result.error_class


def _refused(result: StreamResult, status: int, headers: Mapping[str, str], message: str) -> None:
    result.http_status = status
    result.error_class = errors.of_status(status, message)
    result.retry_after_s = errors.retry_after_s(headers, datetime.fromtimestamp(wall_unix_s(), UTC))
    result.error_text = f"HTTP {status} {message}"


def _has_close_gaps(result: StreamResult) -> bool:
    stamps = result.chunk_ns
    if len(stamps) < 8:
        return False
    return median(b - a for a, b in pairwise(stamps)) < 4 * TICK_S * NS_PER_S
