"""One calibration of one live server, from the first question to the step-cost file."""

# gevent must have patched the process before this module is imported: see calibrate.py.
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from agentload.capacity.calibrate import held_out as held
from agentload.capacity.calibrate.course import Course
from agentload.capacity.calibrate.delays import frontend_delays
from agentload.capacity.calibrate.gathered import Gathered, Limits
from agentload.capacity.calibrate.printing import (
    coefficient_lines,
    compared_lines,
    in_force_lines,
)
from agentload.capacity.calibrate.probes import ProbeError
from agentload.capacity.calibrate.server import Facts, profile_of, rate_limit, read_metrics
from agentload.capacity.calibrate.target import LiveTarget
from agentload.capacity.cost.engine import engine_of
from agentload.capacity.cost.estimate import Estimate, cost_file, estimate
from agentload.capacity.cost.fit import Prior, fit_form
from agentload.capacity.cost.form import FORMS
from agentload.client.base_url import server_root
from agentload.client.errors import RequestFailure
from agentload.client.preflight import PreflightError, Target, check_target
from agentload.client.settings import TargetSettings
from agentload.client.transport import Client
from agentload.sim.core import Frontend
from agentload.sim.profiles import NEWEST, CostFile, InForce, version_profile

REQUESTS = 250  # about what a calibration sends
LARGEST_ERROR = 0.99  # a larger one says no more: nothing can be planned with it


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the user asked for."""

    depth: int
    limit_s: float
    metrics_url: str | None
    limits: Limits
    held_out: bool = True
    allow_busy: bool = False


class Session:
    """Asks, probes, fits; `lines` tells what came of it."""

    def __init__(
        self,
        settings: TargetSettings,
        prior: Prior,
        wishes: Wishes,
        tell: Callable[[str], None],
    ) -> None:
        self._settings, self._prior, self._wishes, self._tell = settings, prior, wishes, tell
        self._client = Client(settings)
        self._warnings: list[str] = []
        self._compared: list[held.Compared] = []
        self._gathered = Gathered()
        self._estimate: Estimate | None = None
        self._file: CostFile | None = None

    def run(self) -> CostFile:
        """The whole calibration. Raises `ProbeError` where it cannot be trusted."""
        target = self._asked()
        facts = self._facts()
        self._refuse_busy(facts, "before the probes: ")
        live = LiveTarget(self._settings, target.model, facts.sim_speed)
        live.warm_up()
        limits = self._limits(target, facts)
        limit_s = self._wishes.limit_s * facts.sim_speed
        course = Course(
            live, self._prior, self._wishes.depth, limit_s, limits, self._tell,
            allow_busy=self._wishes.allow_busy,
        )  # fmt: skip
        self._gathered = course.run()
        profile, warning = profile_of(facts.version)
        if warning:
            self._warnings.append(warning)
        file = self._fitted(target, facts, profile)
        if self._wishes.held_out:
            file = self._checked(file, live, course.left_s, facts, profile)
        self._refuse_others(facts, live.sent)
        live.close()
        self._client.close()
        self._file = file
        return file

    def _asked(self) -> Target:
        try:
            target = check_target(self._client)
            headers = self._client.ask("GET", "/models").headers
        except PreflightError as error:
            raise ProbeError(str(error)) from None
        except RequestFailure:
            headers = {}
        limit = rate_limit(headers, REQUESTS, 3 * self._wishes.depth)
        if limit:
            raise ProbeError(
                f"a gateway limits this key ({limit}); to mend: calibrate past the gateway, "
                "or raise the limit"
            )
        return target

    def _facts(self) -> Facts:
        root = server_root(self._settings.base_url)
        version = None
        try:
            told = self._client.ask("GET", f"{root}/version").json()
            version = str(told["version"]) if isinstance(told, dict) else None
        except (RequestFailure, KeyError):
            pass
        # A client of its own: its page may live on another host than the connections kept so far.
        pages = Client(self._settings)
        try:
            page = pages.ask("GET", self._wishes.metrics_url or f"{root}/metrics").body
        except RequestFailure as failure:
            self._warnings.append(
                f"no /metrics ({failure.error_class}): whether the server was idle, the size of "
                "its KV cache and its block size are not known; give the page by --metrics-url"
            )
            return Facts(version=version)
        finally:
            pages.close()
        return read_metrics(page.decode("utf-8", "replace"), version)

    def _refuse_busy(self, facts: Facts, when: str) -> None:
        if facts.busy and not self._wishes.allow_busy:
            raise ProbeError(
                f"{when}the server is busy ({facts.busy}), so steps would hold more than the "
                "probes; to mend: take it out of the router, or --allow-busy"
            )

    def _refuse_others(self, before: Facts, sent: int) -> None:
        """Requests of others that came meanwhile show in the counters."""
        if before.finished is None:
            return
        after = self._facts()
        others = (after.finished or 0.0) - before.finished - sent
        if others > 0 and not self._wishes.allow_busy:
            raise ProbeError(
                f"{others:.0f} requests of others were served during the probes; to mend: take "
                "the server out of the router, or --allow-busy"
            )

    def _limits(self, target: Target, facts: Facts) -> Limits:
        return replace(
            self._wishes.limits,
            max_model_len=target.max_model_len,
            kv_tokens=facts.kv_tokens,
            block_size=facts.block_size,
            prefix_caching=facts.prefix_caching,
        )

    def _fitted(self, target: Target, facts: Facts, profile: str | None) -> CostFile:
        at = self._gathered.observations()
        told = self._wishes.limits.async_scheduling
        default = bool(version_profile(profile or NEWEST).engine["async_scheduling"])
        async_scheduling = default if told is None else told
        best = min((fit_form(at, self._prior, form) for form in FORMS), key=lambda f: f.chi2)
        waits = frontend_delays(self._gathered, best, async_scheduling=async_scheduling)
        self._estimate = estimate(at, self._prior, waits)
        subject = {"model": target.model, "url": self._settings.base_url}
        if facts.version:
            subject["vllm_version"] = facts.version
        return cost_file(
            self._estimate,
            measured="calibrated",
            subject=subject,
            source=f"probes A to D in {self._gathered.seconds:.0f} s; prior: {self._prior.source}",
            depth_tokens=self._gathered.depth_tokens,
            in_force=in_force(self._gathered, target, facts, async_scheduling),
            version_profile=profile,
        )

    def _checked(
        self, file: CostFile, live: LiveTarget, left_s: float, facts: Facts, profile: str | None
    ) -> CostFile:
        """Play probe E, compare, and widen the model error by what it shows."""
        cost = file.step_cost()
        new = held.NEW_TOKENS
        depth = self._gathered.depth_tokens
        turn_s = cost.step_s(new, 2, 2 * depth, new * depth)
        turn_s += held.ANSWER_TOKENS * cost.step_s(0, 3, depth, 0)
        caching = file.in_force.prefix_caching
        probe = held.held_out(
            sorted(self._gathered.cold)[-held.SESSIONS :] if caching else [],
            turn_s,
            min(left_s - 2.0, 20.0 * facts.sim_speed),
        )
        if probe is None:
            why = "prefixes are not cached" if not caching else "no time was left"
            self._gathered.skipped.append(f"the held-out probe: {why}")
            return file
        self._tell(probe.name)
        heard = live.play(probe)
        config = engine_of(file.in_force, profile or NEWEST)
        base, per_token = file.frontend.base_s.value, file.frontend.per_token_s.value
        by_model = held.predicted(
            held.shifted(heard, probe), heard, config, cost, Frontend(base, per_token)
        )
        self._compared = held.compare(heard, by_model)
        errors = {row.name: min(LARGEST_ERROR, abs(row.error)) for row in self._compared}
        return file.model_copy(
            update={
                "step_discrepancy": round(
                    max(file.step_discrepancy, errors["time per output token"]), 4
                ),
                "ttft_discrepancy": round(max(file.ttft_discrepancy, errors["TTFT mean"]), 4),
            }
        )

    def lines(self) -> Iterator[str]:
        """What was found, with what is unknown."""
        if self._file is None or self._estimate is None:
            return
        for warning in self._warnings:
            yield f"warning: {warning}"
        yield from coefficient_lines(self._file, self._estimate)
        yield from in_force_lines(self._file)
        chunking = self._gathered.chunking
        if chunking is not None and chunking.chunk is not None and not chunking.exact:
            yield (
                f"  chunks of {chunking.low} to {chunking.high} tokens explain the probes about "
                "as well: give --max-num-batched-tokens if you know it"
            )
        if self._compared:
            yield from compared_lines(self._compared)
        for skipped in self._gathered.skipped:
            yield f"not probed: {skipped}"
        yield f"not modelled: {'; '.join(self._file.not_modelled)}"


def in_force(found: Gathered, target: Target, facts: Facts, async_scheduling: bool) -> InForce:
    """The settings that probes and pages showed."""
    chunking = found.chunking
    several = chunking is not None and chunking.chunk is not None
    caching = found.caching if facts.prefix_caching is None else facts.prefix_caching
    return InForce(
        max_num_batched_tokens=chunking.max_num_batched_tokens if chunking else None,
        long_prefill_token_threshold=chunking.long_prefill_token_threshold if chunking else None,
        chunked_prefill=True if several else None,
        prefix_caching=caching,
        max_num_seqs=found.streams_together,
        kv_blocks=facts.kv_blocks,
        block_size=facts.block_size,
        max_model_len=target.max_model_len,
        async_scheduling=async_scheduling,
    )
