"""What is wished: scenario, settings and flags together, with all faults at once."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import pytest

from agentload.scenario import load
from agentload.swarm.options import add_options, metrics_pages
from agentload.swarm.plan import Flags, InputError, read_wishes, stages_of
from agentload.swarm.spec import RunSpec
from agentload.swarm.stages import plan_of_stages
from agentload.swarm.target import deadlines_of

SCENARIO = Path(__file__).parents[3] / "scenarios" / "steady-append.yaml"
NO_FLAGS = Flags(None, None, None)


class LocustLikeParser(ArgumentParser):
    """Takes the keyword that keeps an option out of Locust's web page."""

    def add_argument(self, *names: Any, **keywords: Any) -> Any:
        keywords.pop("include_in_web_ui", None)
        return super().add_argument(*names, **keywords)


def options(*args: str) -> Namespace:
    parser = LocustLikeParser()
    add_options(parser)
    parsed: Namespace = parser.parse_args([*args])
    return parsed


def test_the_stop_timeout_lets_an_answer_finish_unless_one_is_given() -> None:
    assert options().stop_timeout == "120"


def test_a_scenario_and_a_host_are_enough() -> None:
    wishes = read_wishes(options("--scenario", str(SCENARIO)), "http://h:1", {}, NO_FLAGS)
    assert wishes.settings.base_url == "http://h:1/v1"
    assert wishes.stages == plan_of_stages(load(SCENARIO).stages)
    assert wishes.warms_up
    assert wishes.first_step().ramp_s == 0.0
    assert wishes.run_id is None


def test_flags_on_the_command_line_replace_keys_of_the_scenario() -> None:
    given = options("--scenario", str(SCENARIO), "--context-scale", "0.1", "--seed", "5")
    wishes = read_wishes(given, None, {}, NO_FLAGS)
    assert (wishes.scenario.context_scale, wishes.scenario.seed) == (0.1, 5)


def test_any_key_can_be_set_and_an_option_of_its_own_goes_before() -> None:
    more = ("--set", "stop.after_turns=9", "--set", "waits.human=null", "--set", "seed=3")
    given = options("--scenario", str(SCENARIO), *more, "--seed", "5")
    scenario = read_wishes(given, None, {}, NO_FLAGS).scenario
    assert (scenario.stop.after_turns, scenario.waits.human, scenario.seed) == (9, None, 5)


@pytest.mark.parametrize("text", ["stop.after_turns", "=3", "stop.after_turns=[1", "stop.x=1"])
def test_what_cannot_be_set_is_named(text: str) -> None:
    given = options("--scenario", str(SCENARIO), "--set", text)
    with pytest.raises(InputError, match=r"is not of the form|not a YAML value|unknown key"):
        read_wishes(given, None, {}, NO_FLAGS)


def test_all_faults_come_at_once_and_no_secret_with_them() -> None:
    given = options("--scenario", "nowhere.yaml", "--run-id", "../x")
    env = {"OPENAI_API_KEY": "sk-canary one", "OPENAI_BASE_URL": "ftp://h"}
    with pytest.raises(InputError) as caught:
        read_wishes(given, None, env, NO_FLAGS)
    text = str(caught.value)
    for part in ("nowhere.yaml", "run id '../x'", "api_key (environment", "base_url (environment"):
        assert part in text
    assert "canary" not in text


def test_rebalancing_is_refused_beside_all_other_faults() -> None:
    given = options("--scenario", "nowhere.yaml")
    given.enable_rebalancing = True
    with pytest.raises(InputError, match="--enable-rebalancing: users of a worker") as caught:
        read_wishes(given, "http://h:1", {}, NO_FLAGS)
    assert "nowhere.yaml" in str(caught.value)


def test_no_scenario_is_said_with_the_option_that_gives_one() -> None:
    with pytest.raises(InputError, match="give --scenario FILE"):
        read_wishes(options(), "http://h:1", {}, NO_FLAGS)


def test_users_and_run_time_set_the_stages_aside() -> None:
    scenario = load(SCENARIO)
    assert stages_of(scenario, NO_FLAGS).steps[0].name == "steady"
    both = stages_of(scenario, Flags(3, 1.5, 60))
    assert [(s.users, s.ramp_s, s.ends_s) for s in both.steps] == [(3, 2.0, 60.0)]
    given = read_wishes(options("--scenario", str(SCENARIO)), None, {}, Flags(3, 1.5, 60))
    assert [(s.name, s.users, s.duration_s) for s in given.scenario.stages] == [("run", 3, 60.0)]
    only_time = stages_of(scenario, Flags(None, None, 60))
    assert [(s.users, s.ramp_s) for s in only_time.steps] == [(scenario.stages[0].users, 1.0)]


def test_an_open_population_keeps_its_stages(tmp_path: Path) -> None:
    text = SCENARIO.read_text(encoding="utf-8")
    text = text.replace("stages:", "arrivals: { population: open }\nstages:")
    text = text.replace("    users: 8", "    sessions_per_s: 0.5\n    users: 8")
    path = tmp_path / "open.yaml"
    path.write_text(text, encoding="utf-8")
    given = options("--scenario", str(path))
    assert not read_wishes(given, None, {}, NO_FLAGS).warms_up
    with pytest.raises(InputError, match=r"arrivals\.population is open"):
        read_wishes(given, None, {}, Flags(3, None, None))


