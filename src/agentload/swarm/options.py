"""The suite's own options on Locust's command line.

None of them is a secret: Locust shows options in its web page and sends them to every worker. The
API key comes from a file or from the environment of each process.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agentload.scenario import parse_override

RUN_DIR = "runs"
DEFAULT_STOP_TIMEOUT_S = 120  # one long answer: 8,192 tokens at 70 tokens/s


# What Locust's web page offers for --scenario; empty on the command line, where any file will do.
_offered: list[str] = []


def offer_scenarios(paths: list[str]) -> None:
    """Let Locust's start form have a list to choose from."""
    _offered[:] = paths


def add_options(parser: Any) -> None:
    """Add the options to Locust's parser (configargparse; groups refuse the web page keywords)."""
    add = parser.add_argument
    add(
        "--scenario",
        metavar="FILE",
        default="",
        choices=_offered or None,
        help="scenario file (YAML)",
    )
    add("--model", default="", help="model name; default: OPENAI_MODEL, else the only one served")
    add("--arm", default="run", help="name of the server configuration that is measured")
    hidden = {"include_in_web_ui": False}
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="replace a key of the scenario, such as stop.after_turns=200; may be given again",
        **hidden,
    )
    add("--context-scale", type=float, help="instead of the scenario's context_scale", **hidden)
    add("--seed", type=int, help="instead of the scenario's seed", **hidden)
    add("--settings", metavar="FILE", help="settings.json or config.toml of the target", **hidden)
    add("--api-key-file", metavar="FILE", help="file that holds the API key", **hidden)
    add("--run-dir", default=RUN_DIR, metavar="DIR", help="where run folders are made", **hidden)
    add("--run-id", default="", help="name of the run folder; default: time and arm", **hidden)
    add("--run-salt", help="text that makes prompts unlike other runs'; default: random", **hidden)
    add("--spool-dir", metavar="DIR", help="where a worker keeps rows until delivered", **hidden)
    add(
        "--record-on",
        choices=("master", "worker"),
        default="master",
        help="whose disk keeps the rows; 'worker': merge the shards after the run",
        **hidden,
    )
    add(
        "--metrics-url",
        default="",
        metavar="URL[,URL]",
        help="pages to scrape each second; dns://HOST:PORT/PATH: of each address of a name; "
        "default: /metrics of the target; 'none': no scraping",
        **hidden,
    )
    add(
        "--dcgm-url",
        default="",
        metavar="URL[,URL]",
        help="pages of DCGM exporters to scrape beside; one with a key: AGENTLOAD_DCGM_URL",
        **hidden,
    )
    add(
        "--server-settings",
        metavar="FILE",
        help="JSON object of what else is in force at the server, for the manifest",
        **hidden,
    )
    add(
        "--metrics-port",
        type=_port,
        metavar="PORT",
        help="serve /agentload/metrics (OpenMetrics) here as well, without login",
        **hidden,
    )
    add(
        "--no-live",
        action="store_true",
        help="headless: print Locust's own table instead of the live figures",
        **hidden,
    )
    parser.set_defaults(stop_timeout=str(DEFAULT_STOP_TIMEOUT_S))


def _port(text: str) -> int:
    """A TCP port; ValueError is told by the parser, with the option's name."""
    port = int(text)
    if not 1 <= port <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is no port: 1 to 65535")
    return port


def target_flags(options: Any, host: str | None) -> dict[str, str | None]:
    """What the command line says of the target; None = not given there."""
    return {
        "base_url": host or None,
        "model": options.model or None,
        "api_key_file": options.api_key_file or None,
    }


def scenario_overrides(options: Any) -> dict[str, object]:
    """Keys of the scenario that the command line replaces; ValueError names what is no override.

    `--context-scale` and `--seed` go before `--set`.
    """
    given = {"context_scale": options.context_scale, "seed": options.seed}
    named = {key: value for key, value in given.items() if value is not None}
    return {**dict(map(parse_override, options.set)), **named}


def metrics_pages(options: Any) -> tuple[str, ...] | None:
    """The pages given; empty = the target's own, None = do not scrape."""
    pages = tuple(url.strip() for url in options.metrics_url.split(",") if url.strip())
    return None if pages == ("none",) else pages


def dcgm_pages(options: Any, env: Mapping[str, str]) -> tuple[str, ...]:
    """The exporters' pages; ValueError names what is no address, without showing a password.

    A user name and password are taken from the environment only: a command line can be read by
    every process of the machine.
    """
    given = options.dcgm_url or ""
    if "@" in given:
        raise ValueError(
            "--dcgm-url carries a user name or password, which the process list would show; set"
            " AGENTLOAD_DCGM_URL in the environment instead"
        )
    pages = [u.strip() for u in (given or env.get("AGENTLOAD_DCGM_URL", "")).split(",")]
    for page in filter(None, pages):
        if not is_page(page):
            source = "--dcgm-url" if given else "AGENTLOAD_DCGM_URL"
            shown = f" {page!r}" if "@" not in page else ""
            raise ValueError(
                f"{source}{shown} is no address; write it like http://host:9400/metrics"
            )
    return tuple(
        page if "/" in page.partition("://")[2] else f"{page}/metrics"
        for page in filter(None, pages)
    )


def is_page(url: str) -> bool:
    """Whether a page can be asked for at this address."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def server_settings(options: Any) -> dict[str, str]:
    """What the file says is in force at the server; ValueError names file and fault."""
    if not options.server_settings:
        return {}
    file = Path(options.server_settings)
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"--server-settings {file}: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"--server-settings {file}: no JSON: {error}") from None
    if not isinstance(found, dict) or not all(
        isinstance(value, bool | int | float | str) for value in found.values()
    ):
        raise ValueError(f"--server-settings {file}: must be one JSON object of texts and numbers")
    return {name: str(value) for name, value in found.items()}


def settings_file(options: Any, env: Mapping[str, str]) -> Path | None:
    path = options.settings or env.get("AGENTLOAD_SETTINGS")
    return Path(path) if path else None
