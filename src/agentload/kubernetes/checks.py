"""What a rendering has to be beyond its schema, each rule with the fault it names.

Kubernetes schemas accept a selector that selects nothing, a Job that restarts, a reference to
nothing. `agentload k8s run` looks before it applies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from agentload.kubernetes import checks_load, checks_pods, checks_wiring
from agentload.kubernetes.objects import Rendered

Check = Callable[[Rendered, frozenset[str]], Iterator[str]]

CHECKS: tuple[Check, ...] = (*checks_wiring.CHECKS, *checks_pods.CHECKS, *checks_load.CHECKS)

# What runs use and no overlay makes: `Kind/name`.
MADE_BY_HAND = frozenset(
    {
        "PersistentVolumeClaim/agentload-models",
        "PersistentVolumeClaim/agentload-results",
        "Secret/agentload-api-key",
        "Secret/agentload-web-login",
    }
)


def faults(rendered: Rendered, there: frozenset[str] = MADE_BY_HAND) -> list[str]:
    """All faults, each as `Kind/name: what is wrong`; `there` is in the cluster already."""
    return [fault for check in CHECKS for fault in check(rendered, there)]
