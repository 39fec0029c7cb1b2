"""The command `agentload doctor`: what works with a target, what does not, what mends it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from agentload.client.findings import Finding, worst
from agentload.client.server_log import ServerLogError, of_server_log, read_server_log
from agentload.client.settings import SettingsError, TargetSettings, load_settings
from agentload.scenario.document import ScenarioError
from agentload.scenario.load import load

DEFAULT_LONG_PROMPT_TOKENS = 16_000
Settings = tuple[TargetSettings, dict[str, str]]


def main(argv: Sequence[str]) -> int:
    """Print one line a finding, or all as JSON. 0: no fail among them, 1: some, 2: wrong call."""
    given = _parser().parse_args(argv)
    try:
        settings, found = _examine(given)
    except (SettingsError, ScenarioError, ServerLogError) as error:
        print(error, file=sys.stderr)
        return 2
    if given.json:
        listed = list(found)
        print(json.dumps(_as_json(listed, settings), indent=2))
    else:
        listed = list(_printed(found))
        _print_settings(settings)
    return 1 if worst(listed) == "fail" else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="agentload doctor", description=__doc__)
    add = parser.add_argument
    add("--base-url", metavar="URL", help="the target; else OPENAI_BASE_URL, else the settings")
    add("--api-key-file", metavar="FILE", help="file that holds the key; else OPENAI_API_KEY")
    add("--model", help="else OPENAI_MODEL, else the only one served")
    add("--ca-file", metavar="FILE", help="authority of the target's certificate (PEM)")
    add("--settings", metavar="FILE", type=Path, help="settings.json or config.toml")
    add("--scenario", metavar="FILE", type=Path, help="whose contexts must fit")
    add("--metrics-url", metavar="URL", help="the server's /metrics, if not beside the target")
    add("--long-prompt-tokens", type=int, default=DEFAULT_LONG_PROMPT_TOKENS, metavar="N",
        help="prompt that is sent beside a decoding stream (default %(default)s)")  # fmt: skip
    add("--server-log", metavar="FILE", type=Path, help="read a vLLM log; alone: nothing is sent")
    add("--json", action="store_true", help="findings and settings as JSON")
    return parser


def _examine(given: argparse.Namespace) -> tuple[Settings | None, Iterable[Finding]]:
    """The settings, if a target is asked, and the findings as they come."""
    of_log = [] if given.server_log is None else of_server_log(read_server_log(given.server_log))
    if given.server_log is not None and given.base_url is None:
        return None, of_log
    flags = {
        name: getattr(given, name) for name in ("base_url", "model", "api_key_file", "ca_file")
    }
    settings = load_settings(flags, os.environ, given.settings)
    scenario = load(given.scenario) if given.scenario is not None else None

    def findings() -> Iterator[Finding]:
        # Before anything that sends is imported: TLS and sockets must be patched first.
        from gevent import monkey

        monkey.patch_all()
        from agentload.client.doctor_probes import Examination, Wishes
        from agentload.client.transport import Client

        wishes = Wishes(scenario, given.metrics_url, given.long_prompt_tokens)
        client = Client(settings[0])
        yield from Examination(client, wishes).findings()
        client.close()
        yield from of_log

    return settings, findings()


def _printed(findings: Iterable[Finding]) -> Iterator[Finding]:
    for finding in findings:
        mend = f" -> {finding.mend}" if finding.mend else ""
        print(f"{finding.level:<4}  {finding.name}: {finding.seen}{mend}", flush=True)
        yield finding


def _print_settings(settings: Settings | None) -> None:
    if settings is not None:
        print("\nsettings")
        shown, sources = settings[0].shown(), settings[1]
        for name, value in shown.items():
            print(f"  {name} = {value or '(not set)'}  [{sources[name]}]")


def _as_json(findings: Sequence[Finding], settings: Settings | None) -> dict[str, object]:
    shown = settings[0].shown() if settings is not None else {}
    sources = settings[1] if settings is not None else {}
    return {
        "verdict": worst(findings),
        "findings": [asdict(finding) for finding in findings],
        "settings": {n: {"value": v, "source": sources[n]} for n, v in shown.items()},
    }
