"""Runs rendered pods as processes: their real commands, each in namespaces of its own.

A container sees the machine's files through an overlay, read-only where the manifest says so, with
its volumes on top; it runs as the manifest's user with nothing but the manifest's environment. The
image is the project's own environment.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.netns.network import Host, Network, Process
from tests.netns.rendered import NAMESPACE, Container, Objects, PodPlan, expanded

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
IMAGE_PATH = f"{BIN}:/usr/local/bin:/usr/bin:/bin"
IMAGE_HOME = "/opt/agentload"  # where the image has the project's files


class Pod:
    """One pod on its host."""

    def __init__(self, plan: PodPlan, host: Host, cluster: Cluster) -> None:
        self.plan = plan
        self.host = host
        self.main: Process | None = None
        self.init_codes: list[int] = []
        self._cluster = cluster
        self._folder = cluster.network.folder / "pods" / plan.name
        self._folder.mkdir(parents=True)
        self._folders: dict[str, Path] = {}
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def folder(self, mount_path: str) -> Path:
        """The folder of the machine that the pod sees at this path."""
        container = self.plan.main
        (mount,) = [one for one in container.mounts if one["mountPath"] == mount_path]
        return self._source(mount, container)

    def wait(self, deadline_s: float = 120.0) -> int:
        """The exit code of the pod's container."""
        self._thread.join(deadline_s)
        assert self.main is not None, f"{self.plan.name} did not start: {self.host.said()}"
        return self.main.wait(deadline_s)

    def signal(self, number: int) -> None:
        """To the first process alone, as the kubelet does."""
        assert self.main is not None
        self.main.signal(number)

    def kill(self) -> None:
        """Everything in it at once, as when a node dies or memory is over."""
        assert self.main is not None
        self.main.kill_group()

    def try_command(self, *command: str) -> int:
        """Run something else in place of the pod's command, with all that it has."""
        one = self.plan.main
        probe = Container(one.name, one.image, list(command), one.env, one.mounts, one.read_only)
        return self._start(probe).wait()

    def _run(self) -> None:
        for one in self.plan.init:
            self.init_codes.append(self._start(one).wait(300))
            if self.init_codes[-1]:
                return
        self.main = self._start(self.plan.main)

    def _start(self, container: Container) -> Process:
        assert container.image.partition(":")[0] == "agentload", container.image
        env = {"PATH": IMAGE_PATH, **container.env}
        command = ["sh", "-c", "\n".join(self._script(container)), "sh", *container.command]
        return self.host.start_exactly(command, env)

    def _script(self, container: Container) -> Iterator[str]:
        """Shell lines that end in an exec, so the process that was started is the container's."""
        base = self._folder / f"root-{container.name}"
        base.mkdir(exist_ok=True)
        root = shlex.quote(f"{base}/root")
        yield "set -e"
        yield f"PATH={os.defpath}:/usr/sbin:/sbin"
        yield f"mount -t tmpfs -o mode=0755 tmpfs {shlex.quote(str(base))}"
        yield f"cd {shlex.quote(str(base))}"
        yield "mkdir upper work root"
        yield f"mount -t overlay -o lowerdir=/,upperdir={base}/upper,workdir={base}/work o {root}"
        for special in ("/proc", "/dev", "/sys"):
            yield f"mount --rbind {special} {root}{special}"
        yield f"mount --bind /etc/hosts {root}/etc/hosts"
        yield from self._image(root)
        for mount in container.mounts:
            target = f"{root}{mount['mountPath']}"
            yield f"mkdir -p {target}"
            yield f"mount --bind {shlex.quote(str(self._source(mount, container)))} {target}"
            if mount.get("readOnly"):
                yield f"mount -o remount,bind,ro {target}"
        if any(ROOT.is_relative_to(mount["mountPath"]) for mount in container.mounts):
            yield from self._project(root)  # a checkout below /tmp was just covered
        if container.read_only:
            yield f"mount -o remount,ro {root}"
        ids = f"--reuid={self.plan.user} --regid={self.plan.group}"
        groups = (
            "--clear-groups" if self.plan.fs_group is None else f"--groups={self.plan.fs_group}"
        )
        drop = "--inh-caps=-all --bounding-set=-all --no-new-privs"
        yield "chroot=$(command -v chroot)"
        yield f"export PATH={IMAGE_PATH}"
        yield f'exec $chroot {root} /usr/bin/setpriv {ids} {groups} {drop} -- "$@"'

    @staticmethod
    def _image(root: str) -> Iterator[str]:
        """The project and its interpreter where the image has them, readable for any user."""
        yield from Pod._project(root)
        yield f"mkdir -p {root}{IMAGE_HOME}"
        yield f"mount --bind {ROOT} {root}{IMAGE_HOME}"
        yield f"mount -o remount,bind,ro {root}{IMAGE_HOME}"
        interpreter = Path(sys.executable).resolve()
        for folder in {*ROOT.parents, *interpreter.parents} - {Path("/")}:
            yield f"chmod o+x {root}{folder}"

    @staticmethod
    def _project(root: str) -> Iterator[str]:
        yield f"mkdir -p {root}{ROOT}"
        yield f"mount --bind {ROOT} {root}{ROOT}"
        yield f"mount -o remount,bind,ro {root}{ROOT}"

    # -- volumes ----------------------------------------------------------------------------

    def _source(self, mount: dict[str, str], container: Container) -> Path:
        """What is mounted: a volume, or the folder in it that the manifest names."""
        volume = self._volume(mount["name"])
        inside = expanded(mount.get("subPathExpr", mount.get("subPath", "")), container.env)
        folder = volume / inside
        if not folder.exists():  # the kubelet makes it, like the volume
            folder.mkdir()
            give_to(folder, self.plan.fs_group)
        return folder

    def _volume(self, name: str) -> Path:
        if name not in self._folders:
            self._folders[name] = self._make(self.plan.volumes[name])
        return self._folders[name]

    def _make(self, volume: dict[str, object]) -> Path:
        claim = volume.get("persistentVolumeClaim")
        if isinstance(claim, dict):
            return self._cluster.claim(str(claim["claimName"]))
        folder = self._folder / f"volume-{volume['name']}"
        folder.mkdir()
        for key, kind, name_key in (
            ("configMap", "ConfigMap", "name"),
            ("secret", "Secret", "secretName"),
        ):
            source = volume.get(key)
            if isinstance(source, dict):
                for name, text in self._cluster.objects.data(kind, source[name_key]).items():
                    (folder / name).write_text(text, encoding="utf-8")
                return folder
        assert "emptyDir" in volume, volume
        give_to(folder, self.plan.fs_group)
        return folder


