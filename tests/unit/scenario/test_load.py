"""Every fault of a scenario file comes out at once, with its place and what is allowed."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentload.scenario import Scenario, ScenarioError, load, parse_override

SMOKE = Path(__file__).parents[3] / "scenarios" / "smoke.yaml"
TEXT = SMOKE.read_text(encoding="utf-8")


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "it.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def faults(tmp_path: Path, text: str | bytes) -> list[str]:
    with pytest.raises(ScenarioError) as caught:
        load(write(tmp_path, text))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'it.yaml'}: {len(caught.value.faults)} fault")
    assert "pydantic" not in message
    assert message.count("\n") == len(caught.value.faults)
    return [str(fault) for fault in caught.value.faults]


def line_of(text: str, start: str) -> int:
    return next(i for i, line in enumerate(text.split("\n"), 1) if line.strip().startswith(start))


def test_all_faults_at_once_with_line_key_value_and_what_is_allowed(tmp_path: Path) -> None:
    text = (
        TEXT.replace("context_scale: 1.0", "context_scale: -1")
        .replace("    warm: 1.0", "    warm: 0.5")
        .replace("at_limit: lower_output", "at_limit: shrug")
        .replace("  system_tokens: 200", "  system_tokens: many")
        .replace("min: 1200, max: 1800", "min: 1900, max: 1800")
        .replace("    users: 2", "    users: 2.5\n    colour: red")
        .replace("request:", "requests:")
    )
    found = faults(tmp_path, text)
    assert len(found) == 8
    said = "\n".join(found)
    assert f"line {line_of(text, 'context_scale')}: context_scale: " in said
    assert "greater than 0 (found -1)" in said
    assert f"line {line_of(text, 'mix:')}: start.mix: warm + fresh + resumed_cold is 0.5" in said
    assert "window.at_limit: Input should be 'end', 'compact' or 'lower_output'" in said
    assert "(found 'shrug')" in said
    assert "prefix.system_tokens: Input should be a valid integer (found 'many')" in said
    assert "start.warm_tokens: min 1900.0 is above max 1800.0" in said
    assert "stages.0.users: Input should be a valid integer (found 2.5)" in said
    assert f"line {line_of(text, 'colour')}: stages.0.colour: unknown key (found 'red')" in said
    assert "requests: unknown key" in said


def test_a_missing_key_is_named_where_it_belongs(tmp_path: Path) -> None:
    text = TEXT.replace("  tools_tokens: 400", "  # tools_tokens: 400")
    (found,) = faults(tmp_path, text)
    assert found == f"line {line_of(text, 'prefix:')}: prefix.tools_tokens: missing"


def test_a_key_given_twice_is_a_fault_beside_the_others(tmp_path: Path) -> None:
    text = TEXT.replace("seed: 20260806", "seed: 1\nseed: -2")
    found = faults(tmp_path, text)
    first = line_of(text, "seed: 1")
    assert f"line {first + 1}: seed: given again (first at line {first})" in found
    assert any("greater than or equal to 0 (found -2)" in fault for fault in found)
    nested = TEXT.replace("    ramp_s: 1 #", "    users: 3\n    ramp_s: 1 #")
    assert any("stages.0.users: given again" in fault for fault in faults(tmp_path, nested))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has to hold a mapping of keys (found nothing)"),
        ("# only a comment\n", "found nothing"),
        ("- a\n- b\n", "found seq"),
        ("just text", "found str"),
        ("42", "found int"),
        ("a: [1, 2", "not valid YAML"),
        ("a: b: c", "not valid YAML: mapping values are not allowed here"),
        ("a: &x {b: 1}\nc: *x", "line 2: aliases (*name) are not allowed"),
        ("a: !!python/object:os.system {}", "not valid YAML"),
        ("a: 1\n---\nb: 2", "not valid YAML: but found another document"),
        ("? [1, 2]\n: 3", "unhashable key"),
        ("1: 2", "1: a key has to be text"),
        ("a: " + "[" * 3000, "not valid YAML"),
        (b"\xff\xfe\x00", "not UTF-8 at byte 0"),
        (b"a: \x00", "not valid YAML"),
        (b"a: " + b"x" * (1 << 20), "at most 1048576 bytes"),
    ],
)
def test_what_is_not_a_scenario_at_all(tmp_path: Path, text: str | bytes, said: str) -> None:
    assert any(said in fault for fault in faults(tmp_path, text))


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file"):
        load(tmp_path / "none.yaml")
    with pytest.raises(ScenarioError, match="Is a directory"):
        load(tmp_path)


@pytest.mark.parametrize("value", [".nan", ".inf", "-.inf", "true", "'0.5'", "[1]", "{}"])
def test_a_number_is_a_finite_number(tmp_path: Path, value: str) -> None:
    (found,) = faults(tmp_path, TEXT.replace("context_scale: 1.0", f"context_scale: {value}"))
    assert "context_scale: " in found


@pytest.mark.parametrize(
    ("change", "key", "said"),
    [
        ("wire: completion", "wire", "'chat', 'completions' or 'token_ids'"),
        ("stickiness: {headers: {Authorization: x}}", "stickiness.headers", "secrets do not"),
        ("stickiness: {headers: {X-A: '{user}'}}", "stickiness.headers", "{session_id}"),
        ('stickiness: {headers: {X-A: "a\\r\\nb: c"}}', "stickiness.headers", "printable ASCII"),
        ("stickiness: {headers: {'bad name': x}}", "stickiness.headers.bad name", "pattern"),
        ("stalls: {min_s: 0}", "stalls.min_s", "greater than 0"),
        ("slos: {warm: {ttft_s: 1}}", "slos.warm", "'cold', 'tool', 'user', 'child' or 'rebuild'"),
        ("arrivals: {population: open}", "", "sessions_per_s is needed"),
        ("aborts: {probability: 2}", "aborts.probability", "less than or equal to 1"),
        ("stop: {ttft_p99_interval: 5}", "stop.ttft_p99_interval", "less than 1"),
        ("subagents: 3", "subagents", "mapping"),
    ],
)
def test_settings_that_cannot_be(tmp_path: Path, change: str, key: str, said: str) -> None:
    found = faults(tmp_path, TEXT + "\n" + change + "\n")
    assert any(f"{key}: " in fault and said in fault for fault in found) or (
        key == "" and any(said in fault for fault in found)
    )


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("at_limit: lower_output", "at_limit: compact", "no compaction section"),
        ("non_ascii_share: 0.02", "cut: inside_word", "needs wire completions or token_ids"),
        ("user_text: { prose: 1.0 }", "user_text: { prose: 0 }", "sum above 0"),
        ("user_text: { prose: 1.0 }", "user_text: { poem: 1 }", "content.user_text"),
        ("min: 0.05, max: 0.5", "min: -1, max: 0.5", "waits.tool: can draw -1 to 0.5"),
        ("warm_tokens: { dist: uniform, min: 1200, max: 1800 }", "", "warm_tokens is missing"),
        ("  exact_output: true", "  extra: {stream: false}", "stream: set by the client"),
        ("    ramp_s: 1", "    ramp_s: 100", "ramp_s 100 is above duration_s 20"),
        ("median: 24, sigma: 0.5, min: 8", "median: 24, sigma: 0.5", "turns.output_tokens"),
        ("median: 24, sigma: 0.5, min: 8", "median: 24, sigma: 0.5, min: 80", "above max"),
        ("dist: uniform, min: 0.05", "dist: normal, min: 0.05", "'uniform', 'lognormal'"),
        ("name: smoke", "name: ../../etc", "name: String should match pattern"),
    ],
)
def test_settings_that_do_not_fit_together(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    assert any(said in fault for fault in faults(tmp_path, TEXT.replace(old, new)))


def test_two_stages_of_one_name(tmp_path: Path) -> None:
    stage = "  - { name: smoke, duration_s: 5, users: 1 }\n\nrequest:"
    found = faults(tmp_path, TEXT.replace("request:", stage))
    assert any("every name may stand once only" in fault for fault in found)


def test_overrides_take_the_place_of_settings() -> None:
    scenario = load(SMOKE, {"seed": 3, "prefix.dynamic": "head", "stop.after_turns": 10})
    assert (scenario.seed, scenario.prefix.dynamic, scenario.stop.after_turns) == (3, "head", 10)
    assert load(SMOKE).seed == 20260806


def test_the_file_of_a_trace_stands_beside_the_scenario_or_where_we_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, TEXT + "trace: { file: mine/s.jsonl }\n")
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for overrides, expected in (
        ({}, tmp_path / "mine" / "s.jsonl"),
        ({"trace.file": "s.jsonl"}, here / "s.jsonl"),
        ({"trace": {"file": "/s.jsonl"}}, Path("/s.jsonl")),
    ):
        trace = load(path, overrides).trace
        assert trace is not None
        assert trace.file == str(expected)
    monkeypatch.chdir(tmp_path)
    trace = load(Path("it.yaml")).trace
    assert trace is not None
    assert trace.file == str(tmp_path / "mine" / "s.jsonl")


def test_a_bad_override_is_a_fault_like_any_other() -> None:
    with pytest.raises(ScenarioError, match=r"prefix\.dynamik: unknown key"):
        load(SMOKE, {"prefix.dynamik": "head"})
    with pytest.raises(ScenarioError, match=r"seed\.deep: an override needs a mapping"):
        load(SMOKE, {"seed.deep": 1})


def test_an_override_on_a_command_line() -> None:
    assert parse_override("a.b=1.5") == ("a.b", 1.5)
    assert parse_override("a={x: 1}") == ("a", {"x": 1})
    assert parse_override("a=") == ("a", None)
    for text in ("a", "=1", "a..b=1", "a=[1"):
        with pytest.raises(ValueError, match="not"):
            parse_override(text)


@pytest.mark.parametrize("path", sorted(SMOKE.parent.glob("*.yaml")), ids=lambda p: p.stem)
def test_what_is_resolved_is_json_that_loads_back(path: Path) -> None:
    scenario = load(path)
    text = json.dumps(scenario.resolved(), allow_nan=False)
    assert Scenario.model_validate_json(text) == scenario


def test_a_scenario_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(SMOKE).seed = 4  # type: ignore[misc]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.binary(max_size=200))
def test_no_bytes_do_more_than_raise_the_one_error(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ScenarioError):
        load(write(tmp_path, data))


@settings(deadline=None)
@given(key=st.sampled_from(sorted(Scenario.model_fields)), value=_JSON)
def test_no_value_does_more_than_raise_the_one_error(key: str, value: object) -> None:
    with contextlib.suppress(ScenarioError):
        load(SMOKE, {key: value})
