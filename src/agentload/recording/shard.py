"""The shard of a run: what one worker recorded, with a description that says whose it is."""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from agentload.atomic_file import replace_json
from agentload.recording.record import SCHEMA_VERSION, RunState
from agentload.recording.relay_checks import SHARD_FILES

SHARD_JSON = "shard.json"
SHARDS_FOLDER = "shards"  # of a run folder, on the machine of the worker
MAX_JSON_BYTES = 1_000_000
_BLOCK_BYTES = 1 << 20


class ShardError(Exception):
    """A shard that cannot be made or used; `faults` holds all that was found."""

    def __init__(self, *faults: str) -> None:
        self.faults = faults
        super().__init__("\n".join(faults))


@dataclass(frozen=True, slots=True)
class Seal:
    """What a file held when its worker had written the last row; the header is no row."""

    rows: int
    size_bytes: int
    crc32: int


@dataclass(slots=True)
class Shard:
    """Everything in `shard.json`. Instants of the rows are on the run's clock already.

    They were put there one by one with the offset as it was known then: one offset for a whole run
    would be wrong by the drift of the clocks. `state` is `running` until all files are sealed.
    """

    run_id: str
    run_salt: str
    scenario_sha256: str
    worker_id: str
    rank: int
    client_id: str
    host: str
    clock_offset_s: float | None = None  # leads from the worker's clock to the run's, at the end
    clock_offset_error_s: float | None = None
    planned: int | None = None
    sent: int | None = None
    dropped: int | None = None
    files: dict[str, Seal] | None = None
    state: RunState = "running"
    schema_version: int = SCHEMA_VERSION

    @property
    def name(self) -> str:
        return f"{self.worker_id} ({self.client_id})"


def shard_folder_name(worker_id: str, client_id: str) -> str:
    """Workers that join late share a rank, so the id of the process is in it, too."""
    return f"{worker_id}-{client_id[-8:]}"


def scenario_sha256(scenario_json: str) -> str:
    return hashlib.sha256(scenario_json.encode()).hexdigest()


def write_shard(folder: Path, shard: Shard) -> None:
    replace_json(folder / SHARD_JSON, asdict(shard))


def sealed(folder: Path) -> dict[str, Seal]:
    """The seal of each file of a shard to which nothing is added any more."""
    return {name: _seal(folder / name) for name in SHARD_FILES}


def _seal(path: Path) -> Seal:
    lines = size = crc = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            lines += block.count(b"\n")
            size += len(block)
            crc = zlib.crc32(block, crc)
    return Seal(max(0, lines - 1), size, crc)


def read_shard(folder: Path) -> Shard:
    """`shard.json` of a folder; raises ShardError with every fault of it."""
    path = folder / SHARD_JSON
    raw = read_json(path, "a shard")
    version = raw.get("schema_version")
    if version != SCHEMA_VERSION:
        raise ShardError(f"{path}: schema_version {version!r}: allowed is {SCHEMA_VERSION}")
    faults = [
        f"{path}: {key} {raw.get(key)!r}: {what} is needed"
        for key, (fits, what) in _KEYS.items()
        if not fits(raw.get(key))
    ]
    seals, seal_faults = _read_seals(raw.get("files"))
    faults += [f"{path}: {fault}" for fault in seal_faults]
    if raw.get("state") == "complete" and seals is None and not seal_faults:
        faults.append(f"{path}: files None: the seals of a complete shard are needed")
    if faults:
        raise ShardError(*faults)
    return Shard(**{key: raw[key] for key in _KEYS}, files=seals)


def read_json(path: Path, what: str) -> dict[str, Any]:
    """An object from a regular file of bounded size; raises ShardError."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
        if len(text) > MAX_JSON_BYTES:
            raise ShardError(f"{path}: more than {MAX_JSON_BYTES:,} bytes")
        raw = json.loads(text.decode("utf-8"))
    except OSError as error:
        why = "is a symbolic link" if path.is_symlink() else error.strerror
        raise ShardError(f"{path}: {why}: the folder of {what} is needed") from None
    except (ValueError, RecursionError) as error:
        raise ShardError(f"{path}: is no JSON: {str(error).splitlines()[0]}") from None
    if not isinstance(raw, dict):
        raise ShardError(f"{path}: holds no object")
    return raw


def _read_seals(raw: Any) -> tuple[dict[str, Seal] | None, list[str]]:
    if raw is None:
        return None, []
    keys = {"rows", "size_bytes", "crc32"}
    if (
        not isinstance(raw, dict)
        or set(raw) != set(SHARD_FILES)
        or not all(isinstance(s, dict) and set(s) == keys for s in raw.values())
        or not all(_is_count(v) for s in raw.values() for v in s.values())
    ):
        return None, [f"files: rows, size_bytes and crc32 of {', '.join(SHARD_FILES)} are needed"]
    return {name: Seal(**seal) for name, seal in raw.items()}, []


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 300 and value.isprintable()


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def is_number(value: Any) -> bool:
    """A finite one."""
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")
    )


_TEXT = (_is_text, "a text")
_COUNT = (lambda v: v is None or _is_count(v), "a whole number or null")
_NUMBER = (lambda v: v is None or is_number(v), "a finite number or null")
_KEYS = {
    "run_id": _TEXT,
    "run_salt": (lambda v: isinstance(v, str), "a text"),
    "scenario_sha256": _TEXT,
    "worker_id": _TEXT,
    "rank": (_is_count, "a whole number"),
    "client_id": _TEXT,
    "host": _TEXT,
    "clock_offset_s": _NUMBER,
    "clock_offset_error_s": _NUMBER,
    "planned": _COUNT,
    "sent": _COUNT,
    "dropped": _COUNT,
    "state": (lambda v: v in get_args(RunState), f"one of {', '.join(get_args(RunState))}"),
}
