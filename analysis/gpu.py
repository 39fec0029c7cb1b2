"""How full and how busy the GPUs were, from the pages of DCGM exporters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from analysis.server import Scrape

Over = tuple[np.ndarray, np.ndarray]  # times in seconds, values


@dataclass(frozen=True, slots=True)
class Gpu:
    """All GPUs of a run over its window; None = not exported.

    Memory is the sum over the GPUs, its share is of used + free. Utilisation is the share of time
    in which the GPU did anything at all, the mean over the GPUs; it says nothing of how much. Of
    several GPUs `utilisation_least` is the mean of the least busy one.
    """

    gpus: int
    memory_used_mib_mean: float | None
    memory_used_mib_max: float | None
    memory_share_max: float | None
    utilisation_mean: float | None
    utilisation_max: float | None
    utilisation_least: float | None


def gpu(scrape: Scrape) -> Gpu | None:
    """The window's figures; None when no GPU was scraped."""
    names = ("gpu_used_mib", "gpu_util_percent", "gpu_engine_share")
    count = max(len(scrape.find(name)) for name in names)
    if not count:
        return None
    used, share, busy = scrape.total("gpu_used_mib"), memory_share(scrape), utilisation(scrape)
    return Gpu(
        gpus=count,
        memory_used_mib_mean=_of(used, np.mean),
        memory_used_mib_max=_of(used, np.max),
        memory_share_max=_of(share, np.max),
        utilisation_mean=_of(busy, np.mean),
        utilisation_max=_of(busy, np.max),
        utilisation_least=_least(scrape),
    )


def utilisation(scrape: Scrape) -> Over | None:
    """Mean share of time the GPUs were busy, over time; from `DCGM_FI_DEV_GPU_UTIL`, else, as on
    parts of a GPU (MIG), from `DCGM_FI_PROF_GR_ENGINE_ACTIVE`."""
    name, scale = _source(scrape)
    found = scrape.spread(name)
    return None if found is None else (found[0], found[1] * scale)


def memory_share(scrape: Scrape) -> Over | None:
    """Used / (used + free) of all GPUs together over time; None without both."""
    used, free = scrape.total("gpu_used_mib"), scrape.total("gpu_free_mib")
    if used is None or free is None:
        return None
    times, mine, other = np.intersect1d(used[0], free[0], return_indices=True)
    whole = used[1][mine] + free[1][other]
    known = whole > 0
    return times[known], used[1][mine][known] / whole[known]


def _source(scrape: Scrape) -> tuple[str, float]:
    percent = bool(scrape.find("gpu_util_percent"))
    return ("gpu_util_percent", 0.01) if percent else ("gpu_engine_share", 1.0)


def _least(scrape: Scrape) -> float | None:
    name, scale = _source(scrape)
    means = [float(np.mean(s.values)) * scale for s in scrape.find(name) if len(s.values)]
    return min(means, default=None)


def _of(over: Over | None, how: object) -> float | None:
    if over is None or not len(over[1]):
        return None
    return float(how(over[1]))  # type: ignore[operator]
