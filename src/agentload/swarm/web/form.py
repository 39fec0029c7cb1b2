"""The start form of the live page: its fields, what is allowed in them, what they ask for."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentload.scenario import Scenario, load, parse_override
from agentload.scenario.document import Fault, ScenarioError

SCENARIO_FOLDER = Path("scenarios")
MAX_SCENARIOS = 200
MAX_CHARS = 300
MAX_OVERRIDE_LINES = 100
_DURATION = re.compile(r"(?:(\d{1,4})h)?\s*(?:(\d{1,6})m)?\s*(?:(\d{1,8})s?)?")
_KNOBS = (
    ("after_turns", "stop.after_turns", 1, 10**9),
    ("warm_up_turns", "warm_up.turns_per_session", 0, 1000),
)
# Where a fault of the scenario belongs that one of the fields asked for.
_FIELD_OF_KEY = {
    "seed": "seed",
    "context_scale": "context_scale",
    **{key: name for name, key, _, _ in _KNOBS},
}


@dataclass(frozen=True, slots=True)
class FormFault:
    """What is wrong with one field; `field` is empty for the form as a whole."""

    field: str
    message: str


@dataclass(slots=True)
class Asked:
    """What the form asks for. `overrides` are those of the knobs and of the lines, by key."""

    scenario: str = ""
    arm: str = "run"
    model: str = ""
    host: str | None = None  # None: as before
    seed: int | None = None
    context_scale: float | None = None
    users: int | None = None
    duration_s: float | None = None
    knobs: dict[str, object] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def overrides(self, scenario: Scenario) -> dict[str, object]:
        """The knobs; users or a duration make one stage, else as the scenario's first."""
        if self.users is None and self.duration_s is None:
            return dict(self.knobs)
        first = scenario.stages[0]
        whole_s = sum(stage.duration_s for stage in scenario.stages)
        duration_s = whole_s if self.duration_s is None else self.duration_s
        stage: dict[str, object] = {
            "name": "run",
            "duration_s": duration_s,
            "users": first.users if self.users is None else self.users,
            "ramp_s": min(first.ramp_s, duration_s),
        }
        if first.sessions_per_s is not None:
            stage["sessions_per_s"] = first.sessions_per_s
        return {**self.knobs, "stages": [stage]}


def scenario_files(given: str, folder: Path = SCENARIO_FOLDER) -> list[str]:
    """What the picker offers: the file that was given, those beside it, those of `scenarios/`."""
    found = [given] if given else []
    for place in (Path(given).parent if given else folder, folder):
        try:
            found += sorted(str(path) for path in place.glob("*.yaml") if path.is_file())
        except OSError:
            continue
    return list(dict.fromkeys(found))[:MAX_SCENARIOS]


def shown_names(paths: Sequence[str]) -> dict[str, str]:
    """What stands in the list for each file: its name alone where no other has the same."""
    names = Counter(Path(path).stem for path in paths)
    return {path: Path(path).stem if names[Path(path).stem] == 1 else path for path in paths}


def read_form(form: Mapping[str, str], scenarios: Iterable[str]) -> tuple[Asked, list[FormFault]]:
    """What is asked for, and every fault of a field."""
    faults: list[FormFault] = []
    asked = Asked(arm=_text(form, "arm", faults) or "run", model=_text(form, "model", faults))
    asked.scenario = form.get("scenario", "")
    if asked.scenario not in set(scenarios):
        faults.append(FormFault("scenario", "choose one of the scenarios in the list"))
    asked.host = _text(form, "host", faults) or None
    asked.users = _whole(form, "users", faults, 1, 100_000)
    asked.seed = _whole(form, "seed", faults, 0, 2**63 - 1)
    asked.context_scale = _number(form, "context_scale", faults)
    asked.duration_s = _duration(form, faults)
    for name, key, low, high in _KNOBS:
        value = _whole(form, name, faults, low, high)
        if value is not None:
            asked.knobs[key] = value
    asked.lines = _lines(form, faults)
    return asked, faults