@pytest.mark.parametrize("rule", ["after_turns=9", "ttft_p99_interval=0.1"])
def test_a_rule_that_needs_the_rows_is_refused_where_they_stay_with_the_workers(rule: str) -> None:
    given = ("--scenario", str(SCENARIO), "--set", f"stop.{rule}")
    read_wishes(options(*given), None, {}, NO_FLAGS)
    with pytest.raises(InputError, match=rf"worker: stop\.{rule.split('=')[0]} needs the rows"):
        read_wishes(options(*given, "--record-on", "worker"), None, {}, NO_FLAGS)
    after_s = (*given[:3], "stop.after_s=60", "--record-on", "worker")
    assert read_wishes(options(*after_s), None, {}, NO_FLAGS).scenario.stop.after_s == 60


def test_deadlines_come_from_the_scenario_unless_a_setting_was_given() -> None:
    given = read_wishes(options("--scenario", str(SCENARIO)), None, {}, NO_FLAGS)
    plain = deadlines_of(given.scenario, given.settings, given.sources)
    assert plain.first_token_s == given.scenario.deadlines.first_token_s
    sources = {**given.sources, "first_token_timeout_s": "file settings.json"}
    set_one = deadlines_of(given.scenario, given.settings, sources)
    assert set_one.first_token_s == given.settings.first_token_timeout_s
    assert set_one.total_s == given.scenario.deadlines.total_s


@pytest.mark.parametrize(
    ("text", "pages"),
    [
        ("", ()),
        ("none", None),
        (" http://a/metrics, http://b/m ,", ("http://a/metrics", "http://b/m")),
    ],
)
def test_pages_to_scrape(text: str, pages: tuple[str, ...] | None) -> None:
    assert metrics_pages(options("--metrics-url", text)) == pages


def test_a_run_is_the_same_after_the_way_to_a_worker() -> None:
    scenario = load(SCENARIO)
    spec = RunSpec(
        run_id="r1",
        run_salt="ab12",
        corpus_fingerprint="f" * 16,
        trace_fingerprint=None,
        scenario_json=scenario.model_dump_json(),
        steps=plan_of_stages(scenario.stages).steps,
        base_url="http://h:1/v1",
        model="m",
        chars_per_token={"code": 4.1, "json": 3.0},
        max_model_len=None,
        run_start_ns=5,
        wall_start_unix_s=1.5,
        clock_identity=None,
        ranks={"h_a": 0},
        stages_from_s=None,
    )
    told = spec.as_message()
    told["steps"] = [dict(step) for step in told["steps"]]  # msgpack makes lists of tuples
    assert RunSpec.from_message(told) == spec
    assert RunSpec.from_message(told).scenario() == scenario


def test_pages_of_gpus_are_read_and_their_password_comes_from_the_environment() -> None:
    scenario = ("--scenario", str(SCENARIO))
    given = options(*scenario, "--dcgm-url", "http://g:9400, http://h:9400/gpu/metrics")
    assert read_wishes(given, None, {}, NO_FLAGS).gpu_pages == (
        "http://g:9400/metrics",
        "http://h:9400/gpu/metrics",
    )
    env = {"AGENTLOAD_DCGM_URL": "http://me:s3cr@g:9400/metrics"}
    pages = read_wishes(options(*scenario), None, env, NO_FLAGS).gpu_pages
    assert pages == ("http://me:s3cr@g:9400/metrics",)


@pytest.mark.parametrize("option", ["--dcgm-url", "--metrics-url"])
def test_a_password_on_the_command_line_is_refused_and_not_shown(option: str) -> None:
    given = options("--scenario", str(SCENARIO), option, "http://me:s3cr@g:9400/metrics")
    with pytest.raises(InputError, match=option) as caught:
        read_wishes(given, None, {}, NO_FLAGS)
    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize("page", ["g:9400", "ftp://g/metrics", "http://", "http://g:x/"])
def test_a_gpu_page_that_is_no_address_is_refused(page: str) -> None:
    with pytest.raises(InputError, match="--dcgm-url"):
        read_wishes(options("--scenario", str(SCENARIO), "--dcgm-url", page), None, {}, NO_FLAGS)


def test_settings_told_beside_are_texts_and_a_faulty_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"enable_chunked_prefill": "True", "max_num_seqs": 8}')
    given = options("--scenario", str(SCENARIO), "--server-settings", str(file))
    told = read_wishes(given, None, {}, NO_FLAGS).server_settings
    assert told == {"enable_chunked_prefill": "True", "max_num_seqs": "8"}
    for text in ("", "[1]", '{"a": [1]}'):
        file.write_text(text)
        with pytest.raises(InputError, match=r"settings\.json"):
            read_wishes(given, None, {}, NO_FLAGS)
    file.unlink()
    with pytest.raises(InputError, match="No such file"):
        read_wishes(given, None, {}, NO_FLAGS)
