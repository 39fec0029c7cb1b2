"""Waits until an address answers; an init container runs it before Locust starts.

    python -m agentload.kubernetes.wait --limit-s 300 tcp://agentload-master:5557

Short tries from a fresh socket: a connection attempt whose first packets were dropped backs off to
minutes, a new one does not. An `http://` address has to answer with a status below 400; the API key
of `OPENAI_API_KEY` goes along.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import socket
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence

from agentload.clock import NS_PER_S, MonotonicClock

TCP_TRY_S = 2.0
HTTP_TRY_S = 10.0  # a server that loads a model answers late
PAUSE_S = 0.5
EXIT_TIME = 1
EXIT_REFUSED = 2
_NO_KEY = (401, 403)


class RefusedError(Exception):
    """The address answers, with what waiting will not mend."""


def attempt(url: str, env: Mapping[str, str]) -> str | None:
    """One try; None when it answers, else why not. Raises `RefusedError`."""
    parts = urllib.parse.urlsplit(url)
    try:
        if parts.scheme == "tcp":
            socket.create_connection((parts.hostname, parts.port), timeout=TCP_TRY_S).close()
            return None
        return _ask(url, env)
    except (OSError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", None) or error) or type(error).__name__


def _ask(url: str, env: Mapping[str, str]) -> str | None:
    key = env.get("OPENAI_API_KEY", "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=HTTP_TRY_S):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _NO_KEY:
            had = "the key of OPENAI_API_KEY is not the server's" if key else "it needs an API key"
            raise RefusedError(f"HTTP status {error.code}: {had}") from None
        return f"HTTP status {error.code}"


def wait_for(url: str, limit_s: float, say: Callable[[str], None]) -> bool:
    """Try until it answers; False when the limit came first. Says each new reason once."""
    clock = MonotonicClock()
    end_ns = clock.now_ns() + round(limit_s * NS_PER_S)
    told: str | None = None
    while (reason := attempt(url, os.environ)) is not None:
        if reason != told:
            say(f"{url}: {reason}")
            told = reason
        if clock.now_ns() >= end_ns:
            return False
        time.sleep(PAUSE_S)
    return True


def _address(text: str) -> str:
    parts = urllib.parse.urlsplit(text)
    try:
        whole = parts.hostname and (parts.scheme != "tcp" or parts.port)
    except ValueError:
        whole = None
    if parts.scheme not in ("tcp", "http", "https") or not whole or "$(" in text:
        raise argparse.ArgumentTypeError(
            f"{text!r}: tcp://HOST:PORT, http:// and https:// addresses are allowed"
        )
    return text


def main(argv: Sequence[str]) -> int:
    """Wait for every address in turn: 0 all answer, 1 the limit is over, 2 of no use to wait."""
    # As first process of a container a signal without a handler would be ignored.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(prog="agentload.kubernetes.wait", allow_abbrev=False)
    parser.add_argument("--limit-s", type=float, default=300.0, help="for each address")
    parser.add_argument("addresses", nargs="+", type=_address, metavar="ADDRESS")
    given = parser.parse_args(argv)
    for url in given.addresses:
        try:
            answers = wait_for(url, given.limit_s, _say)
        except RefusedError as error:
            _say(f"{url}: {error}")
            return EXIT_REFUSED
        if not answers:
            _say(f"{url} did not answer within {given.limit_s:.0f} s")
            return EXIT_TIME
        _say(f"{url} answers")
    return 0


def _say(text: str) -> None:
    print(f"agentload wait: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
