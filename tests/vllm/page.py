"""Reads a vLLM `/metrics` page with the official Prometheus parser."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Page:
    """The samples of one page: (name without `vllm:`, labels, value)."""

    samples: tuple[tuple[str, dict[str, str], float], ...]

    @classmethod
    def parse(cls, text: str) -> Page:
        return cls(
            tuple(
                (sample.name.removeprefix("vllm:"), sample.labels, float(sample.value))
                for family in text_string_to_metric_families(text)
                for sample in family.samples
                if sample.name.startswith("vllm:")
            )
        )

    def total(self, name: str, **labels: str) -> float:
        """Sum over the samples of that name which carry these labels; KeyError without any."""
        values = [v for n, ls, v in self.samples if n == name and labels.items() <= ls.items()]
        if not values:
            raise KeyError(f"no sample vllm:{name} {labels}")
        return sum(values)

    def labels(self, name: str) -> dict[str, str]:
        """Labels of the first sample of that name; KeyError without one."""
        for sample, labels, _ in self.samples:
            if sample == name:
                return labels
        raise KeyError(f"no sample vllm:{name}")

    def buckets(self, histogram: str) -> dict[float, float]:
        """Cumulative counts by upper edge."""
        name = f"{histogram}_bucket"
        return {float(ls["le"]): v for n, ls, v in self.samples if n == name}


@dataclass(frozen=True, slots=True)
class Delta:
    """What a server counted between two pages."""

    before: Page
    after: Page

    def total(self, name: str, **labels: str) -> float:
        return self.after.total(name, **labels) - self.before.total(name, **labels)

    def quantile_bucket(self, histogram: str, q: float) -> tuple[float, float]:
        """Edges (above, up to) of the bucket with the observation of rank ceil(q x count).

        q = 1 is the bucket of the largest. ValueError without observations.
        """
        before, after = self.before.buckets(histogram), self.after.buckets(histogram)
        grown = {edge: count - before.get(edge, 0.0) for edge, count in sorted(after.items())}
        count = grown.get(math.inf, 0.0)
        if not count:
            raise ValueError(f"vllm:{histogram} has no observation between the pages")
        below = 0.0
        for edge, cumulative in grown.items():
            if cumulative >= math.ceil(q * count):
                return below, edge
            below = edge
        raise ValueError(f"vllm:{histogram} has no bucket up to {math.inf}")
