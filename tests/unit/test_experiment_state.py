"""An experiment's own record: resumable, never written over, honest about what did not finish."""

import json
from pathlib import Path

import pytest

from agentload.experiment.errors import ExperimentError
from agentload.experiment.plan import Experiment, cells
from agentload.experiment.state import State


def experiment(**changes: object) -> Experiment:
    plain = {
        "name": "two-arms",
        "scenario": "steady.yaml",
        "target": {"kind": "embedded"},
        "arms": [{"name": "a"}, {"name": "b"}],
    }
    return Experiment.model_validate({**plain, **changes})


def test_a_second_experiment_does_not_write_over_the_first(tmp_path: Path) -> None:
    State.begin(tmp_path / "one", experiment())
    with pytest.raises(ExperimentError, match="--resume"):
        State.begin(tmp_path / "one", experiment())


def test_a_resumed_experiment_knows_what_is_complete(tmp_path: Path) -> None:
    plan = experiment()
    first, second = cells(plan)
    state = State.begin(tmp_path / "one", plan)
    folder = state.fresh_folder(first)
    state.record(first, "complete")
    cut = state.fresh_folder(second)
    state.record(second, "running")

    again = State.resume(tmp_path / "one", plan)
    assert (again.of(first), again.of(second)) == ("complete", "running")
    assert again.complete_folders() == [folder]
    assert again.fresh_folder(second) != cut, "the folder of the try that was cut stays as it is"


def test_another_plan_cannot_resume(tmp_path: Path) -> None:
    State.begin(tmp_path / "one", experiment())
    with pytest.raises(ExperimentError, match="another plan"):
        State.resume(tmp_path / "one", experiment(blocks=2))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema_version": 1, "cells": 3, "plan": {}}'])
def test_a_file_that_is_no_record_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "experiment.json").write_text(text)
    with pytest.raises(ExperimentError, match=r"experiment\.json"):
        State.resume(tmp_path, experiment())


def test_a_missing_folder_and_another_schema_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match="nothing to resume"):
        State.resume(tmp_path / "none", experiment())
    State.begin(tmp_path / "one", experiment())
    path = tmp_path / "one" / "experiment.json"
    path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 99'))
    with pytest.raises(ExperimentError, match="99"):
        State.resume(tmp_path / "one", experiment())


def test_the_record_is_whole_after_every_change(tmp_path: Path) -> None:
    plan = experiment()
    state = State.begin(tmp_path / "one", plan)
    for cell in cells(plan):
        state.fresh_folder(cell)
        state.record(cell, "running")
        state.ended(cell, 1, "it said why")
        state.record(cell, "failed")
        data = json.loads((tmp_path / "one" / "experiment.json").read_text())
        assert data["cells"][cell.index]["state"] == "failed"
        assert data["cells"][cell.index]["exit_code"] == 1
    assert [record.arm for record in state.unfinished()] == [c.arm.name for c in cells(plan)]
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == ["experiment.json"]
