"""What `agentload merge` was given: the folder of a run, and shards that must belong to it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from agentload.folder_lock import is_written
from agentload.recording.merge_manifest import told_rows, worker_entries, worker_name
from agentload.recording.merge_rows import Faults
from agentload.recording.record import MANIFEST_JSON, SCHEMA_VERSION, TURNS_CSV
from agentload.recording.shard import SHARD_JSON, Shard, ShardError, read_json, read_shard


def read_base(run: Path, faults: Faults) -> dict[str, Any]:
    path = run / MANIFEST_JSON
    try:
        base = read_json(path, "the owner of the run")
    except ShardError as error:
        faults.add(*error.faults)
        return {}
    if base.get("schema_version") != SCHEMA_VERSION:
        version = base.get("schema_version")
        faults.add(f"{path}: schema_version {version!r}: allowed is {SCHEMA_VERSION}")
    for key, kind in (("run_id", str), ("workers", list), ("counts", dict)):
        if not isinstance(base.get(key), kind):
            faults.add(f"{path}: {key} {base.get(key)!r}: {_KIND_NAMES[kind]} is needed")
    if base.get("state") == "running" and _is_alive(base):
        faults.add(f"{path}: the run goes on (process {base['pid']}): merge it when it is over")
    return base


_KIND_NAMES = {str: "a text", list: "a list", dict: "an object"}


def _is_alive(base: dict[str, Any]) -> bool:
    pid = base.get("pid")
    if not isinstance(pid, int) or base.get("host") != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def read_shards(
    given: Sequence[Path], base: dict[str, Any], faults: Faults
) -> list[tuple[Path, Shard]]:
    found: list[tuple[Path, Shard]] = []
    for folder in _shard_folders(given, faults):
        if is_written(folder):
            faults.add(f"{folder}: its worker still writes it: merge it when it has ended")
        try:
            found.append((folder, read_shard(folder)))
        except ShardError as error:
            faults.add(*error.faults)
    faults.add(*_strangers(base, found), *_doubles(found))
    return sorted(found, key=lambda item: (item[1].rank, item[1].client_id))


def _shard_folders(given: Sequence[Path], faults: Faults) -> Iterator[Path]:
    """Each folder given, or the shards in it."""
    for folder in given:
        if os.path.lexists(folder / SHARD_JSON):
            yield folder
            continue
        inside = sorted(folder.glob(f"*/{SHARD_JSON}"))
        yield from (path.parent for path in inside)
        if not inside:
            faults.add(f"{folder}: the folder of a shard is needed, or one that holds some")


def _strangers(base: dict[str, Any], found: Iterable[tuple[Path, Shard]]) -> Iterator[str]:
    """Shards that are not of this run."""
    entries = worker_entries(base)
    for folder, shard in found:
        path = folder / SHARD_JSON
        for key in ("run_id", "run_salt", "scenario_sha256"):
            wanted, value = base.get(key), getattr(shard, key)
            if wanted is not None and value != wanted:
                yield f"{path}: {key} {value!r}: the run has {wanted!r}"
        entry = entries.get(shard.client_id)
        if entry is None and base.get("state") != "running":
            yield f"{path}: client_id {shard.client_id!r}: the run has no such worker"
        elif entry is not None and entry.get("worker_id") != shard.worker_id:
            there = entry.get("worker_id")
            yield f"{path}: worker_id {shard.worker_id!r}: the run calls this worker {there!r}"


def _doubles(found: Iterable[tuple[Path, Shard]]) -> Iterator[str]:
    first: dict[str, Path] = {}
    for folder, shard in found:
        before = first.setdefault(shard.client_id, folder)
        if before is not folder:
            yield f"{folder}: the shard of {shard.name} was given before: {before}"


def missing_text(base: dict[str, Any], missing: Sequence[str]) -> str:
    entries = worker_entries(base)
    lines = []
    for client_id in missing:
        entry = entries[client_id]
        turns = told_rows(entry).get(TURNS_CSV)
        rows = "it told no number of turns" if turns is None else f"{turns} turns"
        where = (entry.get("shard") or {}).get("path") or "where it kept it is not known"
        lines.append(f"{worker_name(entry)} on {entry.get('host')}: {rows}; {where}")
    return "\n".join(lines)
