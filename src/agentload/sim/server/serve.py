"""Puts a server together, runs it until a signal comes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import orjson
import uvicorn
import uvloop

from agentload.clock import MonotonicClock, wall_unix_s
from agentload.sim.core import Frontend
from agentload.sim.server import stats_log
from agentload.sim.server.app import App
from agentload.sim.server.command_line import SettingsError
from agentload.sim.server.generation import Generator
from agentload.sim.server.live import LiveEngine
from agentload.sim.server.metrics import VllmMetrics
from agentload.sim.server.page import HttpMetrics, Page, TimeKeeping
from agentload.sim.server.prefix import PrefixTree
from agentload.sim.server.request_log import RequestLog
from agentload.sim.server.settings import Settings, read
from agentload.sim.server.stats_log import StatsLog

_LOG_FORMAT: Final = (
    "(APIServer pid=%(process)d) %(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s"
)
_MODULE: Final = "agentload.sim.server"
_KEEP_ALIVE_S: Final = 5  # as vLLM


logger = logging.getLogger("agentload.sim")


def main(argv: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Serve until SIGTERM or SIGINT; the exit code. Ready is one JSON line on stdout."""
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, datefmt="%m-%d %H:%M:%S")
    try:
        settings = read(argv, environment)
        listener = _listen(settings)
    except (SettingsError, OSError) as error:
        print(f"agentload sim: error: {error}", file=sys.stderr)
        return 2
    stats_log.log_start(settings)
    again = [*argv, "--port", str(listener.getsockname()[1])]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, listener, again))


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        raise OSError(f"cannot listen on {settings.host}:{settings.port}: {error}") from None
    return listener


async def _serve(settings: Settings, listener: socket.socket, again: Sequence[str]) -> int:
    app, log = _assemble(settings, again)
    config = uvicorn.Config(
        app.asgi,
        interface="asgi3",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=logging.WARNING,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    server = _Server(config, settings)
    gc.collect()
    gc.freeze()  # a collection while serving need not walk what start-up made
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(server.fail)
    telling = asyncio.create_task(log.run())
    await server.serve(sockets=[listener])
    telling.cancel()
    return server.exit_code


def _assemble(settings: Settings, again: Sequence[str]) -> tuple[App, StatsLog]:
    clock = MonotonicClock()
    created_unix_s = wall_unix_s()
    engine = settings.engine
    metrics = VllmMetrics(
        settings.served_model_names[0], engine.max_model_len, settings.speed, created_unix_s
    )
    keeping = TimeKeeping(created_unix_s, settings.described())
    frontend = Frontend(
        settings.tokenizer_base_s, settings.tokenizer_per_token_s, settings.tokenizer_workers
    )
    live = LiveEngine(
        engine, settings.cost_file.step_cost(), frontend, metrics, keeping.delivered, clock,
        speed=settings.speed, most_waiting=settings.max_num_queued_reqs,
    )  # fmt: skip
    caching = engine.enable_prefix_caching
    tree = PrefixTree(live.split_node, engine.num_blocks) if caching else None
    http_metrics = HttpMetrics(created_unix_s)
    app = App(
        settings,
        live,
        Generator(settings, live, tree),
        metrics,
        http_metrics,
        Page(metrics, settings.cache_config(), http_metrics, keeping, created_unix_s),
        None if settings.request_log is None else RequestLog(settings.request_log, live),
        clock,
        lambda: _restart(again),
    )
    return app, StatsLog(live, metrics, keeping, clock)


def _restart(again: Sequence[str]) -> None:
    """Become a new server on the same port: all streams are cut, all counters start at 0."""
    logger.warning("Restarting on purpose")
    os.execv(sys.executable, [sys.executable, "-m", _MODULE, *again])


class _Server(uvicorn.Server):
    """uvicorn, with an exit code of 0 after a signal, without waiting for streams to end."""

    def __init__(self, config: uvicorn.Config, settings: Settings) -> None:
        super().__init__(config)
        self.exit_code = 0
        self._settings = settings

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        assert sockets is not None
        host, port = self._settings.host, sockets[0].getsockname()[1]
        shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
        ready = {
            "event": "ready",
            "url": f"http://{shown}:{port}",
            "port": port,
            "pid": os.getpid(),
            "model": self._settings.served_model_names[0],
            "speed": self._settings.speed,
        }
        print(orjson.dumps(ready).decode(), flush=True)

    def fail(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """A fault of the simulator itself: a server that goes on would answer with lies."""
        error = context.get("exception")
        logger.critical("%s", context.get("message"), exc_info=error)  # type: ignore[arg-type]
        self.exit_code = 1
        self._stop()

    def _stop(self) -> None:
        # Streams are cut; uvicorn would log each as an error of the application.
        logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
        self.should_exit = self.force_exit = True