def check_scenario(asked: Asked, given: Sequence[str]) -> tuple[dict[str, object], list[FormFault]]:
    """The overrides of the run, and the scenario loader's faults beside the fields they are of.

    `given` are the overrides of the command line; those of the form go before them.
    """
    path = Path(asked.scenario)
    try:
        base = dict(parse_override(text) for text in given)
        scenario = load(path)
    except (ScenarioError, ValueError) as error:
        return {}, [FormFault("scenario", text) for text in _texts(error)]
    overrides = {
        **base,
        **asked.overrides(scenario),
        **dict(parse_override(line) for line in asked.lines),
    }
    named = {"context_scale": asked.context_scale, "seed": asked.seed}
    wanted = {key: value for key, value in named.items() if value is not None}
    try:
        load(path, {**wanted, **overrides})
    except ScenarioError as error:
        return {}, [FormFault(_field_of(fault, asked), str(fault)) for fault in error.faults]
    return overrides, []


def _field_of(fault: Fault, asked: Asked) -> str:
    key = fault.key
    for line in asked.lines:
        name = line.partition("=")[0]
        if key == name or key.startswith(f"{name}.") or name.startswith(f"{key}."):
            return "set"
    if key.startswith("stages"):
        one_stage = asked.users is not None or asked.duration_s is not None
        if not one_stage:
            return "scenario"
        return "duration" if "duration" in key or asked.users is None else "users"
    return _FIELD_OF_KEY.get(key, "scenario")


def _texts(error: Exception) -> list[str]:
    return [str(f) for f in error.faults] if isinstance(error, ScenarioError) else [str(error)]


def _text(form: Mapping[str, str], name: str, faults: list[FormFault]) -> str:
    text = form.get(name, "").strip()
    if len(text) > MAX_CHARS or not text.isprintable():
        faults.append(FormFault(name, f"at most {MAX_CHARS} printable characters"))
        return ""
    return text


def _whole(
    form: Mapping[str, str], name: str, faults: list[FormFault], low: int, high: int
) -> int | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    if re.fullmatch(r"-?\d{1,19}", text, re.ASCII) and low <= int(text) <= high:
        return int(text)
    faults.append(FormFault(name, f"{text[:40]!r}: a whole number from {low:,} to {high:,}"))
    return None


def _number(form: Mapping[str, str], name: str, faults: list[FormFault]) -> float | None:
    text = form.get(name, "").strip()
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value > 0:
        return value
    faults.append(FormFault(name, f"{text[:40]!r}: a number above 0"))
    return None


def _duration(form: Mapping[str, str], faults: list[FormFault]) -> float | None:
    """`90`, `90s`, `5m`, `1h30m`, in seconds."""
    text = form.get("duration", "").strip()
    if not text:
        return None
    found = _DURATION.fullmatch(text)
    hours, minutes, seconds = (int(part or 0) for part in found.groups()) if found else (0, 0, 0)
    total_s = hours * 3600 + minutes * 60 + seconds
    if total_s:
        return float(total_s)
    faults.append(FormFault("duration", f"{text[:40]!r}: a duration such as 90, 90s, 5m, 1h30m"))
    return None


def _lines(form: Mapping[str, str], faults: list[FormFault]) -> list[str]:
    lines = [line.strip() for line in form.get("set", "").splitlines() if line.strip()]
    if len(lines) > MAX_OVERRIDE_LINES:
        faults.append(FormFault("set", f"at most {MAX_OVERRIDE_LINES} lines"))
        return []
    good = []
    for line in lines:
        try:
            parse_override(line)
            good.append(line)
        except ValueError as error:
            faults.append(FormFault("set", str(error)))
    return good


def as_options(overrides: Mapping[str, Any]) -> list[str]:
    """The overrides in the form of `--set`; JSON is YAML, too."""
    return [f"{key}={json.dumps(value)}" for key, value in overrides.items()]
