"""The openai SDK of a target, over the hub's sockets or through a proxy."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import httpx2
import openai

from agentload.client.hub_transport import HubTransport, tls_context
from agentload.client.reader import HubReader
from agentload.client.route import proxy_for
from agentload.client.settings import TargetSettings
from agentload.clock import MonotonicClock

NO_KEY = "none"  # the SDK wants some key; without one the header is left out


@dataclass(frozen=True, slots=True)
class Sdk:
    """The openai client of one target, what each request's headers need, and the proxy, if any."""

    client: openai.OpenAI
    headers: Mapping[str, Any]
    proxy: str | None


def make_sdk(settings: TargetSettings, reader: HubReader) -> Sdk:
    """The SDK without retries of its own, over the hub's sockets, or over httpx2's own transport
    when the environment sends the target through a proxy."""
    proxy = proxy_for(settings.base_url, os.environ, settings.trust_env)
    transport: httpx2.BaseTransport
    if proxy is None:
        transport = HubTransport(settings, reader, MonotonicClock())
    else:
        transport = httpx2.HTTPTransport(proxy=proxy, verify=tls_context(settings))
    extra = {name: value.get_secret_value() for name, value in settings.extra_headers}
    key = settings.api_key
    headers: dict[str, Any] = {}
    if key is None and not any(name.lower() == "authorization" for name in extra):
        headers["Authorization"] = openai.omit  # must be said with each request
    client = openai.OpenAI(
        base_url=settings.base_url,
        api_key=NO_KEY if key is None else key.get_secret_value(),
        max_retries=0,
        timeout=httpx2.Timeout(settings.total_timeout_s, connect=settings.connect_timeout_s),
        default_headers={**extra, "accept-encoding": "identity"},
        http_client=httpx2.Client(transport=transport, timeout=None, trust_env=False),
    )
    return Sdk(client, headers, proxy)


@cache
def shared_sdk(settings: TargetSettings, reader: HubReader) -> Sdk:
    """One SDK client for each target and process; building it costs tens of ms."""
    return make_sdk(settings, reader)
