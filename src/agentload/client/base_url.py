"""The one form of a target's address that requests are built from."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit

ENDPOINTS = ("/chat/completions", "/completions")
_VERSION = re.compile(r"v\d+")
_MEND = "write it like http://host:8000/v1"


class BaseUrlError(ValueError):
    """The address cannot be used; the text names the mend and never shows a password."""


def normalise_base_url(text: str) -> str:
    """The address every endpoint path is appended to, without a slash at the end.

    A last path part of the form v<digits> is kept, else `v1` is appended; an address that already
    ends in an endpoint is taken as it is. Raises `BaseUrlError`.
    """
    parts = _split(text.strip())
    path = re.sub("/{2,}", "/", parts.path).rstrip("/")
    for endpoint in ENDPOINTS:
        if path.endswith(endpoint):
            return _join(parts, path.removesuffix(endpoint))
    if not _VERSION.fullmatch(path.rpartition("/")[2]):
        path += "/v1"
    return _join(parts, path)


def server_root(base_url: str) -> str:
    """Where `/metrics`, `/tokenize` and `/health` live: the base URL without its version part."""
    head, _, last = base_url.rpartition("/")
    return head if _VERSION.fullmatch(last) else base_url


def _split(text: str) -> SplitResult:
    if not text:
        raise BaseUrlError(f"is empty; {_MEND}")
    if any(c.isspace() or ord(c) < 0x20 for c in text):
        raise BaseUrlError(f"has white space inside; {_MEND}")
    if "@" in text.partition("://")[2].partition("/")[0]:
        raise BaseUrlError("carries a user name or password; give the key by --api-key-file")
    try:
        parts = urlsplit(text)
        port_is_valid = parts.port is None or parts.port > 0
    except ValueError:
        raise BaseUrlError(f"{text!r} has a port or host that cannot be read; {_MEND}") from None
    if parts.scheme not in ("http", "https"):
        raise BaseUrlError(f"{text!r} does not begin with http:// or https://; {_MEND}")
    if not parts.hostname or not port_is_valid:
        raise BaseUrlError(f"{text!r} names no host or port 0; {_MEND}")
    if parts.query or parts.fragment:
        raise BaseUrlError(f"ends in a query or fragment, which no request can carry; {_MEND}")
    return parts


def _join(parts: SplitResult, path: str) -> str:
    return f"{parts.scheme}://{parts.netloc}{path}"
