"""Scheduler differences between vLLM releases."""

from __future__ import annotations

import re
from dataclasses import dataclass

from agentload.sim.profiles.hardware import Gpu, ProfileError, data

GIB = 2**30


@dataclass(frozen=True, slots=True)
class VersionProfile:
    """A range of vLLM releases that schedule alike; `engine` holds `EngineConfig` switches."""

    name: str
    first: str
    last: str
    engine: dict[str, bool]
    gpu_memory_utilization: float
    large_memory_gib: tuple[int, ...]
    source: str
    note: str = ""

    def default_batch(self, gpu: Gpu) -> tuple[int, int]:
        """vLLM's (max_num_batched_tokens, max_num_seqs) for its API server on this GPU."""
        memory_gib = gpu.memory_bytes / GIB
        levels = [gib for gib in self.large_memory_gib if memory_gib >= gib]
        if 160 in levels:
            return 16384, 1024
        if levels and "A100" not in gpu.name:
            return 8192, 1024
        return 2048, 256


def version_profiles() -> list[VersionProfile]:
    """All of them, oldest first."""
    return [
        VersionProfile(**{**entry, "large_memory_gib": tuple(entry["large_memory_gib"])})
        for entry in data("versions")["profiles"]
    ]


def version_profile(name: str) -> VersionProfile:
    """The profile with this name ("0.19-0.22"), or that covers this release ("0.19.1").

    Raises ProfileError naming the known ones: a release nobody has read is not guessed at.
    """
    profiles = version_profiles()
    release = re.match(r"v?(\d+)\.(\d+)", name)
    for profile in profiles:
        if name == profile.name:
            return profile
    for profile in profiles if release and "-" not in name else ():
        if _minor(profile.first) <= _minor(name.removeprefix("v")) <= _minor(profile.last):
            return profile
    known = ", ".join(profile.name for profile in profiles)
    raise ProfileError(f"vLLM {name!r} has no version profile; known: {known}")


def _minor(release: str) -> tuple[int, int]:
    major, minor = release.split(".")[:2]
    return int(major), int(minor)
