"""The settings that a run goes by, as its manifest shows them."""

from __future__ import annotations

from pathlib import Path

from agentload.client.settings import load_settings
from agentload.scenario import load
from agentload.swarm.target import in_force

SMOKE = Path(__file__).parents[3] / "scenarios" / "smoke.yaml"


def test_settings_in_force_have_a_source_and_no_secret() -> None:
    scenario = load(SMOKE, {"deadlines.first_token_s": 77, "request.temperature": 0.5})
    flags = {"base_url": "http://gw.test", "total_timeout_s": "90"}
    env = {"OPENAI_API_KEY": "sk-demo-0001"}
    settings, sources = load_settings(flags, env, None)
    shown, origin = in_force(scenario, settings, sources, "m")
    assert set(shown) == set(origin)
    said = {name: (shown[name], origin[name]) for name in shown}
    assert said["base_url"] == ("http://gw.test/v1", "flag --base-url")
    assert said["total_timeout_s"] == ("90.0", "flag --total-timeout-s")
    assert said["first_token_timeout_s"] == ("77.0", "scenario")
    assert said["temperature"] == ("0.5", "scenario")
    assert said["model"] == ("m", "the only one served")
    assert said["api_key"] == ("(set, hidden)", "environment OPENAI_API_KEY")
    assert said["max_retries"] == ("0", "default")
    assert "sk-demo" not in str(said)


def test_a_setting_goes_before_the_scenario() -> None:
    scenario = load(SMOKE, {"deadlines.first_token_s": 77})
    flags = {"first_token_timeout_s": "5", "model": "wished", "temperature": "0"}
    settings, sources = load_settings(flags, {}, None)
    shown, origin = in_force(scenario, settings, sources, "wished")
    assert (shown["first_token_timeout_s"], shown["temperature"]) == ("5.0", "0.0")
    assert origin["model"] == "flag --model"
