"""The owner of a run: its folder, its manifest, its stages, its verdict."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agentload.clock import Clock, RunClock
from agentload.recording.clocksync import clock_identity
from agentload.recording.manifest import (
    Judgement,
    Manifest,
    WorkerEntry,
    library_versions,
    new_run_id,
    write_manifest,
)
from agentload.recording.metrics_page import PageError, simulator_late_share
from agentload.recording.record import TURNS_CSV, RunEvent
from agentload.recording.recorder import Recorder, create_run_folder
from agentload.recording.scrape import metrics_urls, page_file
from agentload.recording.shard import scenario_sha256
from agentload.recording.verdict import judge
from agentload.scenario.running import Stop
from agentload.swarm import tally
from agentload.swarm.examine import Found
from agentload.swarm.measured_turns import MeasuredTurns
from agentload.swarm.numbering import dispatch_ranks
from agentload.swarm.options import metrics_pages
from agentload.swarm.plan import Wishes
from agentload.swarm.scraper import Scraper
from agentload.swarm.spec import RunSpec
from agentload.swarm.stages import Step
from agentload.swarm.target import in_force
from agentload.swarm.watch import WorkerWatch
from agentload.workload.calibration import mixed
from agentload.workload.stopping import stop_reason

logger = logging.getLogger(__name__)

BY_PLAN = "plan"
PLAN_SHARE = 0.95  # a run that ended earlier is interrupted


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run ended, as told by whoever ended it."""

    by: str  # plan, stop, signal, workers_lost, error
    workers_lost: tuple[str, ...] = ()


class OwnedRun:
    """One run from its folder's first file to its verdict."""

    def __init__(
        self, options: Any, wishes: Wishes, found: Found, client_ids: Iterable[str], clock: Clock
    ) -> None:
        self._clock = clock
        self._options = options
        self.plan = wishes.stages
        self.run_clock = RunClock.starting_now(clock)
        self.stood_still_s = 0.0  # the longest time in which nobody looked at the run
        self.orphans: list[str] = []  # workers of another run that loaded beside this one
        ranks = dispatch_ranks(client_ids)
        self.watch = WorkerWatch(frozenset(ranks))
        self.manifest = _manifest(options, wishes, found, self.run_clock)
        self.spec = RunSpec(
            run_id=self.manifest.run_id,
            run_salt=self.manifest.run_salt,
            corpus_fingerprint=found.corpus_fingerprint,
            trace_fingerprint=found.trace_fingerprint,
            scenario_json=wishes.scenario.model_dump_json(),
            steps=wishes.stages.steps,
            base_url=wishes.settings.base_url,
            model=found.model,
            chars_per_token=found.chars_per_token,
            max_model_len=found.max_model_len,
            token_cuts=found.token_cuts,
            run_start_ns=self.run_clock.start_ns,
            wall_start_unix_s=self.run_clock.wall_start_unix_s,
            clock_identity=clock_identity(),
            ranks=ranks,
            stages_from_s=None,
            rows_on=options.record_on,
        )
        self.manifest.workers = _expected(ranks)
        self.manifest.rows_on = options.record_on
        self.manifest.scenario_sha256 = scenario_sha256(self.spec.scenario_json)
        self._wishes = wishes
        self.folder = create_run_folder(Path(options.run_dir), self.manifest)
        self.recorder = Recorder(self.folder)
        measured = frozenset(step.name for step in wishes.stages.steps if step.measured)
        self._measured = MeasuredTurns(self.folder / TURNS_CSV, measured)
        self._scraper = self._start_scraper(wishes.settings.base_url)

    # -- time and stages --------------------------------------------------------------------

    def now_s(self) -> float:
        return self.run_clock.seconds(self._clock.now_ns())

    def event(self, kind: str, detail: str, worker_id: str | None = None) -> None:
        self.recorder.record(RunEvent(self.now_s(), kind, worker_id, detail))

    def warm_up_is_over(self, at_gate: int) -> bool:
        """Whether the stages may begin: all users are warm, there is no warm-up, or it is late."""
        if not self._wishes.warms_up or at_gate >= self.plan.warm_up_users:
            return True
        if self.now_s() < self._wishes.scenario.warm_up.max_s:
            return False
        self.event("warm_up_cut", f"{at_gate} of {self.plan.warm_up_users} users were warm")
        return True

    def begin_stages(self, from_s: float) -> None:
        """Count the stages from this second of the run on."""
        self.spec = replace(self.spec, stages_from_s=from_s)
        start_s, end_s = self.plan.measured_window_s()
        self.manifest.measured_from_s = None if start_s is None else from_s + start_s
        self.manifest.measured_to_s = None if end_s is None else from_s + end_s
        self.event("stages_begin", f"at {from_s:.3f} s")
        write_manifest(self.folder, self.manifest)

    def step(self) -> Step | None:
        """The stage that is on; the first one during the warm-up; None when all are over."""
        from_s = self.spec.stages_from_s
        if from_s is None:
            return self._wishes.first_step()
        return None if self._stop_rule_holds() else self.plan.at(self.now_s() - from_s)

    def _stop_rule_holds(self) -> bool:
        """Whether the scenario's `stop` ends the run now; then the measured window ends, too."""
        rule, from_s = self._wishes.scenario.stop, self.manifest.measured_from_s
        if rule == Stop() or from_s is None or self.now_s() < from_s:
            return False
        self._measured.read()
        elapsed_s = self.now_s() - from_s
        reason = stop_reason(rule, elapsed_s, self._measured.turns, self._measured.ttfts_s)
        if reason is None:
            return False
        self.event("stop_rule", reason)
        self.manifest.measured_to_s = self.now_s()
        return True

    # -- the end ----------------------------------------------------------------------------

    def finish(
        self,
        ending: Ending,
        statuses: Mapping[str, tally.Status],
        workers: list[WorkerEntry],
        kept_turns: int = 0,
    ) -> Manifest:
        """Write the last rows and the manifest with counts, state and verdict.

        `kept_turns` are recorded, too, but on the workers' disks.
        """
        ended_s = self.now_s()
        self.event("run_ends", ending.by)
        if self._scraper is not None:
            self._scraper.close()
        from_s = self.spec.stages_from_s
        stage_s = 0.0 if from_s is None else ended_s - from_s
        manifest = self.manifest
        manifest.ended_s, manifest.ended_by = ended_s, ending.by
        manifest.workers = workers
        recorded = self.recorder.rows.written.get(TURNS_CSV, 0) + kept_turns
        manifest.counts = tally.counts(statuses.values(), recorded)
        manifest.verdict = self._verdict(ending, statuses, workers, stage_s)
        manifest.state = "complete" if self._is_complete(ending, stage_s) else "interrupted"
        if manifest.measured_to_s is None or manifest.measured_to_s > ended_s:
            manifest.measured_to_s = ended_s if from_s is not None else None
        self.recorder.close()
        write_manifest(self.folder, manifest)
        return manifest

    def _verdict(
        self,
        ending: Ending,
        statuses: Mapping[str, tally.Status],
        workers: list[WorkerEntry],
        stage_s: float,
    ) -> Judgement:
        manifest = self.manifest
        refused = tally.total(statuses.values(), "rows_refused")
        errors_s = [w.clock_offset_error_s for w in workers if w.clock_offset_error_s is not None]
        evidence = tally.evidence(
            statuses.values(),
            rows_lost=manifest.counts.lost,
            rows_refused=max(self.recorder.rows.refused, refused),
            workers_lost=ending.workers_lost,
            workers_changed=self._changes(of_the_run=True),
            workers_joined=self._changes(of_the_run=False),
            clock_offset_error_s=max(errors_s, default=None),
            clock_offset_unknown=tuple(
                w.worker_id for w in workers if w.clock_offset_error_s is None
            ),
            simulator_late_share=self._simulator_late_share(),
            owner_stood_still_s=self.stood_still_s,
            orphans=tuple(self.orphans),
            planned_s=None if ending.by == BY_PLAN else manifest.planned_s,
            ended_s=stage_s,
            turns_recorded=manifest.counts.recorded,
        )
        manifest.evidence = asdict(evidence)
        return judge(evidence)

    def _is_complete(self, ending: Ending, stage_s: float) -> bool:
        planned_s = self.manifest.planned_s
        if planned_s is None:
            return ending.by != "error"
        return ending.by == BY_PLAN or stage_s >= PLAN_SHARE * planned_s

    def _changes(self, *, of_the_run: bool) -> tuple[str, ...]:
        """Changes among the workers the run began with, or among those that came later."""
        return tuple(
            f"{change.kind.removeprefix('worker_')} at {change.at_s:.1f} s: {change.client_id}"
            for change in self.watch.changes
            if (change.client_id in self.watch.started_with) == of_the_run
        )

    def _simulator_late_share(self) -> float | None:
        """Of the first page only: a simulator is one server."""
        try:
            first, last = (
                (self.folder / page_file(which, 0)).read_text(encoding="utf-8", errors="replace")
                for which in ("first", "last")
            )
            return simulator_late_share(first, last)
        except (OSError, PageError):
            return None

    def _start_scraper(self, base_url: str) -> Scraper | None:
        pages = metrics_pages(self._options)
        urls = () if pages is None else metrics_urls(base_url, pages)
        urls += self._wishes.gpu_pages
        if not urls:
            return None
        scraper = Scraper(self.folder, urls, self.run_clock.start_ns)
        if not scraper.wait_first():
            self.event("scrape_failed", "the scraping process did not start")
        return scraper


