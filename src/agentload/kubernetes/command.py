"""The command `agentload k8s`: runs on a cluster, by way of `kubectl` alone."""

from __future__ import annotations

import argparse
import re
import secrets
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from agentload.clock import wall_unix_s
from agentload.kubernetes.collect import collect
from agentload.kubernetes.kubectl import Kubectl, KubectlError, kustomize
from agentload.kubernetes.objects import COMPONENT, INSTANCE, Rendered, RenderError
from agentload.kubernetes.render import WishError, Wishes, write
from agentload.kubernetes.run import NAME_LABEL, Cluster, RunError
from agentload.kubernetes.troubles import troubles

EXIT_FAILED = 1
EXIT_INPUT = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str]) -> int:
    """Exit codes: 2 for a wish that cannot be met, 1 for a step that failed, else Locust's own."""
    given = _parser().parse_args(argv)
    try:
        code: int = given.act(given)
        return code
    except WishError as error:
        return _fail(str(error), EXIT_INPUT)
    except (KubectlError, RunError, RenderError) as error:
        return _fail(str(error), EXIT_FAILED)
    except KeyboardInterrupt:
        return _fail("interrupted; the run goes on: see `agentload k8s status`", EXIT_INTERRUPTED)


def _run(given: argparse.Namespace) -> int:
    wishes = Wishes(
        run_id=given.run_id or new_run_id(wall_unix_s()),
        overlay=given.overlay,
        components=tuple(given.component),
        scenario=given.scenario,
        arm=given.arm,
        workers=given.workers,
        base_url=given.base_url,
        metrics_url=given.metrics_url,
        image=given.image,
    )
    text = _rendered(wishes)
    rendered = Rendered.from_yaml(text)
    if not any(one.kind == "Job" for one in rendered.workloads("master")):
        raise WishError(f"{wishes.overlay} has no master Job: it is no run")
    if given.dry_run:
        print(masked(text))
        return 0
    cluster = _cluster(given, wishes.run_id)
    cluster.check(rendered)
    _say(f"run {wishes.run_id}")
    cluster.apply(text)
    cluster.wait_servers(rendered, given.ready_timeout_s)
    done = cluster.wait_done(given.timeout_s)
    return _finish(cluster, done, given)


def _collect(given: argparse.Namespace) -> int:
    cluster = _cluster(given, given.run_id)
    if cluster.master_pod() is None:
        raise RunError(f"there is no run {given.run_id}; there are: {_run_ids(given) or 'none'}")
    return _finish(cluster, cluster.wait_done(given.timeout_s), given)


def _finish(cluster: Cluster, done: dict[str, Any], given: argparse.Namespace) -> int:
    """Collect, let the Jobs end, delete; the exit code is the master's."""
    folder = collect(cluster, done, given.runs)
    _say(f"collected {folder}")
    cluster.wait_jobs(given.end_timeout_s)
    if not given.keep:
        cluster.delete()
    _say(f"{folder} is {done.get('state') or 'no run'} ({done.get('verdict') or 'no verdict'})")
    for reason in done.get("reasons", ()):
        _say(f"  {reason}")
    return int(done.get("exit_code", EXIT_FAILED))


def _status(given: argparse.Namespace) -> int:
    kubectl = Kubectl(given.context, given.namespace)
    label = NAME_LABEL if given.run_id is None else f"{NAME_LABEL},{INSTANCE}={given.run_id}"
    pods = kubectl.get("pods", "-l", label)
    for pod in pods["items"]:
        labels = pod["metadata"].get("labels", {})
        shown = (labels.get(INSTANCE, ""), labels.get(COMPONENT, ""), pod["metadata"]["name"])
        print("  ".join((*shown, pod.get("status", {}).get("phase", "Unknown"))))
    for trouble in troubles(pods):
        print(trouble)
    if not pods["items"]:
        print(f"no pods of {given.run_id or 'any run'}")
    return 0


def _delete(given: argparse.Namespace) -> int:
    cluster = _cluster(given, given.run_id)
    cluster.give_up("master", "worker")
    cluster.delete()
    return 0


def _run_ids(given: argparse.Namespace) -> str:
    pods = Kubectl(given.context, given.namespace).get("pods", "-l", f"{COMPONENT}=master")["items"]
    return ", ".join(sorted({p["metadata"].get("labels", {}).get(INSTANCE, "") for p in pods}))


def _cluster(given: argparse.Namespace, run_id: str) -> Cluster:
    return Cluster(Kubectl(given.context, given.namespace), run_id, _say)


def _rendered(wishes: Wishes) -> str:
    with tempfile.TemporaryDirectory(prefix="agentload-k8s-") as folder:
        write(wishes, Path(folder))
        return kustomize(Path(folder))


def new_run_id(wall_s: float) -> str:
    """UTC time to the second with two random hex digits; short, since it is part of names."""
    return f"{datetime.fromtimestamp(wall_s, UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(1)}"


def masked(text: str) -> str:
    """A rendering for showing: the content of Secrets is left out."""
    objects = [one for one in yaml.safe_load_all(text) if one]
    for one in objects:
        for field in ("data", "stringData"):
            if one.get("kind") == "Secret" and field in one:
                one[field] = dict.fromkeys(one[field], "<not shown>")
    return yaml.safe_dump_all(objects, sort_keys=False)


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="agentload k8s", allow_abbrev=False)
    made.set_defaults(act=None)
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    run = _command(commands, "run", _run, "render, check, apply, wait, collect, delete")
    add = run.add_argument
    add("--overlay", type=Path, default=Path("k8s/overlays/demo"), help="default: %(default)s")
    add("--component", type=Path, action="append", default=[], help="on top; may be given again")
    add("--run-id", help="default: time and two random digits")
    add("--scenario", type=Path, help="a scenario file of this machine instead of the overlay's")
    add("--arm", help="name of the server configuration that is measured")
    add("--workers", type=int, help="pods that load")
    add("--base-url", help="another target than the overlay's")
    add("--metrics-url", help="pages to scrape; dns://HOST:PORT/metrics for each replica")
    add("--image", help="of the load pods and the simulator, with its tag")
    add("--dry-run", action="store_true", help="print the rendering, Secrets masked; no cluster")
    add("--ready-timeout-s", type=float, default=1800.0, help="for the server; %(default)s")
    _add_ending(run)
    found = _command(commands, "status", _status, "pods of one run or of all, and what is wrong")
    found.add_argument("run_id", nargs="?", type=_checked_id)
    ended = _command(commands, "collect", _collect, "wait for the end, collect, delete")
    ended.add_argument("run_id", type=_checked_id)
    _add_ending(ended)
    gone = _command(commands, "delete", _delete, "all objects of a run, collected or not")
    gone.add_argument("run_id", type=_checked_id)
    return made


def _command(commands: Any, name: str, act: Any, what: str) -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=what, allow_abbrev=False
    )
    made.set_defaults(act=act)
    made.add_argument("--context", help="of kubectl; default: the current one")
    made.add_argument("--namespace", help="default: the context's")
    return made


def _add_ending(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--runs", type=Path, default=Path("runs"), help="where run folders go; %(default)s")
    add("--timeout-s", type=float, default=14_400.0, help="for the run to end; %(default)s")
    add("--end-timeout-s", type=float, default=300.0, help="for the Jobs then; %(default)s")
    add("--keep", action="store_true", help="leave the objects in the cluster")


def _checked_id(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no run id")
    return text


def _say(text: str) -> None:
    print(f"agentload k8s: {text}", file=sys.stderr, flush=True)


def _fail(text: str, code: int) -> int:
    _say(text)
    return code
