"""Locust's events as the owner of runs sees them: on the master, or in a single process."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gevent
from gevent.event import Event
from locust.exception import StopTest

from agentload.clock import Clock
from agentload.recording.recorder import RunFolderError
from agentload.recording.verdict import STOOD_STILL_S
from agentload.swarm.examine import Found, examine
from agentload.swarm.live.board import LiveBoard
from agentload.swarm.owner import BY_PLAN, Ending, OwnedRun
from agentload.swarm.plan import Flags, InputError, Wishes, read_wishes
from agentload.swarm.spec import SPEC_ATTRIBUTE
from agentload.swarm.stages import Step
from agentload.swarm.texts import Texts
from agentload.swarm.workers import Workers
from agentload.workload.traces.record import TraceError

logger = logging.getLogger(__name__)

EXIT_INPUT = 2
EXIT_INVALID = 3
LOOK_EVERY_S = 0.2


class OwnerSide:
    """Makes a run of each start, watches it, ends it. At most one run goes on at a time."""

    def __init__(
        self, environment: Any, workers: Workers, texts: Texts, flags: Flags, clock: Clock
    ) -> None:
        self.finished = Event()
        self.shown_host: str | None = None  # of the web page, where no --host was given
        self._environment = environment
        self._workers = workers
        self._texts = texts
        self._flags = flags
        self._clock = clock
        self._examined: tuple[Wishes, Found] | None = None
        self._run: OwnedRun | None = None
        self._watcher: Any = None
        self._ended_by: str | None = None
        self._board = LiveBoard(environment.runner, workers)
        self.finished.set()

    # -- before a run -----------------------------------------------------------------------

    def examine(self) -> None:
        """Read what is wished and look at the target; raises InputError."""
        wishes = self._read_wishes()
        try:
            replay = self._texts.replay(wishes.scenario)
        except TraceError as error:
            raise InputError(str(error)) from None
        fingerprint = None if replay is None else replay.fingerprint
        found = examine(wishes, self._texts.get(), fingerprint)
        wishes = wishes.at_pace(found.target["sim_speed"])
        warning = self._texts.length_warning(wishes, found, replay)
        if warning is not None:
            logger.warning("agentload: %s", warning)
            found = replace(found, warnings=(*found.warnings, warning))
        self._examined = wishes, found

    def check(self) -> None:
        """Raise InputError when nobody is there to load."""
        self._workers.check()

    @property
    def flags_given(self) -> bool:
        """Whether the command line set the scenario's stages aside."""
        return self._flags.given

    def _read_wishes(self) -> Wishes:
        options = self._environment.parsed_options
        flags = self._flags
        if flags.given:  # the form of the web page may have changed them
            run_time_s = options.run_time or flags.run_time_s
            flags = Flags(options.num_users, options.spawn_rate, run_time_s)
        host = self._environment.host
        return read_wishes(options, None if host == self.shown_host else host, os.environ, flags)

    def next_step(self) -> Step | None:
        """What Locust should run now; None when the plan is over. For the shape."""
        if self._run is not None:
            step = self._run.step()
            if step is None:
                self._ended_by = BY_PLAN
                self._workers.end_measuring(self._run)
            return step
        try:
            self._workers.check()
            if self._examined is None:
                self.examine()
        except InputError as error:
            self._refuse(str(error))
        if self._examined is None:
            raise StopTest("nothing was examined")
        return self._examined[0].first_step()

    def _refuse(self, text: str) -> None:
        """Say why no run begins, and end Locust's start of it."""
        logger.error("agentload: %s", text)
        self._set_exit_code(EXIT_INPUT)
        raise StopTest(f"no run was started: {text}")

    # -- Locust's events --------------------------------------------------------------------

    def on_test_start(self, **_: Any) -> None:
        """Make the run folder, tell the workers, begin to load."""
        try:
            if self._examined is None:
                self.examine()
            if self._examined is None:
                raise InputError("nothing was examined")
            wishes, found = self._examined
            self._examined = None
            options = self._environment.parsed_options
            run = OwnedRun(options, wishes, found, self._workers.client_ids(), self._clock)
        except (InputError, RunFolderError) as error:
            self._refuse(str(error))
            return
        logger.info("agentload: run folder %s", run.folder)
        for warning in found.warnings:
            run.event("warning", warning)
        self._ended_by = None
        self.finished.clear()
        self._workers.begin(run)
        self._run = run
        self._tell()
        self._board.begin(run)
        self._workers.load()
        self._look(run)
        self._watcher = gevent.spawn(self._look_forever, run)

    def on_test_stopping(self, **_: Any) -> None:
        """From here on workers leave because they are told to."""
        if self._watcher is not None:
            self._watcher.kill(block=False)  # Locust must not go on meanwhile
            self._watcher = None
        if self._run is not None:
            self._run.watch.close(self._run.now_s())
            self._board.stopping()
        self._workers.stopping()

    def on_test_stop(self, **_: Any) -> None:
        """All users are gone: wait for the last rows, judge, close the folder."""
        run = self._run
        if run is None:
            return
        self._run = None
        # Of its own: Locust kills the greenlet that stops a run when it stops it once more.
        gevent.spawn(self._finish_and_say_so, run).join()

    def _finish_and_say_so(self, run: OwnedRun) -> None:
        try:
            self._finish(run)
        finally:
            self.finished.set()

    def stop(self, by: str) -> None:
        """End the run that goes on, if any, and wait until its folder is closed."""
        if self._run is not None:
            self._ended_by = self._ended_by or by
            self._environment.runner.stop()
        self.finished.wait()

    def on_quitting(self, **_: Any) -> None:
        """The process is about to end; its exit code is read after this."""
        self.stop("signal")

    # -- while it runs ----------------------------------------------------------------------

    def _look_forever(self, run: OwnedRun) -> None:
        while True:
            before_s = run.now_s()
            gevent.sleep(LOOK_EVERY_S)
            try:
                self._note_standstill(run, run.now_s() - before_s)
                self._look(run)
            except Exception:
                logger.exception("agentload: the watch of the run failed")

    @staticmethod
    def _note_standstill(run: OwnedRun, seconds: float) -> None:
        """A process that was stopped, or starved, could neither change stages nor end the run."""
        run.stood_still_s = max(run.stood_still_s, seconds)
        if seconds > STOOD_STILL_S:
            run.event("owner_stood_still", f"{seconds:.1f} s")

    def _look(self, run: OwnedRun) -> None:
        for change in run.watch.observe(run.now_s(), self._workers.states()):
            run.event(change.kind, change.client_id)
            logger.warning("agentload: %s: %s", change.kind, change.client_id)
        refused = self._workers.refusal()
        if refused is not None and self._ended_by is None:
            self._ended_by = "error"
            logger.error("agentload: %s", refused)
            run.event("worker_refused", refused)
            runner = self._environment.runner
            headless = self._environment.parsed_options.headless
            gevent.spawn(runner.quit if headless else runner.stop)
        if run.spec.stages_from_s is None and run.warm_up_is_over(self._workers.at_gate()):
            run.begin_stages(run.now_s())
            self._tell()
            self._workers.begin_stages(run)

    def _tell(self) -> None:
        """Put the run where Locust's orders to its workers carry it."""
        if self._run is not None:
            options = self._environment.parsed_options
            setattr(options, SPEC_ATTRIBUTE, self._run.spec.as_message())

    def _finish(self, run: OwnedRun) -> None:
        lost = self._workers.collect(run)
        by = self._ended_by or ("workers_lost" if lost else "stop")
        statuses: Mapping[str, Any] = self._workers.statuses()
        entries, kept = self._workers.entries(run), self._workers.kept_turns()
        manifest = run.finish(Ending(by, lost), statuses, entries, kept)
        self._board.end()
        verdict = manifest.verdict
        logger.info(
            "agentload: %s is %s (%s)", run.folder, manifest.state, verdict and verdict.level
        )
        for reason in verdict.reasons if verdict else ():
            logger.warning("agentload: %s", reason)
        if manifest.state != "complete" or verdict is None or verdict.level == "invalid":
            self._set_exit_code(EXIT_INVALID)

    def _set_exit_code(self, code: int) -> None:
        """Only where nobody watches: a process with a web page may have many runs."""
        options = self._environment.parsed_options
        if options.headless or options.autostart:
            self._environment.process_exit_code = code