def _expected(ranks: Mapping[str, int]) -> list[WorkerEntry]:
    """The workers a run begins with, so that a manifest without an end names them, too."""
    by_rank = sorted(ranks.items(), key=lambda item: item[1])
    return [WorkerEntry(f"w{rank}", id_.split("_")[0], client_id=id_) for id_, rank in by_rank]


def _manifest(options: Any, wishes: Wishes, found: Found, run_clock: RunClock) -> Manifest:
    wall_s = run_clock.wall_start_unix_s
    name = wishes.scenario.name if options.arm == "run" else f"{wishes.scenario.name} {options.arm}"
    ratios = found.chars_per_token
    settings, sources = in_force(wishes.scenario, wishes.settings, wishes.sources, found.model)
    return Manifest(
        run_id=wishes.run_id or new_run_id(wall_s, name),
        scenario=wishes.scenario.resolved(),
        arm={
            "name": options.arm,
            "settings": {**wishes.server_settings, **found.server_settings},
        },
        target={"base_url": wishes.settings.base_url, "model": found.model, **found.target},
        stages=wishes.stages.as_json(),
        wall_start_unix_s=wall_s,
        settings=settings,
        settings_sources=sources,
        chars_per_token=mixed(wishes.scenario, ratios) if isinstance(ratios, dict) else ratios,
        chars_per_token_by_kind=ratios if isinstance(ratios, dict) else None,
        run_salt=secrets.token_hex(4) if options.run_salt is None else options.run_salt,
        corpus_fingerprint=found.corpus_fingerprint,
        trace_fingerprint=found.trace_fingerprint,
        planned_s=wishes.stages.planned_s,
        users=max(step.users for step in wishes.stages.steps),
        libraries=library_versions(),
    )
