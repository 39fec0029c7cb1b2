"""Whether a request goes straight to its target or through a proxy of the environment."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit


def proxy_for(base_url: str, env: Mapping[str, str], trust_env: bool = True) -> str | None:
    """The proxy's address, or None for direct.

    Loopback never goes through a proxy; `NO_PROXY` holds host names (with or without a leading
    dot, matching their subdomains), addresses, networks, `host:port`, or `*`.
    """
    parts = urlsplit(base_url)
    host = (parts.hostname or "").lower()
    if not trust_env or _is_loopback(host):
        return None
    proxy = _variable(env, f"{parts.scheme}_proxy") or _variable(env, "all_proxy")
    if not proxy:
        return None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    excluded = (_variable(env, "no_proxy") or "").split(",")
    if any(_matches(host, port, entry.strip().lower()) for entry in excluded):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def proxy_fault(base_url: str, env: Mapping[str, str], trust_env: bool = True) -> str | None:
    """What is wrong with the proxy that requests would go through; its address is not shown, since
    it may carry a password."""
    proxy = proxy_for(base_url, env, trust_env)
    if proxy is None:
        return None
    try:
        parts = urlsplit(proxy)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        scheme = parts.scheme
    except ValueError:
        usable, scheme = False, ""
    if usable:
        return None
    return (
        f"the environment sends {urlsplit(base_url).hostname} through a proxy that cannot be used"
        f" ({scheme or 'no'} scheme; allowed are http:// and https://); to mend: name the host in"
        " NO_PROXY, or set trust_env to false in the settings file"
    )


def _variable(env: Mapping[str, str], name: str) -> str | None:
    return env.get(name) or env.get(name.upper())


def _is_loopback(host: str) -> bool:
    address = _address(host)
    if address is not None:
        address = getattr(address, "ipv4_mapped", None) or address
        return address.is_loopback or address.is_unspecified  # 0.0.0.0 is this machine, too
    return host == "localhost" or host.endswith(".localhost")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _matches(host: str, port: int, entry: str) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    name, colon, entry_port = entry.rpartition(":")
    if colon and entry_port.isdigit() and _address(entry) is None:
        if int(entry_port) != port:
            return False
        entry = name
    entry = entry.strip("[]")
    address = _address(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    entry = entry.removeprefix("*").lstrip(".")
    return host == entry or host.endswith(f".{entry}")
