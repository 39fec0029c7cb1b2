"""docs/simulator.md says what is there."""

import re
from pathlib import Path

from agentload.sim.profiles import CostFile, StepCoefficients, version_profiles
from agentload.sim.profiles.hardware import data

DOC = (Path(__file__).parents[2] / "docs" / "simulator.md").read_text(encoding="utf-8")


def test_the_example_runs() -> None:
    blocks = re.findall(r"```python\n(.*?)```", DOC, re.DOTALL)
    assert len(blocks) == 1
    exec(blocks[0], {})


def test_every_profile_and_key_is_named() -> None:
    steps = StepCoefficients.model_fields
    keys = {field.alias or name for name, field in CostFile.model_fields.items()} - {"step"}
    ends = {f"step.{name}" for name in (min(steps), max(steps))}
    names = {profile.name for profile in version_profiles()}
    sheets = {*data("gpus")["gpus"], *data("models")["models"]}
    missing = {name for name in keys | ends | names | sheets if name not in DOC}
    assert missing == set()
