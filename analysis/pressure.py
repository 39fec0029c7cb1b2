"""What limits a server: admission, memory, or compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from analysis.distribution import ratio
from analysis.server import Scrape

Limit = Literal["none", "admission", "memory", "compute"]

MAX_PREEMPTIONS_PER_100 = 1.0
WAITING_MATTERS = 0.5  # mean number of waiting requests
AT_LIMIT_SHARE = 0.95  # running, of max_num_seqs
LOW_KV_USAGE = 0.8
FULL_KV_USAGE = 0.95


@dataclass(frozen=True, slots=True)
class Pressure:
    """State of the servers over the window; None = not exported or not known."""

    running_mean: float | None
    running_max: float | None
    waiting_mean: float | None
    waiting_max: float | None
    kv_usage_mean: float | None
    kv_usage_max: float | None
    preemptions: float | None
    finished: float | None
    max_num_seqs: int | None
    kv_tokens: int | None
    tokens_per_session: float | None
    restarts: int

    @property
    def preemptions_per_100(self) -> float | None:
        if self.preemptions is None or self.finished is None:
            return None
        found = ratio(self.preemptions, self.finished)
        return None if found is None else found * 100

    @property
    def over_memory_limit(self) -> bool:
        """More than one preemption in 100 finished requests: no capacity figure may rest on it."""
        return (self.preemptions_per_100 or 0.0) > MAX_PREEMPTIONS_PER_100

    @property
    def sessions_that_fit(self) -> int | None:
        """KV tokens / mean tokens of a session: the upper bound that memory sets."""
        if self.kv_tokens is None or not self.tokens_per_session:
            return None
        return int(self.kv_tokens // self.tokens_per_session)

    @property
    def limit(self) -> Limit | None:
        """None when the queue is not known; `none` when nothing waits to speak of.

        Waiting while all slots are taken and the KV cache is far from full is the admission limit.
        A full cache or preemptions are the memory limit. Waiting with neither is compute: the step
        budget is used up by prompts.
        """
        if self.over_memory_limit:
            return "memory"
        if self.waiting_mean is None:
            return None
        if self.waiting_mean < WAITING_MATTERS:
            return "none"
        if self.kv_usage_max is not None and self.kv_usage_max >= FULL_KV_USAGE:
            return "memory"
        at_limit = (
            self.max_num_seqs is not None
            and self.running_mean is not None
            and self.running_mean >= AT_LIMIT_SHARE * self.max_num_seqs
        )
        if at_limit and (self.kv_usage_max is None or self.kv_usage_max < LOW_KV_USAGE):
            return "admission"
        return "compute"


def pressure(
    scrape: Scrape, settings: dict[str, Any], tokens_per_session: float | None
) -> Pressure:
    """From the window's scrape and the server settings as found."""
    running, waiting = scrape.total("running"), scrape.total("waiting")
    usage = scrape.spread("kv_usage")
    preemptions, finished = scrape.increase("preemptions"), scrape.increase("finished")
    return Pressure(
        running_mean=_mean(running and running[1]),
        running_max=_max(running and running[1]),
        waiting_mean=_mean(waiting and waiting[1]),
        waiting_max=_max(waiting and waiting[1]),
        kv_usage_mean=_mean(usage and usage[1]),
        kv_usage_max=_max(usage and usage[2]),
        preemptions=None if preemptions is None else preemptions.amount,
        finished=None if finished is None else finished.amount,
        max_num_seqs=whole_setting(settings, "max_num_seqs"),
        kv_tokens=_kv_tokens(settings, scrape),
        tokens_per_session=tokens_per_session,
        restarts=scrape.restarts(),
    )


def setting(settings: dict[str, Any], name: str) -> Any:
    """A server setting under its flag's name, with dashes or underscores; None when not there."""
    found = settings.get(name)
    return settings.get(name.replace("_", "-")) if found is None else found


def whole_setting(settings: dict[str, Any], name: str) -> int | None:
    try:
        return int(str(setting(settings, name)))
    except ValueError:
        return None


def switch_setting(settings: dict[str, Any], name: str) -> bool | None:
    """A setting that is on or off; None when not known."""
    return {"true": True, "1": True, "false": False, "0": False}.get(
        str(setting(settings, name)).lower()
    )


def _kv_tokens(settings: dict[str, Any], scrape: Scrape) -> int | None:
    labels = {**scrape.labels_of("cache_config"), **settings}
    size = whole_setting(labels, "kv_cache_size_tokens")
    blocks, block = whole_setting(labels, "num_gpu_blocks"), whole_setting(labels, "block_size")
    return size if size is not None or blocks is None or block is None else blocks * block


def _mean(values: np.ndarray | None) -> float | None:
    return float(values.mean()) if values is not None and len(values) else None


def _max(values: np.ndarray | None) -> float | None:
    return float(values.max()) if values is not None and len(values) else None
