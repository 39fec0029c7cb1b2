"""Ways to break what the ci overlay renders, each with what is said of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentload.kubernetes.objects import Object, Rendered


def job(rendered: Rendered, component: str) -> Object:
    names = {one.name for one in rendered.workloads(component)}
    return next(
        o for o in rendered.objects if o["metadata"]["name"] in names and "template" in o["spec"]
    )


def pod(rendered: Rendered, component: str) -> Object:
    found: Object = job(rendered, component)["spec"]["template"]["spec"]
    return found


def container(rendered: Rendered, component: str) -> Object:
    found: Object = pod(rendered, component)["containers"][0]
    return found


def of_kind(rendered: Rendered, kind: str, part: str = "") -> Object:
    return next(o for o in rendered.of_kind(kind) if part in o["metadata"]["name"])


def swap(words: list[str], start: str, new: str) -> None:
    (index,) = [i for i, word in enumerate(words) if word.startswith(start)]
    words[index] = new


def drop(words: list[str], start: str) -> None:
    words[:] = [word for word in words if not word.startswith(start)]


def run_data(rendered: Rendered) -> dict[str, str]:
    found: dict[str, str] = of_kind(rendered, "ConfigMap", "agentload-run")["data"]
    return found


def probe(rendered: Rendered, component: str, kind: str, value: object) -> None:
    container(rendered, component)[kind] = value


Break = Callable[[Rendered], Any]
LONG = "agentload-server-" + "x" * 60
HTTP = {"httpGet": {"path": "/health", "port": 8000}}

# On the ci overlay: a name, how it is broken, what is said.
MUTATIONS: list[tuple[str, Break, str]] = [
    # the schemas let these pass
    (
        "quantity",
        lambda r: container(r, "worker")["resources"]["limits"].update(memory="1Gb"),
        "Job/agentload-worker-ci1: '1Gb' is no quantity",
    ),
    (
        "restart policy",
        lambda r: pod(r, "master").update(restartPolicy="Always"),
        "Job/agentload-master-ci1: restartPolicy must be Never",
    ),
    (
        "service port",
        lambda r: of_kind(r, "Service", "master")["spec"]["ports"][0].update(port=99999),
        "Service/agentload-master-ci1: 99999 is no port",
    ),
    (
        "container port",
        lambda r: container(r, "server")["ports"][0].update(containerPort=99999),
        "Deployment/agentload-server-ci1: 99999 is no port",
    ),
    (
        "spread",
        lambda r: pod(r, "worker")["topologySpreadConstraints"][0].update(
            whenUnsatisfiable="Perhaps"
        ),
        "whenUnsatisfiable 'Perhaps' is none of DoNotSchedule",
    ),
    (
        "deployment selector",
        lambda r: job(r, "server")["spec"]["selector"]["matchLabels"].update(a="b"),
        "Deployment/agentload-server-ci1: its selector",
    ),
    (
        "service name",
        lambda r: of_kind(r, "Service", "server-ci1")["metadata"].update(name=LONG),
        f"Service/{LONG}: a name has at most 63",
    ),
    # what refers to what
    (
        "service selector",
        lambda r: of_kind(r, "Service", "master")["spec"]["selector"].update(a="b"),
        "Service/agentload-master-ci1: its selector selects no pod",
    ),
    (
        "service target",
        lambda r: of_kind(r, "Service", "pods")["spec"]["ports"][0].update(targetPort=8001),
        "port 8001 is declared by no container",
    ),
    (
        "budget selector",
        lambda r: of_kind(r, "PodDisruptionBudget", "worker")["spec"]["selector"][
            "matchLabels"
        ].update(a="b"),
        "PodDisruptionBudget/agentload-worker-ci1: its selector",
    ),
    (
        "probe port",
        lambda r: probe(r, "master", "readinessProbe", {"tcpSocket": {"port": 5558}}),
        "readinessProbe asks port 5558",
    ),
    (
        "config map",
        lambda r: container(r, "master")["envFrom"][0]["configMapRef"].update(name="gone"),
        "uses ConfigMap/gone, which is not there",
    ),
    (
        "secret",
        lambda r: container(r, "worker")["env"][-1]["valueFrom"]["secretKeyRef"].update(
            name="gone"
        ),
        "uses Secret/gone, which is not there",
    ),
    (
        "secret key",
        lambda r: container(r, "worker")["env"][-1]["valueFrom"]["secretKeyRef"].update(
            key="apikey"
        ),
        "has no key 'apikey'",
    ),
    (
        "claim",
        lambda r: pod(r, "master")["volumes"].append(
            {"name": "x", "persistentVolumeClaim": {"claimName": "gone"}}
        ),
        "uses PersistentVolumeClaim/gone, which is not there",
    ),
    (
        "mount",
        lambda r: container(r, "worker")["volumeMounts"][0].update(name="gone"),
        "mounts 'gone', which is no volume",
    ),
    (
        "variable",
        lambda r: container(r, "server")["args"].append("--max-num-seqs=$(MAX_SEQS)"),
        "$(MAX_SEQS) is not defined in container server",
    ),
    (
        "master host",
        lambda r: container(r, "worker")["env"][0].update(value="agentload-master"),
        "MASTER_HOST is 'agentload-master', and there is no Service",
    ),
    (
        "target host",
        lambda r: container(r, "master")["env"][0].update(value="agentload-server"),
        "TARGET_HOST is 'agentload-server', and there is no Service",
    ),
    (
        "vllm service",
        lambda r: of_kind(r, "Service", "server-ci1")["metadata"].update(name="vllm"),
        "Service/vllm: a Service of this name gives pods variables that vllm reads",
    ),
    (
        "twice",
        lambda r: of_kind(r, "Service", "pods")["metadata"].update(name="agentload-server-ci1"),
        "Service/agentload-server-ci1: is there twice",
    ),
    (
        "run id",
        lambda r: run_data(r).update(RUN_ID="other"),
        "Job/agentload-worker-ci1: its name does not end in the run id 'other'",
    ),
    # pods
    (
        "service links",
        lambda r: pod(r, "server").pop("enableServiceLinks"),
        "Deployment/agentload-server-ci1: enableServiceLinks must be false",
    ),
    (
        "token",
        lambda r: pod(r, "worker").update(automountServiceAccountToken=True),
        "automountServiceAccountToken must be false",
    ),
    (
        "root",
        lambda r: pod(r, "worker")["securityContext"].pop("runAsNonRoot"),
        "securityContext.runAsNonRoot must be true",
    ),
    (
        "writable root",
        lambda r: container(r, "master")["securityContext"].update(readOnlyRootFilesystem=False),
        "readOnlyRootFilesystem of master must be true",
    ),
    (
        "capabilities",
        lambda r: pod(r, "worker")["initContainers"][0]["securityContext"].pop("capabilities"),
        "wait-for-master must drop ALL",
    ),
    (
        "sidecar",
        lambda r: job(r, "worker")["spec"]["template"]["metadata"]["labels"].pop(
            "sidecar.istio.io/inject"
        ),
        "its pods need the label sidecar.istio.io/inject",
    ),
    (
        "shell",
        lambda r: container(r, "master").update(command=["/bin/sh", "-c"]),
        "master starts a shell, which swallows SIGTERM",
    ),
    (
        "latest",
        lambda r: container(r, "server").update(image="vllm/vllm-openai:latest"),
        "image 'vllm/vllm-openai:latest' is not pinned",
    ),
    (
        "no tag",
        lambda r: container(r, "worker").update(image="host:5000/agentload"),
        "image 'host:5000/agentload' is not pinned",
    ),
    (
        "backoff",
        lambda r: job(r, "worker")["spec"].update(backoffLimit=3),
        "backoffLimit must be 0",
    ),
    (
        "deadline",
        lambda r: job(r, "master")["spec"].pop("activeDeadlineSeconds"),
        "activeDeadlineSeconds must be given",
    ),
    (
        "no request",
        lambda r: container(r, "worker")["resources"]["requests"].pop("cpu"),
        "worker requests no cpu",
    ),
    (
        "cpu limit",
        lambda r: container(r, "worker")["resources"]["limits"].update(cpu="500m"),
        "worker has a CPU limit",
    ),
    (
        "implicit switch",
        lambda r: drop(container(r, "server")["args"], "--enable-prefix-caching"),
        "needs --enable-prefix-caching or --no-enable-prefix-caching once, has neither",
    ),
    (
        "both switches",
        lambda r: container(r, "server")["args"].append("--no-enable-chunked-prefill"),
        "needs --enable-chunked-prefill or --no-enable-chunked-prefill once",
    ),
    (
        "start budget",
        lambda r: container(r, "server")["startupProbe"].update(failureThreshold=30),
        "its startupProbe must allow 600 s",
    ),
    (
        "readiness",
        lambda r: probe(r, "server", "readinessProbe", HTTP),
        "its readinessProbe must ask /v1/models",
    ),
    (
        "liveness",
        lambda r: probe(r, "master", "livenessProbe", {"tcpSocket": {"port": 5557}}),
        "Job/agentload-master-ci1: a livenessProbe",
    ),
    (
        "key in env",
        lambda r: container(r, "worker")["env"].append(
            {"name": "OPENAI_API_KEY", "value": "k-1234"}
        ),
        "OPENAI_API_KEY of worker has its value",
    ),
    (
        "key in args",
        lambda r: container(r, "server")["args"].append("--api-key=k-1234"),
        "the command line of server carries a secret",
    ),
    (
        "key in config",
        lambda r: run_data(r).update(HEADER="Bearer abcdefgh1234"),
        "HEADER holds a secret",
    ),
    # the load
    (
        "autoquit",
        lambda r: run_data(r).update(AUTOQUIT_S="14"),
        "--autoquit 14.0 must be above --stop-timeout 10 + 4 s",
    ),
    (
        "grace",
        lambda r: pod(r, "worker").update(terminationGracePeriodSeconds=20),
        "Job/agentload-worker-ci1: terminationGracePeriodSeconds 20 must be above",
    ),
    (
        "stop timeout",
        lambda r: drop(container(r, "master")["args"], "--stop-timeout"),
        "--stop-timeout must be given",
    ),
    (
        "parallelism",
        lambda r: job(r, "worker")["spec"].update(parallelism=2),
        "completions of Job/agentload-worker-ci1 are 2 and 3",
    ),
    (
        "max wait",
        lambda r: drop(container(r, "master")["args"], "--expect-workers-max-wait"),
        "--expect-workers-max-wait must be given",
    ),
    (
        "rebalancing",
        lambda r: container(r, "master")["args"].append("--enable-rebalancing"),
        "--enable-rebalancing can leave more users",
    ),
    (
        "headless",
        lambda r: swap(container(r, "master")["args"], "--autostart", "--headless"),
        "--headless leaves before the last results",
    ),
    (
        "no start",
        lambda r: drop(container(r, "master")["args"], "--autostart"),
        "--autostart must be given",
    ),
    (
        "processes",
        lambda r: container(r, "worker")["args"].append("--processes=2"),
        "--processes: of a forked worker",
    ),
    (
        "headless service",
        lambda r: of_kind(r, "Service", "master")["spec"].pop("publishNotReadyAddresses"),
        "needs clusterIP None and publishNotReadyAddresses",
    ),
]
