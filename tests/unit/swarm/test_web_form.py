"""The start form: what is allowed in its fields, and beside which field a fault is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentload.scenario import load, parse_override
from agentload.swarm.web.form import (
    as_options,
    check_scenario,
    read_form,
    scenario_files,
    shown_names,
)

SCENARIO = str(Path(__file__).parents[2] / "e2e" / "small.yaml")


def faults_of(**form: str) -> dict[str, str]:
    """Field -> message of everything that is wrong."""
    asked, faults = read_form({"scenario": SCENARIO, **form}, [SCENARIO])
    faults += check_scenario(asked, ())[1]
    return {fault.field: fault.message for fault in faults}


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("users", "0", "a whole number from 1 to 100,000"),
        ("users", "1e3", "a whole number"),
        ("users", "٣", "a whole number"),
        ("duration", "soon", "a duration such as"),
        ("duration", "0s", "a duration such as"),
        ("seed", "-1", "a whole number from 0"),
        ("context_scale", "nan", "a number above 0"),
        ("context_scale", "1000", "context_scale: Input should be less than or equal to 100"),
        ("after_turns", "0", "a whole number from 1"),
        ("arm", "x\n" + "y", "printable"),
        ("host", "h" * 301, "at most 300"),
        ("set", "nonsense", "not of the form key.path=value"),
        ("set", "slos.tool.ttft_s=oops", "slos.tool.ttft_s: "),
        ("set", "nobody.knows=1", "nobody: unknown key"),
    ],
)
def test_a_fault_stands_beside_its_field(field: str, text: str, said: str) -> None:
    found = faults_of(**{field: text})
    assert list(found) == [field]
    assert said in found[field]


def test_all_faults_are_told_at_once() -> None:
    found = faults_of(users="x", seed="y", set="slos.tool.ttft_s=oops\nbad")
    assert set(found) == {"users", "seed", "set"}


def test_a_scenario_that_is_not_in_the_list_is_refused() -> None:
    _, faults = read_form({"scenario": "/etc/passwd"}, [SCENARIO])
    assert [f.field for f in faults] == ["scenario"]


def test_users_or_a_duration_make_one_stage_and_the_rest_goes_on_top() -> None:
    form = {
        "scenario": SCENARIO,
        "users": "5",
        "duration": "1h1m5",
        "after_turns": "9",
        "set": "slos.tool.ttft_s=2\nseed=3",
    }
    asked, faults = read_form(form, [SCENARIO])
    overrides, more = check_scenario(asked, ["seed=1", "stop.after_turns=4"])
    assert faults + more == []
    options = as_options(overrides)
    scenario = load(Path(SCENARIO), dict(map(parse_override, options)))
    (stage,) = scenario.stages
    assert (stage.users, stage.duration_s, stage.ramp_s) == (5, 3665.0, 0.5)
    assert (scenario.stop.after_turns, scenario.seed) == (9, 3)
    assert scenario.slos["tool"].ttft_s == 2


def test_an_empty_form_changes_nothing() -> None:
    asked, faults = read_form({"scenario": SCENARIO}, [SCENARIO])
    assert (faults, check_scenario(asked, ["seed=1"])) == ([], ({"seed": 1}, []))
    assert (asked.arm, asked.host) == ("run", None)


def test_the_list_has_the_file_that_was_given_first(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yaml", "notes.txt"):
        (tmp_path / name).write_text("", encoding="utf-8")
    given = str(tmp_path / "b.yaml")
    paths = scenario_files(given, tmp_path / "nowhere")
    assert paths == [given, str(tmp_path / "a.yaml")]
    assert shown_names([*paths, "other/a.yaml"])[given] == "b"
    assert shown_names([*paths, "other/a.yaml"])["other/a.yaml"] == "other/a.yaml"
