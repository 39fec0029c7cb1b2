"""The manifest of a merged run, from that of its owner and what the shards held."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from agentload.recording.manifest import Counts, Judgement
from agentload.recording.record import TURNS_CSV
from agentload.recording.relay_checks import SHARD_FILES
from agentload.recording.shard import Shard, is_number
from agentload.recording.verdict import Evidence, judge

NO_JUDGE = "the owner of the run was ended before it had judged it"
_COUNTED = ("planned", "sent", "dropped")


@dataclass(slots=True)
class MergedShard:
    """A shard with the rows of each file, those the run had before, and files with a cut end."""

    shard: Shard
    rows: dict[str, int] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)
    torn: list[str] = field(default_factory=list)

    @property
    def new_rows(self) -> int:
        return sum(self.rows.values()) - sum(self.before.values())


def worker_entries(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The workers of a run by Locust's id."""
    return {
        w["client_id"]: w
        for w in manifest.get("workers") or []
        if isinstance(w, dict) and isinstance(w.get("client_id"), str)
    }


def worker_name(entry: Mapping[str, Any]) -> str:
    return f"{entry.get('worker_id')} ({entry.get('client_id')})"


def expected_missing(manifest: Mapping[str, Any], here: set[str]) -> list[str]:
    """Ids of workers whose rows are neither in the run nor among the shards that are here."""
    if manifest.get("rows_on") != "worker":
        return []
    merged_before = {s.get("client_id") for s in (manifest.get("merged") or {}).get("shards", [])}
    return sorted(worker_entries(manifest).keys() - here - merged_before)


def told_rows(entry: Mapping[str, Any]) -> dict[str, int]:
    """Rows of each file that the worker said it had, as far as it said."""
    told = (entry.get("shard") or {}).get("rows") or {}
    return {name: told[name] for name in SHARD_FILES if isinstance(told.get(name), int)}


def merged_manifest(
    base: Mapping[str, Any], shards: Sequence[MergedShard], missing: Sequence[str], recorded: int
) -> dict[str, Any]:
    """`base` with the counts, workers and verdict of all rows that are together now."""
    merged = dict(base)
    judged = base.get("verdict") is not None
    entries = {id_: dict(entry) for id_, entry in worker_entries(base).items()}
    counts = Counts(**{key: _whole(base.get("counts"), key) for key in _COUNTED})
    for shard in shards:
        entry = entries.setdefault(shard.shard.client_id, _new_entry(shard.shard))
        _add(counts, entry, shard)
    counts.recorded = recorded
    counts.lost = max(0, counts.sent - recorded)
    merged["counts"] = asdict(counts)
    merged["workers"] = sorted(entries.values(), key=lambda e: (e["worker_id"], e["client_id"]))
    merged["merged"] = {
        "shards": [*(base.get("merged") or {}).get("shards", []), *map(_described, shards)],
        "missing": [worker_name(entries[id_]) for id_ in missing],
    }
    evidence = _evidence(base, entries, shards, missing, counts)
    verdict = judge(evidence)
    if not judged:
        verdict = Judgement("invalid", (NO_JUDGE, *verdict.reasons))
        merged["state"] = "interrupted"
    merged["evidence"], merged["verdict"] = asdict(evidence), asdict(verdict)
    return merged


def _new_entry(shard: Shard) -> dict[str, Any]:
    return {"worker_id": shard.worker_id, "host": shard.host, "client_id": shard.client_id}


def _add(counts: Counts, entry: dict[str, Any], merged: MergedShard) -> None:
    """Put what the shard tells of its worker in the worker's entry and the difference in `counts`.

    A turn that has a row was due and sent, whatever the last status of its worker said.
    """
    shard, turns = merged.shard, merged.rows[TURNS_CSV]
    for key in _COUNTED:
        before = _whole(entry, key)
        at_least = 0 if key == "dropped" else turns
        entry[key] = max(before, getattr(shard, key) or 0, at_least)
        setattr(counts, key, getattr(counts, key) + entry[key] - before)
    if entry.get("clock_offset_error_s") is None:
        entry["clock_offset_s"] = shard.clock_offset_s
        entry["clock_offset_error_s"] = shard.clock_offset_error_s
    if entry.get("lost_at_s") is not None or shard.state != "complete":
        entry["rows_undelivered"] = max(0, entry["sent"] - turns)
    if entry.get("shard"):
        entry["shard"] = {**entry["shard"], "rows": merged.rows}


def _described(merged: MergedShard) -> dict[str, Any]:
    return {
        "worker_id": merged.shard.worker_id,
        "client_id": merged.shard.client_id,
        "state": merged.shard.state,
        "rows": merged.rows,
        "rows_there_before": merged.before,
        "cut_at_the_end": merged.torn,
    }


def _evidence(
    base: Mapping[str, Any],
    entries: Mapping[str, dict[str, Any]],
    shards: Sequence[MergedShard],
    missing: Sequence[str],
    counts: Counts,
) -> Evidence:
    known = _known_evidence(base.get("evidence"))
    errors_s = [
        e["clock_offset_error_s"]
        for e in entries.values()
        if is_number(e.get("clock_offset_error_s"))
    ]
    known.update(
        rows_lost=counts.lost,
        workers_lost=_workers_lost(known.get("workers_lost", ()), entries, shards, missing),
        clock_offset_error_s=max(errors_s, default=None),
        clock_offset_unknown=tuple(
            e["worker_id"] for e in entries.values() if e.get("clock_offset_error_s") is None
        ),
        turns_recorded=counts.recorded,
    )
    return Evidence(**known)


def _known_evidence(raw: Any) -> dict[str, Any]:
    """The owner's evidence; a key of another version is left out."""
    names = {f.name for f in fields(Evidence)}
    raw = raw if isinstance(raw, dict) else {}
    return {k: tuple(v) if isinstance(v, list) else v for k, v in raw.items() if k in names}


def _workers_lost(
    before: Sequence[str],
    entries: Mapping[str, dict[str, Any]],
    shards: Sequence[MergedShard],
    missing: Sequence[str],
) -> tuple[str, ...]:
    """What the owner said of lost workers; of those whose shard is known now, what that says."""
    found = {
        worker_name(entries[s.shard.client_id]): _ended_early(entries[s.shard.client_id], s)
        for s in shards
    }
    gone = {worker_name(entries[id_]): _is_missing(entries[id_]) for id_ in missing}
    now = {name: text for name, text in {**found, **gone}.items() if text}
    told_anew = tuple(f"{name}:" for name in found | gone)
    kept = [text for text in before if not text.startswith(told_anew)]
    return (*kept, *(f"{name}: {text}" for name, text in sorted(now.items())))


def _ended_early(entry: Mapping[str, Any], merged: MergedShard) -> str:
    """Empty for a worker that ended well."""
    if entry.get("lost_at_s") is None and merged.shard.state == "complete":
        return ""
    return (
        f"it did not end with the run; its shard has {merged.rows[TURNS_CSV]} turns, "
        f"{entry['rows_undelivered']} more it is known to have begun"
    )


def _is_missing(entry: Mapping[str, Any]) -> str:
    told = told_rows(entry).get(TURNS_CSV)
    return f"its shard is missing, with {'an unknown number of' if told is None else told} turns"


def _whole(raw: Any, key: str) -> int:
    value = raw.get(key) if isinstance(raw, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
