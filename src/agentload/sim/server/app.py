"""The ASGI application: vLLM's routes, and the simulator's own under `/sim`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import orjson

from agentload.clock import NS_PER_S, Clock, wall_unix_s
from agentload.sim.server import faults, http, page, protocol, tokens
from agentload.sim.server.errors import ApiError
from agentload.sim.server.exchange import Exchange
from agentload.sim.server.faults import Fault, FaultPlan
from agentload.sim.server.generation import Generator
from agentload.sim.server.http import Call, ClientGoneError
from agentload.sim.server.injection import inject
from agentload.sim.server.live import LiveEngine
from agentload.sim.server.metrics import VllmMetrics
from agentload.sim.server.request_log import RequestLog
from agentload.sim.server.response import Response, Send
from agentload.sim.server.settings import Settings

Route = Callable[[Call], None]
_GUARDED: Final = ("/v1", "/v2", "/inference", "/sim")
_UNCOUNTED: Final = {"/metrics", "/health", "/load", "/ping", "/version", "/server_info"}
_GENERATION: Final = {"/v1/chat/completions", "/v1/completions"}


class App:
    """Routes of one server. `restart` replaces the process."""

    def __init__(
        self, settings: Settings, live: LiveEngine, generator: Generator, metrics: VllmMetrics,
        http_metrics: page.HttpMetrics, whole_page: page.Page, log: RequestLog | None,
        clock: Clock, restart: Callable[[], None],
    ) -> None:  # fmt: skip
        self._settings = settings
        self._live = live
        self._generator = generator
        self._metrics = metrics
        self._http = http_metrics
        self._page = whole_page
        self._log = log
        self._clock = clock
        self._restart = restart
        self._faults = FaultPlan(settings.faults)
        self._answering = 0
        self._routes: dict[str, dict[str, Route]] = {
            "/health": {"GET": self._health},
            "/ping": {"GET": self._health, "POST": self._health},
            "/load": {"GET": self._load},
            "/version": {"GET": self._version},
            "/metrics": {"GET": self._metrics_page},
            "/v1/models": {"GET": self._models},
            "/tokenize": {"POST": self._tokenize},
            "/detokenize": {"POST": self._detokenize},
            "/reset_prefix_cache": {"POST": self._reset_prefix_cache},
            "/sim/faults": {"GET": self._show_faults, "POST": self._set_faults},
            "/sim/restart": {"POST": self._restart_now},
        }

    async def asgi(self, scope: dict[str, Any], receive: http.Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']} is not served")
        start_ns = self._clock.now_ns()
        call = Call(scope, receive, Response(send), self._clock)
        try:
            await call.read_body()
            await self._answer(call)
        except ClientGoneError:
            return
        if call.path not in _UNCOUNTED:
            self._count(call, start_ns)

    def _count(self, call: Call, start_ns: int) -> None:
        known = call.path in self._routes or call.path in _GENERATION
        seconds = (self._clock.now_ns() - start_ns) / NS_PER_S
        status, sent = call.response.status or 500, call.response.body_bytes or 0
        handler = call.path if known else "none"
        self._http.observe(handler, call.method, status, seconds, len(call.body), sent)

    async def _answer(self, call: Call) -> None:
        call.extra = call.extra_headers(self._settings.enable_request_id_headers)
        if not self._allowed(call):
            # vLLM refuses before the layer that adds `vary`.
            extra = [header for header in call.extra if header[0] != b"vary"]
            http.json_answer(call, {"error": "Unauthorized"}, extra, 401)
        elif call.path in _GENERATION:
            if call.method == "POST":
                await self._generate(call)
            else:
                self._not_allowed(call, ["POST"])
        elif call.path not in self._routes:
            http.json_answer(call, {"detail": "Not Found"}, call.extra, 404)
        elif call.method not in self._routes[call.path]:
            self._not_allowed(call, list(self._routes[call.path]))
        else:
            try:
                self._routes[call.path][call.method](call)
            except ApiError as error:
                http.error_answer(call, error, call.extra)

    def _allowed(self, call: Call) -> bool:
        key = self._settings.api_key
        if key is None or not call.path.startswith(_GUARDED):
            return True
        return call.headers.get(b"authorization") == f"Bearer {key}"

    @staticmethod
    def _not_allowed(call: Call, methods: list[str]) -> None:
        body = orjson.dumps({"detail": "Method Not Allowed"})
        allow = (b"allow", ", ".join(methods).encode())
        headers = [
            allow,
            (b"content-length", b"%d" % len(body)),
            (b"content-type", b"application/json"),
        ]
        call.response.start(405, [*headers, *call.extra], len(body))
        call.response.end(body)

    # -- generation -----------------------------------------------------------------------------

    async def _generate(self, call: Call) -> None:
        hit = self._faults.next_request()
        if any(fault.kind == "restart" for fault in hit):
            self._restart()
        make = (
            self._generator.chat
            if call.path.endswith("chat/completions")
            else self._generator.completion
        )
        try:
            exchange = inject(call, hit, lambda: make(call, hit, call.extra, self._ended(hit)))
        except ApiError as error:
            if error.status == 503:
                self._metrics.rejected()
            http.error_answer(call, error, call.extra)
            return
        if exchange is None:
            return
        self._answering += 1
        interval_s = self._settings.sse_keep_alive_interval
        if interval_s is not None:
            exchange.keep_alive(interval_s)
        try:
            await call.over()
        finally:
            exchange.give_up("aborted")
            exchange.choices.clear()  # they refer back to it and hold prompts: no waiting for gc
            self._answering -= 1

    def _ended(self, hit: list[Fault]) -> Callable[[Exchange, str], None]:
        kinds = [fault.spec for fault in hit]

        def ended(exchange: Exchange, outcome: str) -> None:
            if outcome == "finished":
                most = max(choice.generated for choice in exchange.choices)
                self._metrics.response_finished(len(exchange.choices), most)
            elif outcome == "refused":
                self._metrics.rejected()
            for choice in exchange.choices:
                self._live.abort(choice)
            if self._log is not None:
                self._log.write(exchange, outcome, kinds)

        return ended

    # -- the side endpoints ---------------------------------------------------------------------

    def _health(self, call: Call) -> None:
        call.response.whole(200, b"", call.extra, None)

    def _load(self, call: Call) -> None:
        tracked = self._answering if self._settings.enable_server_load_tracking else 0
        http.json_answer(call, {"server_load": tracked}, call.extra)

    def _version(self, call: Call) -> None:
        http.json_answer(call, {"version": self._settings.vllm_version}, call.extra)

    def _metrics_page(self, call: Call) -> None:
        text = self._page.render(self._live.current())
        call.response.whole(200, text, call.extra, page.CONTENT_TYPE)

    def _models(self, call: Call) -> None:
        now = int(wall_unix_s())
        permission = {
            "id": "modelperm-agentload", "object": "model_permission", "created": now,
            "allow_create_engine": False, "allow_sampling": True, "allow_logprobs": True,
            "allow_search_indices": False, "allow_view": True, "allow_fine_tuning": False,
            "organization": "*", "group": None, "is_blocking": False,
        }  # fmt: skip
        models = [
            {
                "id": name, "object": "model", "created": now, "owned_by": "vllm",
                "root": self._settings.model_profile, "parent": None,
                "max_model_len": self._settings.engine.max_model_len, "permission": [permission],
            }
            for name in self._settings.served_model_names
        ]  # fmt: skip
        http.json_answer(call, {"object": "list", "data": models}, call.extra)

    def _tokenize(self, call: Call) -> None:
        body = protocol.parse(protocol.TokenizeBody, call.body)
        self._generator.check_model(body.model)
        if body.messages is not None:
            words = protocol.chat_words(body)
        else:
            words = tokens.encode_text(body.prompt or "")
        data = {
            "count": tokens.count(words),
            "max_model_len": self._settings.engine.max_model_len,
            "tokens": tokens.ids(words),
            "token_strs": tokens.strings(words) if body.return_token_strs else None,
        }
        http.json_answer(call, data, call.extra)

    def _detokenize(self, call: Call) -> None:
        body = protocol.parse(protocol.DetokenizeBody, call.body)
        self._generator.check_model(body.model)
        try:
            words = tokens.encode_ids(body.tokens)
        except tokens.TokenIdError as error:
            raise ApiError(400, str(error)) from None
        http.json_answer(call, {"prompt": tokens.decode(words)}, call.extra)

    def _reset_prefix_cache(self, call: Call) -> None:
        if not self._live.reset_prefix_cache():
            message = "The prefix cache was not reset: requests are running."
            raise ApiError(503, message, "Service Unavailable")
        call.response.whole(200, b"", call.extra, None)

    # -- the simulator's own --------------------------------------------------------------------

    def _show_faults(self, call: Call) -> None:
        http.json_answer(call, {"faults": self._faults.specs}, call.extra)

    def _set_faults(self, call: Call) -> None:
        body = protocol.parse(protocol.FaultsBody, call.body)
        try:
            self._faults = FaultPlan([faults.parse(spec) for spec in body.faults])
        except faults.FaultError as error:
            raise ApiError(400, str(error), param="faults") from None
        self._show_faults(call)

    def _restart_now(self, call: Call) -> None:
        http.json_answer(call, {"restarting": True}, call.extra)
        asyncio.get_running_loop().call_later(0.05, self._restart)
