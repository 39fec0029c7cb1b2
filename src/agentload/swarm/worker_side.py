"""A worker's part in a run: it loads, and hands its rows to the master until all are taken."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import gevent
from locust.exception import RPCError

from agentload.client.settings import SettingsError
from agentload.clock import Clock
from agentload.folder_lock import FolderLock
from agentload.recording.clocksync import ClockOffset, clock_identity
from agentload.recording.recorder import SHARD_ROWS, Recorder
from agentload.recording.relay import ShardSender
from agentload.recording.shard import ShardError
from agentload.swarm import messages
from agentload.swarm.load_run import LoadRun
from agentload.swarm.load_side import LoadSide, TextsDifferError
from agentload.swarm.options import RUN_DIR
from agentload.swarm.own_shard import OwnShard
from agentload.swarm.spec import SPEC_ATTRIBUTE, RunSpec
from agentload.swarm.texts import Texts

logger = logging.getLogger(__name__)

FIRST_PINGS = 20
FIRST_PING_EVERY_S = 0.05
PING_EVERY_S = 2.0
BATCH_EVERY_S = 1.0
DELIVERY_S = 15.0  # how long a worker that ends by itself waits for the last answer
# And one that heard nothing of its master for a minute. TCP may need as long as it was cut off to
# find out that it no longer is: after a cut of 80 s up to 102 s in all.
LOST_MASTER_S = 60.0
# Where the files of this machine are. The master's command line says it of the master's.
OWN_OPTIONS = ("spool_dir", "settings", "api_key_file")
EXIT_UNDELIVERED = 3


class WorkerSide:
    """Listens to Locust on a worker. Its shard of the run is on disk before it is on the wire."""

    def __init__(self, environment: Any, runner: Any, clock: Clock) -> None:
        self._environment = environment
        self._runner = runner
        self._clock = clock
        self._load = LoadSide(environment, Texts(), clock)
        self._offset = ClockOffset()
        self._sender: ShardSender | None = None
        self._recorder: Recorder | None = None
        self._shard: OwnShard | None = None
        self._own = {name: getattr(environment.parsed_options, name) for name in OWN_OPTIONS}
        own_run_dir = environment.parsed_options.run_dir
        self._own["run_dir"] = None if own_run_dir == RUN_DIR else own_run_dir
        self._lock: FolderLock | None = None
        self._left_rows = False  # rows stayed in a shard
        self._ending = False
        self._final = False
        self._refused: str | None = None
        runner.register_message(messages.PONG, self._on_pong)
        runner.register_message(messages.ACK, self._on_ack)
        runner.register_message(messages.STAGES, self._on_stages)
        runner.register_message(messages.MEASURED, self._on_measured)
        gevent.spawn(self._ping_forever)
        gevent.spawn(self._send_forever)

    # -- Locust's events --------------------------------------------------------------------

    def on_test_start(self, **_: Any) -> None:
        """Load in the run that the master describes."""
        told = getattr(self._environment.parsed_options, SPEC_ATTRIBUTE, None)
        if told is None:
            logger.error("the master runs no agentload locustfile: nothing will be sent")
            return
        loaded = self._load.run
        if self._final and loaded is not None and loaded.spec.run_id == told["run_id"]:
            logger.warning("agentload: an order to start users of a run that is over")
            return
        self._keep_shard("a new run begins")
        options = self._environment.parsed_options
        vars(options).update({name: value for name, value in self._own.items() if value})
        spec = RunSpec.from_message(told)
        identity = clock_identity()
        self._offset.same_clock = identity is not None and identity == spec.clock_identity
        self._final = False
        client_id = self._runner.client_id
        self._recorder = None
        self._shard = shard = OwnShard(spec, client_id, Path(options.run_dir), spool_root(options))
        self._sender = ShardSender(
            shard.folder, spec.run_id, client_id, shard.stays, spec.rows_token
        )
        try:
            shard.begin()
            self._lock = FolderLock(shard.folder)
            self._recorder = Recorder(shard.folder, SHARD_ROWS)
            self._load.start(
                spec, self._recorder, os.environ, client_id, self._offset_ns, self._rows_queued
            )
        except (SettingsError, TextsDifferError, ShardError) as error:
            self._refused = str(error)
            logger.error("agentload: %s", error)
            self._send()

    def on_test_stopping(self, **_: Any) -> None:
        self._load.stopping()

    def on_test_stop(self, **_: Any) -> None:
        """All users are gone: send what is left, before Locust says that the worker stopped."""
        self._load.finish()
        if self._shard is not None and self._shard.stays and self._recorder is not None:
            self._recorder.close()
            try:
                gevent.get_hub().threadpool.apply(self._shard.seal, (self._status(),))
            except OSError as error:
                logger.error("agentload: %s is not sealed: %s", self._shard.folder, error)
        # Locust sleeps this long before the worker registers again, and a master that quits
        # meanwhile cannot tell it to: the worker would stay for a minute. Each start sets it anew.
        self._environment.stop_timeout = 0.0
        if self._sender is not None:
            self._final = True
            self._send()

    def on_quitting(self, **_: Any) -> None:
        """Ended from here (a signal, a lost master): stop well, then wait for the last answer."""
        runs_on = self._load.run is not None and not self._final
        if runs_on and not self._ending:
            self._runner.stop()
            self._wait_delivered(DELIVERY_S)
        self._ending = True
        self._keep_shard("the worker ends")
        if self._left_rows:
            self._environment.process_exit_code = EXIT_UNDELIVERED

    def end_orphaned(self) -> None:
        """The master is lost or records another run: stop the users, deliver if it comes back."""
        if self._ending:
            return
        self._ending = True
        self._runner.stop()
        self._wait_delivered(LOST_MASTER_S)

    def _wait_delivered(self, seconds: float) -> None:
        with gevent.Timeout(seconds, False):
            while self._sender is not None:
                gevent.sleep(0.1)

    def _keep_shard(self, why: str) -> None:
        """Rows that the master did not take stay where they are; say where."""
        sender, self._sender = self._sender, None
        if sender is None:
            return
        self._left_rows = True
        logger.error(
            "agentload: %s: %d rows were not taken by the master and are kept in %s",
            why, sender.undelivered_rows(), sender.folder,
        )  # fmt: skip
        self._close_recorder()

    # -- messages ---------------------------------------------------------------------------

    def _on_pong(self, msg: Any, **_: Any) -> None:
        self._offset.add(msg.data["sent_ns"], msg.data["master_ns"], self._clock.now_ns())

    def _on_ack(self, msg: Any, **_: Any) -> None:
        sender = self._sender
        if sender is None:
            return
        more = sender.answered(msg.data)
        run = self._run_of(msg.data)
        if run is not None:
            run.live.answered(msg.data.get("live_seq"))
        if sender.refused:
            self._on_refusal(sender)
        elif self._final and sender.done:
            self._close_shard(sender)
        elif more or (self._final and not sender.said_final):
            self._send()

    def _on_refusal(self, sender: ShardSender) -> None:
        """Nobody wants to have the rows. Of a run that goes on: it goes on without its owner."""
        logger.error("agentload: the master refuses rows: %s", sender.refused)
        if not sender.orphaned:
            return
        if self._final:
            self._keep_shard(f"the master refuses them: {sender.refused}")
        elif not self._ending:
            gevent.spawn(self._runner.quit)

    def _on_stages(self, msg: Any, **_: Any) -> None:
        run = self._run_of(msg.data)
        if run is not None:
            run.begin_stages(msg.data["from_s"])

    def _on_measured(self, msg: Any, **_: Any) -> None:
        run = self._run_of(msg.data)
        if run is not None:
            run.live.turns.end_measuring(msg.data["to_s"])

    def _run_of(self, data: dict[str, Any]) -> LoadRun | None:
        """The run of this process, when it is the one that is spoken of."""
        run = self._load.run
        return run if run is not None and data.get("run_id") == run.spec.run_id else None

    # -- rows -------------------------------------------------------------------------------

    def _send_forever(self) -> None:
        while True:
            gevent.sleep(BATCH_EVERY_S)
            self._send()

    def _send(self) -> None:
        if self._sender is None:
            return
        try:
            batch = self._sender.batch(self._clock.now_ns(), self._status())
            if batch is not None:
                run = self._run_of(batch)
                batch["live"] = None if run is None else run.live.message()
                self._runner.send_message(messages.ROWS, batch)
        except (RPCError, OSError) as error:
            logger.warning("agentload: rows could not be sent and will be again: %s", error)

    def _status(self) -> dict[str, Any]:
        run = self._load.run
        status = {} if run is None else run.status()
        status["final"] = self._final
        status["refused"] = self._refused
        if self._sender is not None:
            status["spool"] = str(self._sender.folder)
        if self._shard is not None and self._recorder is not None:
            status |= self._shard.status(self._recorder.rows)
        if self._offset.known:
            offset_ns, error_ns = self._offset.best(self._clock.now_ns())
            status["clock_offset_s"] = offset_ns / 1e9
            status["clock_offset_error_s"] = error_ns / 1e9
        return status

    def _rows_queued(self) -> int:
        return 0 if self._sender is None else self._sender.undelivered_rows()

    def _close_shard(self, sender: ShardSender) -> None:
        """The master has all of it: the shard is a copy, and goes, unless it is to stay."""
        self._sender = None
        self._close_recorder()
        if not sender.keeps_rows:
            remove_shard(sender.folder)

    def _close_recorder(self) -> None:
        if self._recorder is not None:
            self._recorder.close()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- clocks -----------------------------------------------------------------------------

    def _offset_ns(self) -> int:
        """Master's clock minus ours; 0 before the first round trip, which takes milliseconds."""
        return self._offset.best(self._clock.now_ns())[0] if self._offset.known else 0

    def _ping_forever(self) -> None:
        pings = 0
        while True:
            try:
                self._runner.send_message(messages.PING, {"sent_ns": self._clock.now_ns()})
            except RPCError:
                logger.debug("a ping could not be sent")
            pings += 1
            gevent.sleep(FIRST_PING_EVERY_S if pings < FIRST_PINGS else PING_EVERY_S)


def remove_shard(folder: Path) -> None:
    """Remove a shard whose rows are in the run folder, and its run's folder if it was the last."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        folder.parent.rmdir()


def spool_root(options: Any) -> Path:
    """Where workers of this machine keep rows until they are delivered; of this user only."""
    if options.spool_dir:
        return Path(options.spool_dir)
    return Path(tempfile.gettempdir()) / f"agentload-spool-{os.getuid()}"
