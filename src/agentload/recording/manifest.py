"""The manifest of a run folder: what was run, on what, with what outcome."""

from __future__ import annotations

import os
import re
import secrets
import socket
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from agentload.atomic_file import replace_json
from agentload.recording.record import (
    MANIFEST_JSON,
    SCHEMA_VERSION,
    RowsOn,
    RunState,
    Verdict,
)

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_LIBRARIES = ("agentload", "locust", "gevent", "openai", "httpx2", "pyzmq", "prometheus-client")


@dataclass(frozen=True, slots=True)
class Judgement:
    """The load generator's verdict on its own run, with one reason for each fault found."""

    level: Verdict
    reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class Counts:
    """What became of the turns.

    planned = turns that were due; sent = attempts handed to the client; recorded = rows that
    reached `turns.csv`, here or in the shards of the workers; dropped = due but never sent; lost =
    sent but not recorded.
    """

    planned: int = 0
    sent: int = 0
    recorded: int = 0
    dropped: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """Where a worker keeps its rows, with how many it had when it was last heard of."""

    path: str  # on the worker's machine
    rows: dict[str, int]  # of each file
    complete: bool  # the worker ended well: these are all


@dataclass(slots=True)
class WorkerEntry:
    """One load-generating process. The offset leads from its monotonic clock to the run's clock."""

    worker_id: str
    host: str
    clock_offset_s: float | None = None
    clock_offset_error_s: float | None = None
    lost_at_s: float | None = None  # last heard of; empty when it delivered all it recorded
    rows_undelivered: int | None = None  # of turns it is known to have begun; there may be more
    missing_s: list[tuple[float, float]] = field(default_factory=list)  # without heartbeat
    health: dict[str, float | int | None] = field(default_factory=dict)
    client_id: str | None = None  # Locust's name of the process
    planned: int | None = None  # turns, as in the counts of the run
    sent: int | None = None
    dropped: int | None = None
    shard: ShardEntry | None = None  # where rows stay with the workers


@dataclass(slots=True)
class Manifest:
    """Everything in `manifest.json`. Times are seconds on the run's clock unless named wall."""

    run_id: str
    scenario: dict[str, Any]
    arm: dict[str, Any]  # name, settings as found on the server
    target: dict[str, Any]
    stages: list[dict[str, Any]]
    wall_start_unix_s: float
    settings_sources: dict[str, str]
    chars_per_token: float | None  # of the scenario's mix of text
    run_salt: str  # stands in every prompt; another one finds nothing of this run in a cache
    corpus_fingerprint: str  # of the texts that sessions are made of
    trace_fingerprint: str | None = None  # of the session file that is replayed
    settings: dict[str, str] = field(default_factory=dict)  # in force; keys and headers masked
    chars_per_token_by_kind: dict[str, float] | None = None  # None = not measured
    planned_s: float | None = None  # None = until stopped
    ended_s: float | None = None
    ended_by: str | None = None
    measured_from_s: float | None = None
    measured_to_s: float | None = None
    users: int | None = None
    workers: list[WorkerEntry] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)
    verdict: Judgement | None = None
    evidence: dict[str, Any] | None = None  # what the verdict rests on
    rows_on: RowsOn = "master"  # `worker`: the rows are in shards until they are merged
    scenario_sha256: str | None = None  # of the scenario as it was sent to the workers
    merged: dict[str, Any] | None = None  # what `agentload merge` put together
    state: RunState = "running"
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)  # alive on this host = state `running` is true
    libraries: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Replace `manifest.json` in one step: a reader sees the old one or the new one, never half."""
    replace_json(folder / MANIFEST_JSON, asdict(manifest))


def library_versions() -> dict[str, str]:
    """Versions of the libraries that decide what is measured; one that is missing is left out."""
    found = {}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def new_run_id(wall_s: float, name: str) -> str:
    """UTC time, four random hex digits, then the name with all but letters and digits as dashes."""
    stamp = datetime.fromtimestamp(wall_s, UTC).strftime("%Y%m%dT%H%M%SZ")
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:48]
    return "-".join(part for part in (stamp, secrets.token_hex(2), slug) if part)


def checked_run_id(text: str) -> str:
    """The id as given, or ValueError: it becomes the name of a folder."""
    if not _RUN_ID.fullmatch(text):
        raise ValueError(
            f"run id {text!r}: letters, digits, '.', '_' and '-' are allowed, "
            "at most 100, the first a letter or a digit"
        )
    return text
