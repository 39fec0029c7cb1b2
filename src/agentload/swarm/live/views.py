"""Which views of the live figures a process has beside its web page."""

from __future__ import annotations

import sys
from typing import Any

from agentload.swarm.live.metrics_port import serve
from agentload.swarm.live.terminal import Terminal

EXIT_INPUT = 2


def show_live(environment: Any) -> None:
    """The port for Prometheus, and the terminal of a headless run."""
    options = environment.parsed_options
    if options.metrics_port is not None:
        _serve(options.metrics_port)
    if options.headless and not options.only_summary and not options.no_live:
        # Locust's own table of whole requests, rounded, would come between every two seconds. It
        # still comes at the end.
        options.only_summary = True
        terminal = Terminal(shared=bool(options.processes))
        environment.events.quitting.add_listener(terminal.close)


def _serve(port: int) -> None:
    try:
        serve("", port)
    except OSError as error:
        sys.stderr.write(f"agentload: --metrics-port {port}: {error.strerror}\n")
        sys.exit(EXIT_INPUT)
