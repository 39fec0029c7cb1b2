"""The suite's own options on Locust's command line.

None of them is a secret: Locust shows options in its web page and sends them to every worker. The
API key comes from a file or from the environment of each process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentload.scenario import parse_override

RUN_DIR = "runs"
DEFAULT_STOP_TIMEOUT_S = 120  # one long answer: 8,192 tokens at 70 tokens/s


def add_options(parser: Any) -> None:
    """Add the options to Locust's parser (configargparse; groups refuse the web page keywords)."""
    add = parser.add_argument
    add("--scenario", metavar="FILE", default="", help="scenario file (YAML)")
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
    parser.set_defaults(stop_timeout=str(DEFAULT_STOP_TIMEOUT_S))


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


def settings_file(options: Any, env: Mapping[str, str]) -> Path | None:
    path = options.settings or env.get("AGENTLOAD_SETTINGS")
    return Path(path) if path else None
