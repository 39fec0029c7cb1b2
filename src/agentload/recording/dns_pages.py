"""The pages behind a `dns://` address: one for each address that its name has.

A Service spreads requests over its replicas, so its `/metrics` is one replica's page at random. A
headless Service has the addresses of all of them: `dns://agentload-server-pods:8000/metrics` stands
for `http://ADDRESS:8000/metrics` of each.
"""

from __future__ import annotations

import socket
import urllib.parse
from collections.abc import Callable

SCHEME = "dns"
Resolve = Callable[[str, int], tuple[str, ...]]


def addresses(host: str, port: int) -> tuple[str, ...]:
    """The addresses of a name in order, each once; IPv6 ones in brackets. Raises `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    hosts = {str(info[4][0]): info[0] for info in found}
    return tuple(f"[{h}]" if hosts[h] == socket.AF_INET6 else h for h in sorted(hosts))


def is_dns(url: str) -> bool:
    return urllib.parse.urlsplit(url).scheme == SCHEME


def pages_of(url: str, resolve: Resolve = addresses) -> tuple[str, ...]:
    """The pages that a `dns://` address stands for now. Raises `OSError` when it has none."""
    parts = urllib.parse.urlsplit(url)
    port = parts.port or 80
    return tuple(
        f"http://{address}:{port}{parts.path or '/metrics'}"
        for address in resolve(parts.hostname or "", port)
    )
