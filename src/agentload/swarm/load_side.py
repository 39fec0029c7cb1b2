"""The part of a load-generating process that outlives a run: text, samplers, the current run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import gevent

from agentload.client.result import StreamResult
from agentload.client.tokenizers import NoTokenizerError
from agentload.client.transport import prepare_process
from agentload.clock import Clock
from agentload.recording.health import SAMPLE_EVERY_S
from agentload.recording.recorder import Recorder
from agentload.swarm import current
from agentload.swarm.load_run import LoadRun
from agentload.swarm.open_load import InterferingPrompts
from agentload.swarm.spans import span_writer
from agentload.swarm.spec import RunSpec
from agentload.swarm.target import deadlines_of, target_settings
from agentload.swarm.texts import Texts
from agentload.swarm.user import report_request
from agentload.workload.basis import basis
from agentload.workload.traces.record import TraceError
from agentload.workload.traces.replay import Replay
from agentload.workload.turn import Turn

logger = logging.getLogger(__name__)


class TextsDifferError(Exception):
    """This process cannot make the sessions that the others make."""


class LoadSide:
    """Starts and ends the runs of one process."""

    def __init__(self, environment: Any, texts: Texts, clock: Clock) -> None:
        self.run: LoadRun | None = None
        self._environment = environment
        self._clock = clock
        self._samplers: list[Any] = []
        self._interference: InterferingPrompts | None = None
        self._texts = texts

    def start(
        self,
        spec: RunSpec,
        recorder: Recorder,
        env: Mapping[str, str],
        client_id: str,
        clock_offset_ns: Callable[[], int],
        rows_queued: Callable[[], int],
    ) -> LoadRun:
        """Begin to load; users that Locust starts from now on find the run.

        Raises SettingsError, or TextsDifferError when sessions would not be those of the others.
        """
        corpus = self._texts.get()
        if corpus.fingerprint != spec.corpus_fingerprint:
            raise TextsDifferError(
                "its Python library differs from the master's, so its sessions would have other "
                "text: use the same interpreter everywhere"
            )
        replay = self._replay(spec)
        options = self._environment.parsed_options
        settings, sources = target_settings(options, spec.base_url, env)
        deadlines = deadlines_of(spec.scenario(), settings, sources)
        run = LoadRun(
            spec, settings, corpus, recorder, self._clock, client_id, clock_offset_ns, deadlines,
            replay,
        )  # fmt: skip
        try:
            run.check_tokenizer()
        except NoTokenizerError as error:
            raise TextsDifferError(str(error)) from None
        gevent.get_hub().threadpool.apply(
            basis,
            (run.scenario, corpus, spec.chars_per_token, spec.max_model_len, spec.run_salt),
        )
        run.on_row = span_writer(run)
        prepare_process(settings)
        self.run = run
        self._samplers = [
            gevent.spawn(self._sample_lag, run),
            gevent.spawn(self._sample_seconds, run, rows_queued),
        ]
        self._interference = InterferingPrompts(run, self._report)
        current.begin(run)
        return run

    def _replay(self, spec: RunSpec) -> Replay | None:
        """The trace of the run as it is on this machine, which must be the owner's."""
        try:
            replay = self._texts.replay(spec.scenario())
        except TraceError as error:
            raise TextsDifferError(
                f"{error}; the session file has to be at this path for every worker"
            ) from None
        if replay is not None and replay.fingerprint != spec.trace_fingerprint:
            raise TextsDifferError(
                "its session file (trace.file) differs from the master's: copy the same file to"
                " every worker"
            )
        return replay

    def stopping(self) -> None:
        """The run is about to stop: nobody waits for the end of the warm-up any more."""
        if self.run is not None:
            self.run.stop()

    def finish(self) -> None:
        """All users are gone; nothing is recorded after this."""
        if self._interference is not None:
            self._interference.close()
            self._interference = None
        current.end()
        gevent.killall(self._samplers)
        self._samplers = []

    def _report(self, turn: Turn, result: StreamResult) -> None:
        report_request(self._environment, turn, result)

    def _sample_lag(self, run: LoadRun) -> None:
        while True:
            run.lag.sleeping(self._clock.now_ns())
            gevent.sleep(SAMPLE_EVERY_S)
            run.lag.woke(self._clock.now_ns())

    def _sample_seconds(self, run: LoadRun, rows_queued: Callable[[], int]) -> None:
        while True:
            gevent.sleep(1.0)
            try:
                run.sample_second(self._environment.runner.user_count, rows_queued())
            except Exception:
                run.counters.listener_errors += 1
                logger.exception("the load generator's own figures could not be recorded")
