"""What keeps pages of other origins from using the suite's routes, and answers from being used."""

from __future__ import annotations

import secrets
from urllib.parse import urlsplit

from flask import Response
from flask_cors.core import FLASK_CORS_EVALUATED
from werkzeug.datastructures import Headers

TOKEN_HEADER = "X-Agentload-Token"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'self'"
)
FILE_POLICY = (
    "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline'; frame-ancestors 'none'"
)


def new_token() -> str:
    """What the page is told and a page of another origin cannot read."""
    return secrets.token_urlsafe(24)


def is_same_origin(headers: Headers, host: str) -> bool:
    """Whether a request comes from a page of ours, or from no page at all.

    Browsers say which page sends a request that changes something; programs say nothing. What they
    say of the site holds behind a proxy, too, that gives us another name.
    """
    site = headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = headers.get("Origin")
    return origin is None or urlsplit(origin).netloc.lower() == host.lower()


def has_token(headers: Headers, token: str) -> bool:
    given = headers.get(TOKEN_HEADER, "")
    return secrets.compare_digest(given.encode(), token.encode())


def harden(response: Response, policy: str) -> Response:
    """Headers of all our answers. Locust lets pages of any origin read its own; ours stay here."""
    setattr(response, FLASK_CORS_EVALUATED, True)
    response.headers.setdefault("Content-Security-Policy", policy)
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
    response.headers.setdefault("Cache-Control", "no-store")
    return response
