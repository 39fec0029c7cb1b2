"""Asks a server what is in force: its pages, its log, and a trial of chunked prefill."""

from __future__ import annotations

import ipaddress
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from agentload.client.server_log import ServerLogError, read_server_log
from agentload.experiment.in_force import Reading, plain_name
from agentload.experiment.process import before_exec

PAGE_S = 5.0
PROBE_S = 300.0
TELLING = frozenset({"block_size", "num_gpu_blocks", "enable_prefix_caching", "cache_dtype"})

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NoKeyError(Exception):
    """The server wants a key that it was not given."""


def get(url: str) -> bytes:
    """A page of the server; raises OSError, and NoKeyError where the key is refused.

    Traffic to this machine never goes through a proxy of the environment.
    """
    key = os.environ.get("OPENAI_API_KEY", "").strip()
    headers = {"authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)
    opener = _DIRECT if _is_loopback(url) else urllib.request.build_opener()
    try:
        with opener.open(request, timeout=PAGE_S) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise NoKeyError(f"{url} answers {error.code}: set OPENAI_API_KEY") from None
        raise


def _is_loopback(url: str) -> bool:
    host = urllib.parse.urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def served_models(root: str) -> list[str]:
    """The ids of `/v1/models`; empty while the server does not serve yet. May raise NoKeyError."""
    page = _json(f"{root}/v1/models")
    found = page.get("data") if isinstance(page, dict) else None
    listed = found if isinstance(found, list) else []
    return [str(m["id"]) for m in listed if isinstance(m, dict) and "id" in m]


def readings(base_url: str, log: Path | None, wished: Collection[str]) -> list[Reading]:
    """What the server tells of its settings, of the surest source last; empty if it tells nothing.

    Sources: its log where that is ours, `vllm:cache_config_info` of `/metrics` (with the labels of
    the flags that were wished), `max_model_len` of `/v1/models`, and `/version`.
    """
    root = base_url.rstrip("/").removesuffix("/v1")
    found = [] if log is None else _of_log(log)
    found += _of_cache_config(f"{root}/metrics", TELLING | {plain_name(n) for n in wished})
    models = _quietly(f"{root}/v1/models")
    listed = models.get("data") if isinstance(models, dict) else None
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        found += _one("max_model_len", listed[0].get("max_model_len"), "/v1/models")
    version = _quietly(f"{root}/version")
    if isinstance(version, dict):
        found += _one("version", version.get("version"), "/version")
    return found


def _one(name: str, value: object, source: str) -> list[Reading]:
    return [] if value is None else [Reading(name, str(value)[:200], source)]


def _of_log(log: Path) -> list[Reading]:
    try:
        seen = read_server_log(log)
    except ServerLogError:
        return []
    return [Reading(plain_name(n), v, "the server's log") for n, v in seen.settings.items()]


def _of_cache_config(url: str, wanted: Collection[str]) -> list[Reading]:
    try:
        families = list(text_string_to_metric_families(get(url).decode("utf-8", "replace")))
    except (OSError, NoKeyError):
        return []
    except Exception:  # the parser raises whatever its slicing of a bad line comes to
        return []
    for family in families:
        if family.name.startswith("vllm:cache_config") and family.samples:
            labels = family.samples[0].labels
            return [
                Reading(name, labels[name], "/metrics") for name in sorted(labels) if name in wanted
            ]
    return []


def _quietly(url: str) -> object | None:
    try:
        return _json(url)
    except NoKeyError:
        return None


def _json(url: str) -> object | None:
    try:
        page: object = json.loads(get(url))
    except (OSError, ValueError):
        return None
    return page


def probe_chunking(
    base_url: str, model: str, prompt_tokens: int, cpus: frozenset[int] | None
) -> dict[str, Any]:
    """One trial (`agentload.client.chunking`) in a process of its own; what failed is in it, too.

    The prompts are random, so the load finds none of them in the cache.
    """
    module = "agentload.client.chunking_command"
    command = [sys.executable, "-m", module, base_url, model, str(prompt_tokens)]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_S,
            env=_with_key(os.environ),
            preexec_fn=before_exec(cpus),
            check=False,
        )
        found: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"effective": None, "why_not": f"no answer within {PROBE_S:.0f} s"}
    except ValueError:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"effective": None, "why_not": last[:300]}
    return found


def _with_key(env: Mapping[str, str]) -> dict[str, str]:
    return {"OPENAI_API_KEY": "-", **env}
