"""Which target is loaded: each setting with the place it came from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from agentload.client.base_url import BaseUrlError, normalise_base_url
from agentload.client.route import proxy_fault
from agentload.client.settings_file import SettingsFileError, read_settings_file

ENV_OF = {"base_url": "OPENAI_BASE_URL", "api_key": "OPENAI_API_KEY", "model": "OPENAI_MODEL"}
DEFAULT_REPLICA_HEADERS = ("x-replica", "x-served-by", "x-pod-name", "x-backend-server")


class SettingsError(ValueError):
    """Every fault of the settings, one a line; no key or header value is in the text."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """One OpenAI-compatible target. Seconds unless named otherwise.

    The deadlines' defaults let a 120K-token prompt survive a queue of minutes: ten minutes to the
    first token, two minutes between reads (an unchunked cold prefill stalls its neighbours for
    tens of seconds), half an hour in all.
    """

    base_url: str = "http://127.0.0.1:8000/v1"
    api_key: SecretStr | None = None
    model: str | None = None  # None: the only model the target serves
    extra_headers: tuple[tuple[str, SecretStr], ...] = ()
    connect_timeout_s: float = 10.0
    first_token_timeout_s: float = 600.0
    between_chunks_timeout_s: float = 120.0
    total_timeout_s: float = 1800.0
    max_retries: int = 0  # by the session: each attempt is a record of its own
    max_retry_after_s: float = 120.0
    keepalive_expiry_s: float = 4.0  # below uvicorn's 5 s, so that the client drops idle ones first
    trust_env: bool = True  # proxies from HTTP_PROXY, HTTPS_PROXY, NO_PROXY
    ca_file: str | None = None
    replica_headers: tuple[str, ...] = DEFAULT_REPLICA_HEADERS
    temperature: float | None = None  # None: the scenario's
    max_tokens: int | None = None  # upper bound on what a turn may ask for

    def secrets(self) -> tuple[str, ...]:
        """Values that must not appear in any output."""
        values = [value for _, value in self.extra_headers]
        if self.api_key is not None:
            values.append(self.api_key)
        return tuple(value.get_secret_value() for value in values)

    def shown(self) -> dict[str, str]:
        """Each setting as text, keys and header values masked."""
        return {f.name: _shown(getattr(self, f.name)) for f in fields(self)}


def load_settings(
    flags: Mapping[str, str | None], env: Mapping[str, str], file: Path | None
) -> tuple[TargetSettings, dict[str, str]]:
    """Settings by flag, then environment, then file, then default; and each one's source.

    `flags` are named as the fields of `TargetSettings`, plus `api_key_file`. Raises
    `SettingsError` with all faults at once.
    """
    faults: list[str] = []
    found = _from_file(file, faults)
    for name, variable in ENV_OF.items():
        if variable in env:
            found[name] = (env[variable], f"environment {variable}")
    found.update(_from_flags(flags, faults))
    values: dict[str, Any] = {}
    for name, (raw, source) in found.items():
        try:
            values[name] = _PARSERS[name](raw)
        except ValueError as fault:
            faults.append(f"{name} ({source}): {fault}")
    if faults:
        raise SettingsError(faults)
    sources = {f.name: "default" for f in fields(TargetSettings)}
    sources.update({name: source for name, (_, source) in found.items()})
    settings = TargetSettings(**values)
    if broken := proxy_fault(settings.base_url, env, settings.trust_env):
        raise SettingsError([broken])
    return settings, sources


def _from_file(file: Path | None, faults: list[str]) -> dict[str, tuple[object, str]]:
    if file is None:
        return {}
    try:
        values = read_settings_file(file, tuple(_PARSERS))
    except SettingsFileError as error:
        faults.extend(error.faults)
        return {}
    return {name: (value, f"file {file}") for name, value in values.items()}


def _from_flags(
    flags: Mapping[str, str | None], faults: list[str]
) -> dict[str, tuple[object, str]]:
    given = {name: value for name, value in flags.items() if value is not None}
    key_file = given.pop("api_key_file", None)
    found: dict[str, tuple[object, str]] = {}
    for name, value in given.items():
        if name not in _PARSERS:
            allowed = ", ".join((*_PARSERS, "api_key_file"))
            faults.append(f"{name} (flag): no such setting; allowed are {allowed}")
        else:
            found[name] = (value, f"flag --{name.replace('_', '-')}")
    if key_file is not None and "api_key" not in found:
        try:
            text = Path(key_file).read_text(encoding="utf-8-sig")
            found["api_key"] = (text, f"flag --api-key-file {key_file}")
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "is not UTF-8 text"
            faults.append(f"api_key (flag --api-key-file {key_file}): {reason}")
    return found


def parse_api_key(raw: object) -> SecretStr:
    """The key without white space at its ends; inside there may be none. The text is never shown.

    Raises `ValueError`.
    """
    if not isinstance(raw, str):
        raise ValueError("must be text")
    key = raw.strip()
    if not key:
        raise ValueError("is empty; leave it out if the target needs no key")
    bad = not key.isascii() or any(c.isspace() or not c.isprintable() for c in key)
    if bad or {key[0], key[-1]} & set("\"'"):
        raise ValueError(
            "has white space, quotes, control or non-ASCII characters; write the key as one line "
            "without quotes (for Kubernetes: printf %s KEY | base64, not echo)"
        )
    return SecretStr(key)


def _base_url(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError(f"must be text, not {raw!r}")
    try:
        return normalise_base_url(raw)
    except BaseUrlError as error:
        raise ValueError(str(error)) from None


def _text(raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError("must be text that is not empty")
    return raw.strip()


def _seconds(raw: object) -> float:
    value = _number(raw)
    if not 0 < value <= 86_400:
        raise ValueError(f"{raw!r} is not above 0 and at most 86400 seconds")
    return value


def _number(raw: object) -> float:
    try:
        if isinstance(raw, bool) or not isinstance(raw, (int, float, str)):
            raise ValueError
        return float(raw)
    except (ValueError, OverflowError):
        raise ValueError(f"{raw!r} is not a number") from None


def _temperature(raw: object) -> float:
    value = _number(raw)
    if not 0 <= value <= 2:
        raise ValueError(f"{raw!r} is not from 0 to 2")
    return value


def _count(lowest: int, highest: int) -> Callable[[object], int]:
    def parse(raw: object) -> int:
        value = _number(raw)
        if not lowest <= value <= highest or value != int(value):
            raise ValueError(f"{raw!r} is not a whole number from {lowest} to {highest}")
        return int(value)

    return parse


def _boolean(raw: object) -> bool:
    word = str(raw).strip().lower()
    if word not in ("true", "false", "1", "0", "yes", "no"):
        raise ValueError(f"{raw!r} is not true or false")
    return word in ("true", "1", "yes")


def _names(raw: object) -> tuple[str, ...]:
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list) or not all(isinstance(p, str) and p.strip() for p in parts):
        raise ValueError("must be a list of header names")
    return tuple(p.strip().lower() for p in parts)


def _headers(raw: object) -> tuple[tuple[str, SecretStr], ...]:
    """`{"name": "value"}`, or the same as lines `Name: value`. Values are never shown."""
    if isinstance(raw, str):
        lines = [line.partition(":") for line in raw.splitlines() if line.strip()]
        if not all(colon for _, colon, _ in lines):
            raise ValueError("a header must be written as `Name: value`")
        raw = {name.strip(): value for name, _, value in lines}
    if not isinstance(raw, dict):
        raise ValueError("must be a table of header names with their values")
    return tuple((_header_name(name), _header_value(name, value)) for name, value in raw.items())


def _header_name(name: object) -> str:
    text = str(name)
    if not text or not all(c.isascii() and (c.isalnum() or c in "-_.") for c in text):
        raise ValueError("a header name may hold letters, digits, '-', '_' and '.' only")
    if text.lower() in ("content-length", "transfer-encoding", "host", "connection"):
        raise ValueError(f"header {text} is set by the client itself")
    return text


def _header_value(name: object, value: object) -> SecretStr:
    text = value.strip() if isinstance(value, str) else None
    if text is None or not text.isascii() or not all(c.isprintable() for c in text):
        raise ValueError(f"the value of header {name} must be one line of printable ASCII")
    return SecretStr(text)


def _shown(value: object) -> str:
    if isinstance(value, SecretStr):
        return "(set, hidden)"
    if isinstance(value, tuple):
        return ", ".join(f"{v[0]}: (hidden)" if isinstance(v, tuple) else str(v) for v in value)
    return "" if value is None else str(value)


_PARSERS: dict[str, Callable[[object], Any]] = {
    "base_url": _base_url,
    "api_key": parse_api_key,
    "model": _text,
    "extra_headers": _headers,
    "connect_timeout_s": _seconds,
    "first_token_timeout_s": _seconds,
    "between_chunks_timeout_s": _seconds,
    "total_timeout_s": _seconds,
    "max_retries": _count(0, 10),
    "max_retry_after_s": _seconds,
    "keepalive_expiry_s": _seconds,
    "trust_env": _boolean,
    "ca_file": _text,
    "replica_headers": _names,
    "temperature": _temperature,
    "max_tokens": _count(1, 1_000_000),
}
