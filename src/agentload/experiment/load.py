"""Experiment files: YAML in, a checked plan or every fault out."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from agentload.experiment.errors import ExperimentError
from agentload.experiment.plan import Experiment, faults
from agentload.scenario.document import ScenarioError, read_document


def load(path: Path) -> Experiment:
    """The checked plan of an experiment file; ExperimentError lists every fault at once."""
    try:
        document = read_document(path)
    except ScenarioError as error:
        raise ExperimentError(str(error)) from None
    found = [str(fault) for fault in document.faults]
    try:
        experiment = Experiment.model_validate(document.content)
    except ValidationError as error:
        found += [_told(one) for one in error.errors()]
        raise ExperimentError(_listed(path, found)) from None
    found += faults(experiment, path.parent)
    if found:
        raise ExperimentError(_listed(path, found))
    return experiment


def _told(fault: object) -> str:
    assert isinstance(fault, dict)
    where = ".".join(str(part) for part in fault["loc"])
    allowed = sorted(Experiment.model_fields)
    hint = f" (allowed here: {', '.join(allowed)})" if _unknown_at_top(fault) else ""
    given = fault["input"]  # a whole mapping may hold what is not to be shown
    seen = "" if isinstance(given, dict | list) else f", is {given!r}"
    return f"{where}: {fault['msg']}{seen}{hint}"


def _unknown_at_top(fault: dict[str, object]) -> bool:
    location = fault["loc"]
    return fault["type"] == "extra_forbidden" and isinstance(location, tuple) and len(location) == 1


def _listed(path: Path, found: list[str]) -> str:
    lines = "".join(f"\n  {one}" for one in found)
    return f"{path}: {len(found)} fault{'s' if len(found) > 1 else ''}:{lines}"
