"""Experiment files: YAML in, a checked plan or every fault out."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from agentload.experiment.cluster import render
from agentload.experiment.errors import ExperimentError
from agentload.experiment.faults import faults
from agentload.experiment.overlay import Overlay
from agentload.experiment.plan import OF_OVERLAY, Arm, Experiment
from agentload.experiment.scenarios import scenario_faults
from agentload.experiment.wording import told
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
        found += told(error, document)
        raise ExperimentError(_listed(path, found)) from None
    found += faults(experiment, path.parent)
    found += scenario_faults(experiment, path.parent)
    if experiment.target.kind == "kubernetes" and not found:
        experiment, found = _with_overlays(experiment, path.parent)
        found = found or faults(experiment, path.parent, rendered=True)
    if found:
        raise ExperimentError(_listed(path, found))
    return experiment


def _with_overlays(experiment: Experiment, folder: Path) -> tuple[Experiment, list[str]]:
    """The plan with each arm's flags as its overlay has them, and what is wrong with the overlays.

    What else differs between overlays becomes an entry `overlay.PATH` of the flags, so that it has
    to stand in `vary` like a flag.
    """
    overlays: dict[str, Overlay] = {}
    found: list[str] = []
    for arm in experiment.arms:
        try:
            overlays[arm.name] = render(folder / str(arm.overlay))
        except ExperimentError as error:
            found.append(f"arms.{arm.name}.overlay: {error}")
    if found:
        return experiment, found
    arms = [_with_flags(arm, overlays) for arm in experiment.arms]
    reached = getattr(experiment.target, "base_url", None) is not None
    for name, overlay in overlays.items():
        if not reached and overlay.service is None:
            found.append(
                f"arms.{name}.overlay: no Service selects {overlay.workload}; give target.base_url"
            )
        elif not reached and overlay.replicas > 1:
            found.append(
                f"arms.{name}.overlay: {overlay.workload} has {overlay.replicas} replicas, and a"
                " port-forward reaches one of them; give target.base_url"
            )
    return experiment.model_copy(update={"arms": arms}), found


def _with_flags(arm: Arm, overlays: dict[str, Overlay]) -> Arm:
    all_rest = [overlay.rest for overlay in overlays.values()]
    paths = sorted({path for rest in all_rest for path in rest})
    unlike = [p for p in paths if len({rest.get(p) for rest in all_rest}) > 1]
    mine = overlays[arm.name]
    rest = {OF_OVERLAY + path: mine.rest.get(path, "(not there)") for path in unlike}
    return arm.model_copy(update={"flags": {**mine.flags, **rest}})


def _listed(path: Path, found: list[str]) -> str:
    lines = "".join(f"\n  {one}" for one in found)
    return f"{path}: {len(found)} fault{'s' if len(found) > 1 else ''}:{lines}"
