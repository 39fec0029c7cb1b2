"""The embedded server: vLLM's API in front of the scheduler core, on the wall clock."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Run `agentload sim` with these arguments; returns the exit code."""
    from agentload.sim.server.serve import main as serve  # its imports cost a third of a second

    return serve(argv)
