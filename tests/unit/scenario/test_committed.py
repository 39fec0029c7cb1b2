"""Every committed scenario loads, says where its numbers come from, and is documented."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from agentload.scenario import Scenario, load
from agentload.scenario.distributions import WAIT_PRESETS

ROOT = Path(__file__).parents[3]
FILES = sorted((ROOT / "scenarios").glob("*.y*ml"))
KNOWN = {
    "cold-interference", "compaction-wave", "custom", "demo", "fanout", "frontend-bound",
    "interactive-mix", "pause-evict", "prefix-breaker", "smoke", "steady-append",
}  # fmt: skip
SOURCES = (
    "TokTier", "TraceLab", "kv-cache-tester", "AgentX", "AIPerf", "Anthropic", "vLLM", "vllm-mlx",
    "Claude Code", "ours",
)  # fmt: skip
DOCS = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")


def test_no_scenario_is_unknown_to_this_test() -> None:
    assert {path.stem for path in FILES} == KNOWN


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_it_loads_under_its_own_name(path: Path) -> None:
    assert load(path).name == path.stem


@pytest.mark.parametrize("path", [p for p in FILES if p.stem != "custom"], ids=lambda p: p.stem)
def test_every_number_has_a_source(path: Path) -> None:
    """A comment on the line, or on a line above it that holds nothing else."""
    whole_line = ""
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if line.lstrip().startswith("#"):
            whole_line = line
            continue
        value, _, comment = line.partition(" #")
        if re.search(r"[:\[,{ ] *-?\d", value) and not re.search("name:|description:", value):
            said = comment or whole_line
            assert any(source in said for source in SOURCES), f"{path.name}:{number}: {line}"
        elif not value.startswith("  "):
            whole_line = ""


def test_the_template_has_every_key() -> None:
    text = (ROOT / "scenarios" / "custom.yaml").read_text(encoding="utf-8")
    left_out = set(_model_keys(Scenario)) - set(_yaml_keys(yaml.safe_load(text)))
    # Not allowed with the closed population and the wire it shows, or without a file: there as
    # comments.
    trace = {"trace", "trace.file", "trace.replay", "trace.max_wait_s"}
    assert left_out == {"stages.sessions_per_s", "tokenizer"} | trace
    for key in left_out:
        assert re.search(rf"^ *# +{key.rpartition('.')[2]}:|^# trace:", text, re.M)


def test_every_key_is_in_the_docs() -> None:
    missing = {key for key in _model_keys(Scenario) if f"`{key}`" not in DOCS}
    assert missing == set()
    assert {name for name in WAIT_PRESETS if f"`{name}`" not in DOCS} == set()


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_scenario_has_its_section(name: str) -> None:
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", DOCS, re.S | re.M)
    assert section is not None
    assert "**Question.**" in section[1]
    assert "**Reading the result.**" in section[1]


def _yaml_keys(value: Any, at: str = "") -> list[str]:
    """Dotted keys of a document; what a distribution or free mapping holds counts as its value."""
    if not isinstance(value, dict) or "dist" in value:
        return []
    found = []
    for key, inside in value.items():
        path = f"{at}.{key}" if at else str(key)
        found.append(path)
        found += _yaml_keys(inside, path)
        if isinstance(inside, list) and inside and isinstance(inside[0], dict):
            found += [k for item in inside for k in _yaml_keys(item, path)]
    return [re.sub(r"^slos\.\w+\.", "slos.", key) for key in found]


def _model_keys(model: type[BaseModel], at: str = "") -> list[str]:
    """Dotted keys of the model and of the sections in it."""
    found = []
    for name, field in model.model_fields.items():
        path = f"{at}.{name}" if at else name
        found.append(path)
        for inside in _models_in(field.annotation):
            if "dist" not in inside.model_fields and "of" not in inside.model_fields:
                found += _model_keys(inside, path)
    return found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for arg in get_args(annotation) for model in _models_in(arg)]
