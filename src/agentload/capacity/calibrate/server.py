"""What a server tells of itself before and after the probes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from agentload.sim.profiles import ProfileError, version_profile

_REMAINING = re.compile(r"(?i)rate-?limit-(remaining-(requests|tokens)|remaining)$")


@dataclass(frozen=True, slots=True)
class Facts:
    """Read from `/metrics` and `/version`; None: not told."""

    running: float | None = None
    waiting: float | None = None
    finished: float | None = None
    kv_blocks: int | None = None
    block_size: int | None = None
    prefix_caching: bool | None = None
    sim_speed: float = 1.0
    version: str | None = None

    @property
    def kv_tokens(self) -> int | None:
        """Tokens that fit in the KV cache."""
        if self.kv_blocks is None or self.block_size is None:
            return None
        return (self.kv_blocks - 1) * self.block_size

    @property
    def busy(self) -> str:
        """What another load is doing on the server; empty when none shows."""
        if not (self.running or self.waiting):
            return ""
        return f"{self.running or 0:.0f} requests running, {self.waiting or 0:.0f} waiting"


def read_metrics(page: str, version: str | None = None) -> Facts:
    """The facts of a `/metrics` page; sums over engines."""
    sums: dict[str, float] = {}
    labels: dict[str, Mapping[str, str]] = {}
    try:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                sums[sample.name] = sums.get(sample.name, 0.0) + sample.value
                labels.setdefault(sample.name, sample.labels)
    except ValueError:
        return Facts(version=version)
    cache = labels.get("vllm:cache_config_info", {})
    told = cache.get("enable_prefix_caching")
    return Facts(
        running=sums.get("vllm:num_requests_running"),
        waiting=sums.get("vllm:num_requests_waiting"),
        finished=sums.get("vllm:request_success_total"),
        kv_blocks=_count(cache.get("num_gpu_blocks")),
        block_size=_count(cache.get("block_size")),
        prefix_caching=None if told is None else told == "True",
        sim_speed=float(labels.get("agentload_sim_info", {}).get("speed", 1.0)),
        version=version,
    )


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and int(text) > 1 else None


def rate_limit(headers: Mapping[str, str], requests: int, tokens: int) -> str:
    """Why the limits that these headers tell are too low for a calibration; empty if they are not.

    `requests` and `tokens` are what it will send.
    """
    for name, value in headers.items():
        found = _REMAINING.search(name)
        number = re.match(r"\d+", value.strip())
        if found is None or number is None:
            continue
        needed = tokens if (found.group(2) or "").lower() == "tokens" else requests
        if int(number.group()) < needed:
            return f"header {name}: {value}, and a calibration sends about {needed}"
    return ""


def profile_of(version: str | None) -> tuple[str | None, str]:
    """(version profile, warning) of the release that a server tells."""
    if version is None:
        return None, "the server does not tell its version: the newest profile is assumed"
    try:
        return version_profile(version).name, ""
    except ProfileError as error:
        return None, f"{error}; the newest is assumed"
