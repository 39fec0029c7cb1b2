"""Broken experiment files: each fault is one line that says where it is and what mends it."""

from pathlib import Path

import pytest

from agentload.experiment.errors import ExperimentError
from agentload.experiment.load import load

ROOT = Path(__file__).parents[2]
WHOLE = f"""name: two
scenario: {ROOT / "scenarios" / "smoke.yaml"}
target:
  kind: embedded
  flags: {{max-model-len: 8192}}
arms:
  - name: a
    flags: {{enable-prefix-caching: true}}
  - name: b
    flags: {{enable-prefix-caching: false}}
vary: [enable-prefix-caching]
"""
SECRET = "sk-canary"
COMMAND = 'kind: command\n  command: [serve, "{port}"]\n  model: m'
URL = "kind: url\n  model: m"
KUBERNETES = "kind: kubernetes\n  namespace: load"

# (what is replaced, by what, every part of what has to be said)
BROKEN = [
    (WHOLE, "", ["mapping of keys"]),
    (WHOLE, "- 1\n", ["mapping of keys"]),
    (WHOLE, "name: !!python/object/apply:os.system [id]\n", ["not valid YAML"]),
    (WHOLE, "a: " + "[" * 2000, ["not valid YAML"]),
    ("kind: embedded", "kind: docker",
     ["line 3: target", "embedded, command, url, kubernetes, is 'docker'"]),
    ("kind: embedded", "cpus: '0'", ["target: kind is missing"]),
    ("8192", ".nan", ["line 5: target.flags.max-model-len: a flag is"]),
    ("8192", "[1]", ["line 5: target.flags.max-model-len: a flag is"]),
    ("flags: {max-model-len: 8192}", "flags:", ["line 5: target.flags: has to be a mapping"]),
    ("max-model-len: 8192", '"": 1', ["'' is no name of a flag"]),
    ("max-model-len", "max_model_len", ["write it as max-model-len"]),
    ("max-model-len", "--max-model-len", ["write it as max-model-len"]),
    ("enable-prefix-caching: true", "no-enable-prefix-caching: true",
     ["arms.a.flags.no-enable-prefix-caching: write it as enable-prefix-caching: false"]),
    ("max-model-len: 8192", "port: 8000", ["target.flags.port: is set by the experiment"]),
    ("kind: embedded", COMMAND.replace("{port}", "8000"), ["no word has {port}"]),
    ("kind: embedded", COMMAND.replace("serve", "--api-key=" + SECRET), ["a key does not belong"]),
    ("kind: embedded", COMMAND + "\n  ready_timeout_s: .inf", ["line 7", "finite number, is inf"]),
    ("kind: embedded", URL, ["arms.a: needs a base_url", "arms.b: needs a base_url"]),
    ("name: a", f"name: a\n    base_url: http://me:{SECRET}@h/v1", ["arms.a: has a base_url"]),
    ("kind: embedded", KUBERNETES,
     ["arms.a: needs an overlay", "arms.a.flags", "target.flags: with kind 'kubernetes'"]),
    ("kind: embedded", KUBERNETES.replace("load", "Load_1"), ["target.namespace", "'Load_1'"]),
    ("name: a", "name: a\n    overlay: x", ["arms.a: has an overlay, which only target kind"]),
    ("kind: embedded", "kind: embedded\n  cpus: 0-9999", ["target.cpus: '0-9999': no CPU"]),
    ("kind: embedded", "kind: embedded\n  cpus: one", ["target.cpus: 'one' is no list of CPUs"]),
    ("kind: embedded", f"kind: embedded\n  dcgm_url: http://me:{SECRET}@h/",
     ["target.dcgm_url", "AGENTLOAD_DCGM_URL"]),
    ("kind: embedded", "kind: embedded\n  dcgm_url: h:9400", ["target.dcgm_url: is no address"]),
    ("vary:", f"api_key: {SECRET}\nvary:", ["line 11: api_key: unknown key; allowed here: accept"]),
    ("vary:", "seeds: [1, 1]\nvary:", ["seeds: 1 is given more than once"]),
    ("vary:", "seeds: [true]\nvary:", ["line 11: seeds.0: has to be a whole number"]),
    ("vary:", "blocks: 0\nvary:", ["line 11: blocks", "is 0"]),
    ("name: a", "name: ../../etc", ["line 7: arms.0.name", "'../../etc'"]),
    ("vary:", "overrides: {stages: 3}\nvary:", ["stages: a list is needed (found 3)"]),
    ("flags: {enable-prefix-caching: true}", "scenario: {prefix.dynamik: head}",
     ["arms.a.scenario", "prefix.dynamik: unknown key", "'scenario.prefix.dynamik'"]),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "said"), BROKEN)
def test_each_fault_says_where_it_is(tmp_path: Path, old: str, new: str, said: list[str]) -> None:
    assert old in WHOLE
    file = tmp_path / "two.yaml"
    file.write_text(WHOLE.replace(old, new, 1))
    with pytest.raises(ExperimentError) as caught:
        load(file)
    text = str(caught.value)
    assert text.startswith(f"{file}: ")
    assert all(part in text for part in said), text
    assert SECRET not in text


def test_the_whole_file_has_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    file.write_text(WHOLE)
    assert [arm.name for arm in load(file).arms] == ["a", "b"]