def give_to(folder: Path, fs_group: int | None) -> None:
    """As the kubelet does: anybody may write, and what is made there belongs to the group."""
    if fs_group is not None:
        os.chown(folder, 0, fs_group)
    folder.chmod(0o2777)


class Cluster:
    """All pods of a rendering on one network. `claims` are folders that outlive it."""

    def __init__(
        self,
        network: Network,
        text: str,
        is_running: Callable[[], object] = lambda: None,
        claims: Path | None = None,
    ) -> None:
        self.network = network
        self.is_running = is_running
        self.text = text
        self.objects = Objects.of(text)
        self._claims = claims or network.folder / "claims"
        self.pods = [Pod(plan, network.host(plan.name), self) for plan in self.objects.pods]
        self._name_services()

    def start(self, *but: str) -> None:
        for pod in self.pods:
            if pod.plan.name not in but:
                pod.start()

    def role(self, component: str) -> list[Pod]:
        label = "app.kubernetes.io/component"
        return [pod for pod in self.pods if pod.plan.labels[label] == component]

    @property
    def master(self) -> Pod:
        (only,) = self.role("master")
        return only

    def claim(self, name: str) -> Path:
        self.objects.named("PersistentVolumeClaim", name)
        folder = self._claims / name
        if not folder.exists():
            folder.mkdir(parents=True)
            give_to(folder, self.master.plan.fs_group)
        return folder

    def _name_services(self) -> None:
        """Nothing translates ports here, so a Service's port has to be the container's own."""
        for service in self.objects.kind("Service"):
            name = service["metadata"]["name"]
            for port in service["spec"]["ports"]:
                assert port.get("targetPort", port["port"]) == port["port"], (name, port)
            chosen = self.objects.pods_of(service)
            assert chosen, f"Service {name} chooses no pod"
            headless = service["spec"].get("clusterIP") == "None"
            for plan in chosen if headless else chosen[:1]:
                address = self.network.hosts[plan.name].address
                for full in (name, f"{name}.{NAMESPACE}", f"{name}.{NAMESPACE}.svc.cluster.local"):
                    self.network.alias(full, address)
