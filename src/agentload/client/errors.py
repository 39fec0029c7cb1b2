"""Classes of error: each failed attempt has exactly one, its text free of secrets."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime

TEXT_LIMIT = 300
SCRUB_LIMIT = 16_384  # of a text, before keys are searched in it
NORMAL_FORM_LIMIT = 120

# What an operator can do, by class; for the checks before a run.
MENDS = {
    "connect_error": "start the server, or mend base_url",
    "timeout_connect": "mend base_url, or open the way through the firewall",
    "dns_error": "mend the host name in base_url",
    "tls_error": "mend the certificate, give its authority as ca_file, or use http://",
    "auth": "give a valid key by OPENAI_API_KEY or --api-key-file",
    "rate_limited": "wait, or raise the limit of this key",
    "not_a_stream": "mend base_url (http:// or https://, host, port): what answers is no API",
    "http_404": "mend base_url: nothing there answers as an OpenAI-compatible API does",
    "model_not_found": "set the model (OPENAI_MODEL) to a name that is served",
    "context_overflow": "start the server with a larger --max-model-len",
    "stream_cut": "look for a proxy that cuts answers, then into the server's log",
}
# A gateway may have no model list; then a configured model is taken at its word.
NO_MODEL_LIST = ("http_404", "http_405", "http_501")

_SECRET = re.compile(r"(?i)\b(bearer\s+|api[_-]?key\W{1,3})\S+|\bsk-[\w-]{4,}")
_STATUS = re.compile(r"\bHTTP \d{3}\b")
_VARIES = re.compile(r"https?://\S+|[\w.:/-]*\d[\w.:/-]*|\b[0-9a-f]{8,}\b")
_CONTEXT = re.compile(
    r"(?i)context[ _-]?(length|window|size)|model length|max_model_len|too many (input )?tokens"
    r"|prompt is too long|input_tokens|max_new_tokens.{0,40}must be <="
)
_NO_MODEL = re.compile(
    r"(?i)model.{0,200}(does not exist|not found|not exist|not available|no such)"
    r"|(no such|unknown|invalid) model|model_not_found"
)
_HTTPX_CLASSES = {
    "ConnectTimeout": "timeout_connect",
    "PoolTimeout": "timeout_connect",
    "ReadTimeout": "timeout_read",
    "WriteTimeout": "timeout_read",
    "ProxyError": "connect_error",
    "RemoteProtocolError": "stream_cut",
    "ReadError": "connection_reset",
    "WriteError": "connection_reset",
    "ConnectError": "connect_error",
}


class RequestFailure(Exception):  # noqa: N818 -- `RequestError` is what httpx2 calls its base
    """One attempt failed below the event stream; `error_class` is one of the classes here."""

    def __init__(self, error_class: str, text: str) -> None:
        super().__init__(text)
        self.error_class = error_class


def of_status(status: int, message: str) -> str:
    """The class of an HTTP answer that is no success; `message` is its body as text."""
    if status == 429:
        return "rate_limited"
    if status in (401, 403):
        return "auth"
    if status == 404 and _NO_MODEL.search(message):
        return "model_not_found"
    if status in (400, 413, 422) and _CONTEXT.search(message):
        return "context_overflow"
    return f"http_{status}"


def of_error_event(kind: str, text: str) -> str:
    """The class of an error told where an answer should be, inside a 200: `kind` is the server's
    own code and type. Gateways tell rate limits this way once they have sent the status."""
    status = next((int(word) for word in kind.split() if re.fullmatch(r"[45]\d\d", word)), 400)
    if "rate_limit" in kind.lower():
        status = 429
    found = of_status(status, f"{kind} {text}")
    return "stream_error_event" if found.startswith("http_") else found


def of_exception(error: BaseException) -> str:
    """The class of a failure below HTTP, from the exception or what caused it.

    The cause nearest to the socket decides: libraries wrap one refused connection three times.
    """
    chain = list(_causes(error))
    for link in chain:
        named = getattr(link, "error_class", None)
        if isinstance(named, str):
            return named
    for link in reversed(chain):
        found = _of_socket_error(link)
        if found is not None:
            return found
    for link in chain:
        if type(link).__name__ in _HTTPX_CLASSES:
            return _HTTPX_CLASSES[type(link).__name__]
    return "connect_error"


def _of_socket_error(error: BaseException) -> str | None:
    if isinstance(error, ssl.SSLError):
        return "tls_error"
    if isinstance(error, socket.gaierror):
        return "dns_error"
    if isinstance(error, (ConnectionResetError, BrokenPipeError, ConnectionAbortedError)):
        return "connection_reset"
    if isinstance(error, OSError) and not isinstance(error, TimeoutError):
        return "connect_error"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds the server asks to wait: `retry-after-ms`, else `retry-after` (seconds or a date).

    `now` is wall time with a zone. None when neither can be read.
    """
    value = headers.get("retry-after-ms")
    if value is not None:
        milliseconds = _number(value)
        if milliseconds is not None:
            return milliseconds / 1000
    value = headers.get("retry-after")
    if value is None:
        return None
    seconds = _number(value)
    if seconds is not None:
        return seconds
    try:
        due = parsedate_to_datetime(value)
        return max(0.0, (due - now).total_seconds())
    except (TypeError, ValueError):  # not a date, or one without a zone
        return None


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < 1e9 else None


def scrub(text: str, secrets: Iterable[str] = ()) -> str:
    """One line of at most `TEXT_LIMIT` characters without keys; for the request's record.

    Halves of surrogate pairs, which no file can hold, become question marks.
    """
    text = text[:SCRUB_LIMIT].encode("utf-8", "replace").decode()
    for secret in secrets:
        if secret:
            text = text.replace(secret, "(hidden)")
    text = _SECRET.sub("(hidden)", text)
    text = " ".join(text.split())
    return text if len(text) <= TEXT_LIMIT else text[: TEXT_LIMIT - 3] + "..."


def normal_form(text: str) -> str:
    """The text without what varies between requests, so that equal failures count as one.

    Words with digits, hexadecimal ids and addresses become `#`; an HTTP status stays.
    """
    kept: list[str] = []

    def keep(match: re.Match[str]) -> str:
        kept.append(match.group())
        return "\x00"

    text = _STATUS.sub(keep, scrub(text).replace("\x00", ""))
    text = _VARIES.sub("#", text)
    statuses = iter(kept)
    text = re.sub("\x00", lambda _: next(statuses), text)
    return text[:NORMAL_FORM_LIMIT]
