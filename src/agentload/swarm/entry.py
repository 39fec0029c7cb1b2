"""What a locustfile imports: the user class, hung on Locust's events together with the recorder."""

from __future__ import annotations

import locust  # isort: skip - gevent has to patch ssl and sockets before anything imports them

import logging
import os
import signal
import sys
from typing import Any

import gevent
from locust.exception import StopTest
from locust.runners import MasterRunner, WorkerRunner

from agentload.client.settings import SettingsError
from agentload.clock import Clock, MonotonicClock
from agentload.swarm.dispatch import settle_users
from agentload.swarm.live.views import show_live
from agentload.swarm.load_side import LoadSide
from agentload.swarm.open_port import open_port_carefully, outlive_messages
from agentload.swarm.options import add_options
from agentload.swarm.owner_side import EXIT_INPUT, OwnerSide
from agentload.swarm.plan import Flags, InputError
from agentload.swarm.remote_workers import RemoteWorkers
from agentload.swarm.shape import StageShape
from agentload.swarm.target import target_settings
from agentload.swarm.texts import Texts
from agentload.swarm.user import CodingAgent
from agentload.swarm.web.pages import add_pages
from agentload.swarm.web_check import refuse_in_form
from agentload.swarm.web_login import protect
from agentload.swarm.worker_side import WorkerSide
from agentload.swarm.workers import OwnProcess, Workers

__all__ = ["CodingAgent"]

logger = logging.getLogger(__name__)
BY_SIGNAL = "signal"


def _on_init(environment: Any, runner: Any, web_ui: Any = None, **_: Any) -> None:
    hub = gevent.get_hub()
    hub.NOT_ERROR = (*hub.NOT_ERROR, StopTest)  # Locust logs why; a traceback would bury it
    clock = MonotonicClock()
    if isinstance(runner, WorkerRunner):
        worker = WorkerSide(environment, runner, clock)
        _listen(environment, worker)
        _outlast_a_lost_master(runner, worker)
        return
    if web_ui is not None:
        protect(web_ui)
    owner = _make_owner(environment, runner, clock)
    show_live(environment)
    _listen(environment, owner)
    if web_ui is not None:
        add_pages(web_ui, environment, owner)
    if environment.parsed_options.headless:
        gevent.signal_handler(signal.SIGTERM, _end_headless, owner, runner)
    if environment.parsed_options.headless or environment.parsed_options.autostart:
        _examine_or_exit(owner, runner)
    elif web_ui is not None:
        refuse_in_form(web_ui.app, environment, owner)


def _listen(environment: Any, side: Any) -> None:
    events = environment.events
    events.test_start.add_listener(side.on_test_start)
    events.test_stopping.add_listener(side.on_test_stopping)
    events.test_stop.add_listener(side.on_test_stop)
    # Locust fires this one in reverse: ours comes before the runner's own, which says goodbye.
    events.quitting.add_listener(side.on_quitting)


def _make_owner(environment: Any, runner: Any, clock: Clock) -> OwnerSide:
    options = environment.parsed_options
    flags = Flags(options.num_users, options.spawn_rate, options.run_time)
    options.run_time = None  # the stages end the run; Locust's own timer would count the warm-up
    workers: Workers
    texts = Texts()
    if isinstance(runner, MasterRunner):
        workers = RemoteWorkers(environment, runner, clock)
    else:
        options.record_on = "master"  # this process is both
        workers = OwnProcess(runner, LoadSide(environment, texts, clock))
    owner = OwnerSide(environment, workers, texts, flags, clock)
    if isinstance(runner, MasterRunner):
        settle_users(environment, runner)
        outlive_messages(runner)
        _quit_after_the_last_row(runner, owner)
    environment.shape_class = StageShape(owner.next_step, use_common_options=flags.given)
    if not environment.host:
        environment.host = owner.shown_host = _base_url(options)
    return owner


def _base_url(options: Any) -> str | None:
    """What the web page shows as host when no --host was given; a fault in it is told later."""
    try:
        return target_settings(options, None, os.environ)[0].base_url
    except SettingsError:
        return None


def _quit_after_the_last_row(runner: Any, owner: OwnerSide) -> None:
    """Locust's master leaves 0.5 s after it told its workers to quit, while they still stream:
    a third of the results was lost. So it stops them first and waits for what they have."""
    locust_quit = runner.quit

    def quit_in_order() -> None:
        owner.stop(BY_SIGNAL)
        locust_quit()

    runner.quit = quit_in_order


def _outlast_a_lost_master(runner: Any, worker: WorkerSide) -> None:
    """Locust's worker leaves when it heard nothing of its master for a minute, with all it has.
    So it stops its users first, then tries to deliver for a while: a cut may heal."""
    locust_quit = runner.quit

    def quit_in_order() -> None:
        worker.end_orphaned()
        locust_quit()

    runner.quit = quit_in_order


def _end_headless(owner: OwnerSide, runner: Any) -> None:
    """SIGTERM in a headless run: Locust listens to it only after the last stage."""
    logger.info("Got SIGTERM signal")
    owner.stop(BY_SIGNAL)
    runner.quit()


def _examine_or_exit(owner: OwnerSide, runner: Any) -> None:
    """Without anybody at a web page, a fault in what was given ends the process here."""
    try:
        owner.examine()
    except InputError as error:
        sys.stderr.write(f"agentload: {error}\n")
        runner.quit()
        sys.exit(EXIT_INPUT)


open_port_carefully()
logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line for each request otherwise
locust.events.init_command_line_parser.add_listener(add_options)  # type: ignore[no-untyped-call]
locust.events.init.add_listener(_on_init)  # type: ignore[no-untyped-call]
