"""The command `agentload`: finds the part that does the work."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module, metadata

# name -> (module with a `main(argv) -> exit code`, what it does)
COMMANDS: dict[str, tuple[str, str]] = {
    "sim": ("agentload.sim.server", "serve the embedded model of vLLM over HTTP"),
    "doctor": ("agentload.client.doctor", "check an endpoint, one line a check, with the mend"),
    "sessions": ("agentload.workload.listing", "list what the sessions of a scenario will do"),
    "import-trace": (
        "agentload.workload.traces.import_command",
        "turn a public trace into a session file",
    ),
    "export-trace": (
        "agentload.workload.traces.export_command",
        "write sessions of a scenario or a run in another tool's format",
    ),
    "experiment": ("agentload.experiment.command", "run arms of a scenario and compare them"),
    "k8s": ("agentload.kubernetes.command", "run, follow, collect and delete runs on a cluster"),
    "merge": (
        "agentload.recording.merge_command",
        "put the shards of a run's workers together to one run folder",
    ),
    "report": ("analysis.report.command", "tables, findings and report.html of run folders"),
    "compare": ("analysis.compare_command", "compare run folders; exit code for a gate"),
    "calibrate": (
        "agentload.capacity.calibrate.command",
        "measure what the steps of a server cost",
    ),
    "fit": ("agentload.capacity.fit.command", "work out what steps cost from finished runs"),
    "validate": ("agentload.capacity.validate.command", "hold the model against a run"),
    "plan": ("agentload.capacity.plan.command", "the cheapest settings that meet the limits"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is the command's own, 2 for a wrong call."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in {"-h", "--help"}:
        print(usage())
        return 0 if words else 2
    if words[0] == "--version":
        print(f"agentload {metadata.version('agentload')}")
        return 0
    if words[0] not in COMMANDS:
        print(
            f"agentload: no command {words[0]!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr
        )
        return 2
    command: Callable[[Sequence[str]], int] = import_module(COMMANDS[words[0]][0]).main
    return command(words[1:])


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: agentload COMMAND ...   (agentload COMMAND --help tells its options)",
            "",
            *lines,
            "",
            "The load itself is plain Locust: locust -f locustfiles/coding_agents.py --help",
        ]
    )
