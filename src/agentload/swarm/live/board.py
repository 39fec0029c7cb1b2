"""Makes the live figures of a run once a second, on the process that owns it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Protocol

import gevent

from agentload.live.figures import QS, all_figures, groups, slo_lights
from agentload.live.history import History, Window
from agentload.live.server_tail import ServerTail
from agentload.live.snapshot import (
    ALL,
    LATER,
    ClassFigures,
    Light,
    LoadFigures,
    Point,
    ServerFigures,
    Snapshot,
    State,
)
from agentload.live.totals import ClassTotals
from agentload.live.wire import LiveReceiver
from agentload.recording.manifest import Judgement
from agentload.recording.record import SCRAPE_CSV
from agentload.recording.verdict import judge
from agentload.swarm import tally
from agentload.swarm.live import current
from agentload.swarm.live.rules import slo_limits
from agentload.swarm.owner import OwnedRun

logger = logging.getLogger(__name__)

EVERY_S = 1.0
_LIGHTS: dict[str, Light] = {"valid": "good", "suspect": "warn", "invalid": "bad"}


class Loading(Protocol):
    """What the figures need of those that load."""

    def live(self) -> LiveReceiver: ...

    def statuses(self) -> Mapping[str, tally.Status]: ...


class RunBoard:
    """The figures of one run."""

    def __init__(self, run: OwnedRun, runner: Any, workers: Loading) -> None:
        self.stopping = False
        self._run = run
        self._runner = runner
        self._workers = workers
        self._server = ServerTail(run.folder / SCRAPE_CSV)
        self._slos = slo_limits(run.spec.scenario())
        self._history = History()
        self._ttft, self._itl = Window(), Window()
        self._last: tuple[float, int] | None = None  # time, output tokens

    def make(self) -> Snapshot:
        """The figures now; one more point of the charts."""
        run, manifest = self._run, self._run.manifest
        over = manifest.ended_s is not None
        now_s = run.now_s() if manifest.ended_s is None else manifest.ended_s
        live = self._workers.live()
        server = self._server.read(manifest.measured_from_s)
        arm, model = str(manifest.arm["name"]), str(run.spec.model or "")
        measured_s = self._measured_s(now_s)
        classes = all_figures(live.totals, arm, measured_s, live.in_flight_of)
        statuses = self._workers.statuses()
        in_flight = 0 if over else tally.total(statuses.values(), "in_flight")
        users = 0 if over else int(self._runner.user_count)
        self._history.add(self._point(now_s, live, classes, server, users, in_flight))
        slos, goodput = slo_lights(live.totals, self._slos)
        from_s = run.spec.stages_from_s
        return Snapshot(
            run_id=manifest.run_id,
            run_dir=str(run.folder),
            arm=arm,
            scenario=str(manifest.scenario["name"]),
            model=model,
            state=self._state(),
            now_s=now_s,
            stage=None if over else run.plan.name_at(-1.0 if from_s is None else now_s - from_s),
            measured_s=measured_s,
            eta_s=self._eta_s(now_s),
            planned_s=manifest.planned_s,
            users=users,
            target_users=self._target_users(now_s),
            in_flight=in_flight,
            recorded=tally.total(statuses.values(), "recorded"),
            load=self._load(statuses),
            classes=classes,
            server=server,
            slos=slos,
            goodput_light=goodput,
            history=tuple(self._history.points),
            ended_by=manifest.ended_by,
        )

    # -- parts ------------------------------------------------------------------------------

    def _state(self) -> State:
        if self._run.manifest.ended_s is not None:
            return "complete" if self._run.manifest.state == "complete" else "interrupted"
        if self.stopping:
            return "stopping"
        return "warm_up" if self._run.spec.stages_from_s is None else "running"

    def _measured_s(self, now_s: float) -> float:
        from_s, to_s = self._run.manifest.measured_from_s, self._run.manifest.measured_to_s
        if from_s is None:
            return 0.0
        return max(0.0, (now_s if to_s is None else min(now_s, to_s)) - from_s)

    def _eta_s(self, now_s: float) -> float | None:
        planned_s, from_s = self._run.manifest.planned_s, self._run.spec.stages_from_s
        if planned_s is None or self._run.manifest.ended_s is not None:
            return None
        return planned_s if from_s is None else max(0.0, from_s + planned_s - now_s)

    def _target_users(self, now_s: float) -> int:
        from_s = self._run.spec.stages_from_s
        if self.stopping or self._run.manifest.ended_s is not None:
            return 0
        step = self._run.plan.steps[0] if from_s is None else self._run.plan.at(now_s - from_s)
        return 0 if step is None else step.users

    def _point(
        self,
        now_s: float,
        live: LiveReceiver,
        classes: tuple[ClassFigures, ...],
        server: ServerFigures,
        users: int,
        in_flight: int,
    ) -> Point:
        later = later_turns(live.totals)
        ttft, itl = later.histograms["ttft"], later.histograms["itl"]
        recent_ttft = self._ttft.percentiles_s(now_s, ttft.bins, QS)
        recent_itl = self._itl.percentiles_s(now_s, itl.bins, QS)
        run_ttft, run_itl = ttft.percentiles_s(QS), itl.percentiles_s(QS)
        every = next((c for c in classes if c.turn_class == ALL), None)
        return Point(
            time_s=now_s,
            users=users,
            in_flight=in_flight,
            ttft_p50_s=recent_ttft[0],
            ttft_p90_s=recent_ttft[1],
            ttft_p99_s=recent_ttft[2],
            itl_p50_s=recent_itl[0],
            itl_p99_s=recent_itl[2],
            itl_max_s=itl.max_s,
            run_ttft_p50_s=run_ttft[0],
            run_ttft_p90_s=run_ttft[1],
            run_ttft_p99_s=run_ttft[2],
            run_itl_p50_s=run_itl[0],
            run_itl_p99_s=run_itl[2],
            cache_hit_ratio=None if every is None else every.cache_hit_ratio,
            output_tokens_per_s=self._token_rate(now_s, every),
            errors=0 if every is None else every.errors,
            running=server.running,
            waiting=server.waiting,
            kv_usage=server.kv_usage,
        )

    def _token_rate(self, now_s: float, every: ClassFigures | None) -> float | None:
        """Output tokens of the turns that ended since the last point, per second."""
        if every is None:
            return None
        last, self._last = self._last, (now_s, every.output_tokens)
        if last is None or now_s <= last[0]:
            return None
        return (every.output_tokens - last[1]) / (now_s - last[0])

    def _load(self, statuses: Mapping[str, tally.Status]) -> LoadFigures:
        known = list(statuses.values())
        manifest = self._run.manifest
        verdict = manifest.verdict or self._verdict_now(statuses)
        return LoadFigures(
            light=_LIGHTS.get(verdict.level, "unknown") if known else "unknown",
            level=verdict.level if known else None,
            reasons=verdict.reasons if known else (),
            loop_lag_p99_s=tally.largest(known, "loop_lag_p99_s"),
            cpu_share=tally.largest(known, "cpu_share"),
            workers=len(self._run.spec.ranks),
            workers_missing=len(self._run.watch.absent_since_s),
            rows_queued=tally.total(known, "rows_queued"),
            rows_lost=None if manifest.verdict is None else manifest.counts.lost,
        )

    def _verdict_now(self, statuses: Mapping[str, tally.Status]) -> Judgement:
        """The verdict if the run ended well now: what is still missing may come."""
        known = statuses.values()
        changes = tuple(
            f"{c.kind.removeprefix('worker_')} at {c.at_s:.1f} s: {c.client_id}"
            for c in self._run.watch.changes
        )
        return judge(
            tally.evidence(
                known,
                rows_refused=tally.total(known, "rows_refused"),
                workers_changed=changes,
                clock_offset_error_s=tally.largest(known, "clock_offset_error_s"),
                turns_recorded=1,
            )
        )


def later_turns(totals: Mapping[str, ClassTotals]) -> ClassTotals:
    """All classes but cold; cold ones where there are no others."""
    found = groups(totals)
    only = [name for name in found if name not in ("cold", ALL)]
    return found.get(LATER) or found.get(only[0] if only else "cold") or ClassTotals()


class LiveBoard:
    """Publishes the figures of whichever run goes on."""

    def __init__(self, runner: Any, workers: Loading) -> None:
        self._runner = runner
        self._workers = workers
        self._board: RunBoard | None = None
        self._maker: Any = None

    def begin(self, run: OwnedRun) -> None:
        """A run begins: figures come from now on, once a second."""
        self._board = RunBoard(run, self._runner, self._workers)
        self._publish()
        self._maker = gevent.spawn(self._forever)

    def stopping(self) -> None:
        if self._board is not None:
            self._board.stopping = True

    def end(self) -> None:
        """The run's last rows are here and it is judged: the figures that stay."""
        if self._maker is not None:
            self._maker.kill()
            self._maker = None
        self._publish()
        self._board = None

    def _forever(self) -> None:
        while True:
            gevent.sleep(EVERY_S)
            self._publish()

    def _publish(self) -> None:
        """A fault of a view must not end a run."""
        if self._board is None:
            return
        try:
            current.publish(self._board.make())
        except Exception:
            logger.exception("agentload: the live figures could not be made")
