"""Settings files in the forms people already have: settings.json, config.toml."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

# The nested keys of both forms, and the setting each one is. None: accepted; what it asks for is
# always recorded, so there is nothing to set.
NESTED: dict[str, str | None] = {
    "api.base_url": "base_url",
    "api.api_key": "api_key",
    "api.timeout_seconds": "total_timeout_s",
    "api.timeout": "total_timeout_s",
    "api.max_retries": "max_retries",
    "api.extra_headers": "extra_headers",
    "model.default": "model",
    "model.name": "model",
    "model.temperature": "temperature",
    "model.max_tokens": "max_tokens",
    "debug.log_request_timing": None,
    "debug.log_token_count": None,
    "observability.record_ttft": None,
    "observability.record_tokenize_ms": None,
    "observability.record_queue_ms": None,
}
_SECTIONS = tuple(dict.fromkeys(key.partition(".")[0] for key in NESTED))


class SettingsFileError(ValueError):
    """Every fault of one file; each text begins with the file's name."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


def read_settings_file(file: Path, names: tuple[str, ...]) -> dict[str, Any]:
    """Raw values by setting name (`names` are those a flat file may use).

    Raises `SettingsFileError` for a file that cannot be read, an unknown key, or one setting
    given twice.
    """
    content = _parse(file)
    values: dict[str, Any] = {}
    faults: list[str] = []
    for key, value in content.items():
        pairs = (
            [(f"{key}.{inner}", v) for inner, v in value.items()]
            if key in _SECTIONS and isinstance(value, dict)
            else [(key, value)]
        )
        for path, item in pairs:
            _take(file, path, item, names, values, faults)
    if faults:
        raise SettingsFileError(faults)
    return values


def _take(
    file: Path,
    path: str,
    item: object,
    names: tuple[str, ...],
    values: dict[str, Any],
    faults: list[str],
) -> None:
    if path in NESTED:
        name = NESTED[path]
    elif path in names:
        name = path
    else:
        allowed = ", ".join((*names, *NESTED))
        faults.append(f"{file}: unknown key {path!r}; allowed are {allowed}")
        return
    if name is None:
        if not isinstance(item, bool):
            faults.append(f"{file}: {path} must be true or false")
    elif name in values:
        faults.append(f"{file}: {path} gives {name} a second time")
    else:
        values[name] = item


class _GivenTwiceError(Exception):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a key that stands twice the parser would silently keep the last."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _GivenTwiceError(repr(key[:80]))
        found[key] = value
    return found


def _parse(file: Path) -> dict[str, Any]:
    if file.suffix not in (".json", ".toml"):
        raise SettingsFileError([f"{file}: a settings file ends in .json or .toml"])
    try:
        text = file.read_text(encoding="utf-8-sig")
        is_json = file.suffix == ".json"
        content = json.loads(text, object_pairs_hook=_once) if is_json else tomllib.loads(text)
    except _GivenTwiceError as error:
        raise SettingsFileError([f"{file}: key {error} stands twice"]) from None
    except OSError as error:
        raise SettingsFileError([f"{file}: {error.strerror}"]) from None
    except UnicodeDecodeError:
        raise SettingsFileError([f"{file}: is not UTF-8 text"]) from None
    except (ValueError, RecursionError) as error:
        # Only the place: the parser's own text may quote a line with the key in it.
        place = f"line {error.lineno}" if isinstance(error, json.JSONDecodeError) else "its syntax"
        raise SettingsFileError([f"{file}: {place} is not valid {file.suffix[1:]}"]) from None
    if not isinstance(content, dict):
        raise SettingsFileError([f"{file}: must hold a table of settings at its top"])
    return content
