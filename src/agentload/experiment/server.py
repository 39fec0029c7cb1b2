"""The server of one cell: started, waited for, asked what is in force, ended."""

from __future__ import annotations

import json
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from agentload.experiment.errors import ExperimentError
from agentload.experiment.plan import Arm, CommandTarget, EmbeddedTarget, Experiment, Flag, flags_of
from agentload.experiment.process import Child

EMBEDDED_READY_TIMEOUT_S = 60.0
END_GRACE_S = 10.0
POLL_S = 0.2

# Traffic to servers of this machine never goes through a proxy of the environment.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True, slots=True)
class Served:
    """A server that answers: where it is, which model it serves, what it says is in force."""

    base_url: str
    model: str
    child: Child | None
    wished: dict[str, Flag]
    found: dict[str, object]

    def end(self) -> None:
        if self.child is not None:
            self.child.end(END_GRACE_S)


def command_line(flags: Mapping[str, Flag]) -> list[str]:
    """vLLM's spelling of flags: `True` is `--name`, `False` is `--no-name`."""
    words: list[str] = []
    for name, value in flags.items():
        if isinstance(value, bool):
            words.append(f"--{name}" if value else f"--no-{name}")
        else:
            words += [f"--{name}", str(value)]
    return words


def start(
    experiment: Experiment,
    arm: Arm,
    log: Path,
    sleep: Callable[[float], None],
) -> Served:
    """Start the arm's server and return when it serves its model; it is ended on any failure."""
    target, flags = experiment.target, flags_of(experiment, arm)
    if arm.base_url is not None and not isinstance(target, EmbeddedTarget | CommandTarget):
        return Served(arm.base_url, target.model, None, flags, found_settings(arm.base_url))
    port = free_port()
    command, timeout_s = _command(experiment, flags, port)
    child = Child(command, log)
    root = f"http://127.0.0.1:{port}"
    try:
        models = _wait_ready(child, root, timeout_s, sleep)
        return Served(f"{root}/v1", models[0], child, flags, found_settings(f"{root}/v1"))
    except BaseException:
        child.end(END_GRACE_S)
        raise


def _command(
    experiment: Experiment, flags: Mapping[str, Flag], port: int
) -> tuple[list[str], float]:
    target = experiment.target
    if isinstance(target, CommandTarget):
        command = [word.replace("{port}", str(port)) for word in target.command]
        return [*command, *command_line(flags)], target.ready_timeout_s
    simulator = [sys.executable, "-m", "agentload.sim.server", "--port", str(port)]
    return [*simulator, *command_line(flags)], EMBEDDED_READY_TIMEOUT_S


def free_port() -> int:
    """A port that was free a moment ago on the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_ready(
    child: Child, root: str, timeout_s: float, sleep: Callable[[float], None]
) -> list[str]:
    for _ in range(round(timeout_s / POLL_S)):
        if child.exit_code is not None:
            raise ExperimentError(
                f"the server ended with code {child.exit_code} before it was ready; its last"
                f" lines ({child.log}):\n{child.last_lines()}"
            )
        models = _served_models(root)
        if models:
            return models
        sleep(POLL_S)
    raise ExperimentError(
        f"the server did not answer {root}/v1/models within {timeout_s:.0f} s; its last lines"
        f" ({child.log}):\n{child.last_lines()}"
    )


def _served_models(root: str) -> list[str]:
    """The ids of `/v1/models`; empty while the server does not serve yet."""
    try:
        page = json.loads(_get(f"{root}/v1/models"))
    except (OSError, ValueError):
        return []
    return [str(model["id"]) for model in page.get("data", []) if "id" in model]


def found_settings(base_url: str) -> dict[str, object]:
    """What the server itself says is in force: version, cache and model length; absent if unsaid.

    Sources: `/version`, `vllm:cache_config_info` of `/metrics`, `max_model_len` of `/v1/models`.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    found: dict[str, object] = {}
    version = _json_or_none(f"{root}/version")
    if isinstance(version, dict) and "version" in version:
        found["version"] = version["version"]
    models = _json_or_none(f"{root}/v1/models")
    if isinstance(models, dict) and models.get("data"):
        found["max_model_len"] = models["data"][0].get("max_model_len")
    found.update(_cache_config(f"{root}/metrics"))
    return found


def _cache_config(url: str) -> dict[str, object]:
    wanted = {"block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype"}
    try:
        families = list(text_string_to_metric_families(_get(url).decode("utf-8")))
    except (OSError, ValueError):
        return {}
    for family in families:
        if family.name.startswith("vllm:cache_config"):
            labels = family.samples[0].labels if family.samples else {}
            return {name: labels[name] for name in sorted(wanted & labels.keys())}
    return {}


def _json_or_none(url: str) -> object | None:
    try:
        page: object = json.loads(_get(url))
    except (OSError, ValueError):
        return None
    return page


def _get(url: str) -> bytes:
    with _DIRECT.open(url, timeout=5.0) as answer:
        body: bytes = answer.read()
        return body
