"""Puts the shards of a run and the folder of its owner together to one run folder."""

from __future__ import annotations

import resource
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentload.atomic_file import replace_json
from agentload.recording.merge_folder import FolderError, building, copy_others, put, writing
from agentload.recording.merge_given import missing_text, read_base, read_shards
from agentload.recording.merge_manifest import (
    MergedShard,
    expected_missing,
    merged_manifest,
    told_rows,
    worker_entries,
)
from agentload.recording.merge_rows import (
    LAYOUTS,
    Faults,
    Layout,
    RowFile,
    count_delivered,
    merged_lines,
    requests_there_twice,
)
from agentload.recording.record import CHUNKS_CSV, MANIFEST_JSON, TURNS_CSV
from agentload.recording.shard import SHARDS_FOLDER, Shard

_SPARE_FILES = 64


class MergeError(Exception):
    """Nothing was written; `faults` holds what is wrong, up to a limit."""

    def __init__(self, faults: Sequence[str], count: int) -> None:
        self.faults = tuple(faults)
        more = count - len(faults)
        super().__init__("\n".join([*faults, *([f"and {more} more"] if more else [])]))


class MissingShardsError(Exception):
    """Nothing was written: workers of the run are without shard; the text names them."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge made. `was_there` says that the same merge had been done before."""

    manifest: dict[str, Any]
    shards: tuple[MergedShard, ...]
    was_there: bool


def merge(
    run: Path, shards: Sequence[Path], out: Path, *, allow_missing: bool, compress: bool
) -> Merged:
    """Make the run folder `out` of the owner's folder `run` and the shards below `shards`.

    `run` and the shards stay as they are. `out` appears whole or not at all. Memory holds one row
    of each shard and eight bytes for each request. Raises MergeError and MissingShardsError.
    """
    faults = Faults()
    base = read_base(run, faults)
    found = read_shards(shards or _own_shards(run), base, faults)
    _raise(faults)
    missing = expected_missing(base, {shard.client_id for _, shard in found})
    if missing and not allow_missing:
        raise MissingShardsError(missing_text(base, missing))
    if not found and not missing:
        raise MergeError([f"{run}: no shard was given, and none is expected"], 1)
    _allow_open_files(len(found))
    try:
        with building(out) as folder:
            merged = _merge_rows(run, base, found, folder, compress, faults)
            _raise(faults)
            recorded = _rows_in(folder, TURNS_CSV)
            manifest = merged_manifest(base, merged, missing, recorded)
            copy_others(run, folder, faults)
            _raise(faults)
            replace_json(folder / MANIFEST_JSON, manifest)
            was_there = put(folder, out)
    except FolderError as error:
        raise MergeError([str(error)], 1) from None
    return Merged(manifest, tuple(merged), was_there)


def _raise(faults: Faults) -> None:
    if faults.count:
        raise MergeError(faults.shown, faults.count)


def _own_shards(run: Path) -> list[Path]:
    """Shards that workers of the owner's machine made with the same --run-dir."""
    return [run / SHARDS_FOLDER] if (run / SHARDS_FOLDER).is_dir() else []


def _allow_open_files(shards: int) -> None:
    """Each shard is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = shards + _SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _merge_rows(
    run: Path,
    base: dict[str, Any],
    found: Sequence[tuple[Path, Shard]],
    folder: Path,
    compress: bool,
    faults: Faults,
) -> list[MergedShard]:
    merged = [MergedShard(shard) for _, shard in found]
    for layout in LAYOUTS:
        files = [_shard_file(path, shard, layout, faults) for path, shard in found]
        _merge_file(_base_file(run, base, layout, faults), files, folder, compress, faults)
        for file, shard in zip(files, merged, strict=True):
            shard.rows[layout.name], shard.before[layout.name] = file.rows, file.skip
            if file.torn:
                shard.torn.append(layout.name)
    _compare_told(base, merged, faults)
    return merged


def _base_file(run: Path, base: dict[str, Any], layout: Layout, faults: Faults) -> RowFile:
    begins = f"{base['run_id']},".encode() if layout.name == TURNS_CSV else b""
    return RowFile(run, layout, faults, begins, ended_well=base.get("state") == "complete")


def _shard_file(folder: Path, shard: Shard, layout: Layout, faults: Faults) -> RowFile:
    begins = f"{shard.run_id},{shard.worker_id},".encode() if layout.name == TURNS_CSV else b""
    seal = (shard.files or {}).get(layout.name)
    return RowFile(folder, layout, faults, begins, seal, ended_well=shard.state == "complete")


def _merge_file(
    base: RowFile, files: Sequence[RowFile], folder: Path, compress: bool, faults: Faults
) -> None:
    layout = base.layout
    requests = None if layout.request is None else array("q")
    count_delivered(base, files)
    with writing(folder, layout.name, compress and layout.name == CHUNKS_CSV) as out:
        out.write(layout.header)
        out.writelines(merged_lines([base, *files], requests))
    if requests is not None and not faults.count:
        double = requests_there_twice(requests, folder, layout)
        faults.add(*(f"{layout.name}: request {name} has more than one row" for name in double))


def _compare_told(base: dict[str, Any], merged: Sequence[MergedShard], faults: Faults) -> None:
    """A shard has no fewer rows than its worker told the owner of the run."""
    entries = worker_entries(base)
    for shard in merged:
        told = told_rows(entries.get(shard.shard.client_id, {}))
        for name, rows in told.items():
            if shard.rows[name] < rows:
                faults.add(
                    f"shard of {shard.shard.name}: {name} has {shard.rows[name]} rows; "
                    f"its worker told the run of {rows}"
                )


def _rows_in(folder: Path, name: str) -> int:
    lines = 0
    with (folder / name).open("rb") as file:
        while block := file.read(1 << 20):
            lines += block.count(b"\n")
    return lines - 1
