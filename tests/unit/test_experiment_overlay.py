"""Rendered manifests: the server in them, its flags, and what else could make arms differ."""

import pytest
import yaml

from agentload.experiment.overlay import OverlayError, flags_of_words, read_overlay

DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm-on}
spec:
  replicas: 1
  template:
    metadata: {labels: {app: vllm, arm: "on"}}
    spec:
      containers:
        - name: server
          image: vllm/vllm-openai:v0.32.0
          command: [vllm, serve, Qwen/Qwen2.5-7B-Instruct]
          args:
            [--max-model-len=$(MAX_MODEL_LEN), --no-enable-chunked-prefill, --max-num-seqs, "64"]
          envFrom: [{configMapRef: {name: settings-x7}}]
          env: [{name: PEER, value: http://vllm-on:8000}]
"""
REST = """
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings-x7}
data: {MAX_MODEL_LEN: "131072", LOG_LEVEL: INFO}
---
apiVersion: v1
kind: Service
metadata: {name: vllm-pods}
spec: {clusterIP: None, selector: {app: vllm}, ports: [{port: 8001}]}
---
apiVersion: v1
kind: Service
metadata: {name: vllm-on}
spec: {selector: {app: vllm}, ports: [{port: 8000}]}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: models}
"""


def test_a_server_is_read_as_the_kubelet_would_start_it() -> None:
    found = read_overlay(DEPLOYMENT + REST)
    assert found.workload == "deployment/vllm-on"
    assert (found.service, found.port) == ("vllm-on", 8000), "the one with an address"
    assert found.flags == {
        "max-model-len": 131072,
        "enable-chunked-prefill": False,
        "max-num-seqs": 64,
    }


def test_the_models_are_not_deleted_with_the_server() -> None:
    removed = yaml.safe_load_all(read_overlay(DEPLOYMENT + REST).removable)
    assert {d["kind"] for d in removed} == {"Deployment", "ConfigMap", "Service"}


def test_names_and_flags_are_no_difference_and_all_else_is() -> None:
    first = read_overlay(DEPLOYMENT + REST).rest
    renamed = (DEPLOYMENT + REST).replace("vllm-on", "vllm-off").replace("settings-x7", "set-9")
    other = renamed.replace("--no-enable-chunked", "--enable-chunked").replace("131072", "65536")
    assert read_overlay(other).rest == first, "flags are compared as flags"
    changed = (
        other.replace("v0.32.0", "v0.33.0")
        .replace("INFO", "DEBUG")
        .replace("replicas: 1", "replicas: 2")
    )
    second = read_overlay(changed).rest
    assert {k for k in first | second if first.get(k) != second.get(k)} == {
        "containers.0.image",
        "env.LOG_LEVEL",
        "replicas",
    }


@pytest.mark.parametrize(
    ("rendered", "said"),
    [
        ("", "needs one Deployment"),
        ("a: [", "not valid YAML"),
        ("- 1\n", "no Kubernetes object"),
        (REST, "it has: none"),
        (f"{DEPLOYMENT}---{DEPLOYMENT}", "needs one Deployment"),
        (DEPLOYMENT + "---\nkind: Job\nmetadata: {name: load}\n", "Job/load"),
        ("kind: Deployment\nmetadata: {name: x}\nspec: {template: {spec: {}}}\n", "no container"),
    ],
)
def test_what_is_no_single_server_is_refused(rendered: str, said: str) -> None:
    with pytest.raises(OverlayError, match=said):
        read_overlay(rendered)


def test_the_labelled_workload_is_the_server() -> None:
    labelled = DEPLOYMENT.replace(
        "vllm-on}", "other, labels: {app.kubernetes.io/component: server}}"
    )
    assert read_overlay(f"{DEPLOYMENT}---{labelled}").workload == "deployment/other"


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (
            ["serve", "model", "--a=1", "--b", "2", "--no-c", "--d"],
            {"a": 1, "b": 2, "c": False, "d": True},
        ),
        (["--x=", "--y=0.9", "--z=nan", "--", "-k"], {"x": "", "y": 0.9, "z": "nan"}),
        (["--on=true", "--off=False", "--name", "q"], {"on": True, "off": False, "name": "q"}),
    ],
)
def test_flags_are_read_off_a_command(words: list[str], flags: dict[str, object]) -> None:
    assert flags_of_words(words) == flags
