"""The typed view of a run's `manifest.json`."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from agentload.recording.record import MANIFEST_JSON, SCHEMA_VERSION, RunState, Verdict
from analysis import redact
from analysis.faults import BadInputError, Fault, FaultLog


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the recording side says about a run. Secrets are already removed.

    `settings` are the arm's server settings as found; `measured_from_s` and `measured_to_s` cut
    the warm-up and the drain, None = no cut on that side.
    """

    run_id: str
    state: RunState
    arm: str
    settings: dict[str, Any]
    scenario: dict[str, Any]
    target: dict[str, Any]
    workers: tuple[dict[str, Any], ...]
    counts: dict[str, Any]
    verdict: Verdict | None
    verdict_reasons: tuple[str, ...]
    measured_from_s: float | None
    measured_to_s: float | None
    ended_s: float | None
    wall_start_unix_s: float | None

    @property
    def seed(self) -> str:
        return str(self.scenario.get("seed", ""))

    @property
    def context_scale(self) -> float | None:
        return _number_or_none(self.scenario.get("context_scale"))

    @property
    def sim_speed(self) -> float | None:
        return _number_or_none(self.target.get("sim_speed"))


def load_manifest(folder: Path) -> Manifest:
    """Read `manifest.json`; raises `BadInputError` with every fault found in it."""
    log = FaultLog()
    raw = _read_json(folder)
    version = raw.get("schema_version")
    if type(version) is not int or version != SCHEMA_VERSION:
        text = f"this version reads run folders of schema {SCHEMA_VERSION} only"
        raise BadInputError([_fault(text, "schema_version", version)])
    if raw.get("rows_on") == "worker" and not raw.get("merged"):
        text = "the rows are with the workers: put them together with agentload merge first"
        raise BadInputError([_fault(text, "rows_on", "worker")])
    try:
        raw = redact.tree(raw)
    except RecursionError:
        raise BadInputError([Fault(MANIFEST_JSON, "is nested too deeply")]) from None
    arm = _part(raw, "arm", dict, log)
    verdict = _part(raw, "verdict", dict, log)
    manifest = Manifest(
        run_id=_text(raw, "run_id", log),
        state=_state(raw, log),
        arm=str(arm.get("name") or "run"),
        settings=_part(arm, "settings", dict, log),
        scenario=_scenario(raw, log),
        target=_part(raw, "target", dict, log),
        workers=tuple(w for w in _part(raw, "workers", list, log) if isinstance(w, dict)),
        counts=_part(raw, "counts", dict, log),
        verdict=_verdict(verdict, log),
        verdict_reasons=tuple(map(str, _part(verdict, "reasons", list, log))),
        measured_from_s=_number(raw, "measured_from_s", log),
        measured_to_s=_number(raw, "measured_to_s", log),
        ended_s=_number(raw, "ended_s", log),
        wall_start_unix_s=_number(raw, "wall_start_unix_s", log),
    )
    log.raise_if_any()
    return manifest


def _read_json(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST_JSON
    if not folder.is_dir():
        raise BadInputError([Fault(str(folder), "is no folder: a run folder is needed")])
    try:
        raw = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        text = f"holds no {MANIFEST_JSON}: a run folder is needed"
        raise BadInputError([Fault(str(folder), text)]) from None
    except (ValueError, RecursionError) as error:
        text = f"is no JSON: {str(error).splitlines()[0]}"
        raise BadInputError([Fault(MANIFEST_JSON, text)]) from None
    if not isinstance(raw, dict):
        raise BadInputError([Fault(MANIFEST_JSON, "holds no object")])
    return raw


def _fault(text: str, key: str, value: object) -> Fault:
    return Fault(MANIFEST_JSON, text, column=key, value=json.dumps(value))


def _part(raw: dict[str, Any], key: str, kind: type, log: FaultLog, within: str = "") -> Any:
    value = raw.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        log.add(
            _fault(f"{'an object' if kind is dict else 'a list'} is needed", within + key, value)
        )
        return kind()
    return value


def _scenario(raw: dict[str, Any], log: FaultLog) -> dict[str, Any]:
    """The scenario; what the analysis computes with (limits, stall thresholds) must be numbers."""
    scenario: dict[str, Any] = _part(raw, "scenario", dict, log)
    slos = _part(scenario, "slos", dict, log, "scenario.")
    parts = {f"slos.{name}": limits for name, limits in slos.items()}
    parts["stalls"] = scenario.get("stalls")
    for name, values in parts.items():
        if values is not None and not isinstance(values, dict):
            log.add(_fault("an object is needed", f"scenario.{name}", values))
            continue
        for key, value in (values or {}).items():
            if value is not None and _number_or_none(value) is None:
                log.add(_fault("a finite number is needed", f"scenario.{name}.{key}", value))
    return scenario


def _text(raw: dict[str, Any], key: str, log: FaultLog) -> str:
    value = raw.get(key)
    if not isinstance(value, str) or not value:
        log.add(_fault("a text is needed", key, value))
        return ""
    return value


def _number(raw: dict[str, Any], key: str, log: FaultLog) -> float | None:
    value = raw.get(key)
    number = _number_or_none(value)
    if value is not None and number is None:
        log.add(_fault("a finite number is needed", key, value))
    return number


def _number_or_none(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    number = float(value)
    return number if abs(number) < float("inf") else None


def _verdict(verdict: dict[str, Any], log: FaultLog) -> Verdict | None:
    level = verdict.get("level")
    if level is not None and level not in get_args(Verdict):
        log.add(_fault(f"allowed are {', '.join(get_args(Verdict))}", "verdict.level", level))
        return None
    return level


def _state(raw: dict[str, Any], log: FaultLog) -> RunState:
    """The run's state; a `running` run whose process is gone is an interrupted one."""
    found = raw.get("state")
    for state in get_args(RunState):
        if found == state:
            return "interrupted" if state == "running" and not _is_alive(raw) else state
    log.add(_fault(f"allowed are {', '.join(get_args(RunState))}", "state", found))
    return "interrupted"


def _is_alive(raw: dict[str, Any]) -> bool:
    """Whether the recording process still runs: known only on its own host, from `pid`."""
    pid = raw.get("pid")
    if not isinstance(pid, int) or raw.get("host") not in (None, socket.gethostname()):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
