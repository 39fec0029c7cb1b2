"""A limit of CPU time as a container has it, with cgroups of either version."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType

ROOT = Path("/sys/fs/cgroup")
PERIOD_US = 100_000


class CpuQuota:
    """A cgroup for processes, for the time of a `with`; they go back to the root at its end."""

    def __init__(self, name: str) -> None:
        old = ROOT / "cpu"
        self._is_old = (old / "cpu.cfs_quota_us").exists() or (old / "cpu.stat").exists()
        self.root = old if self._is_old else ROOT
        self.folder = self.root / name

    def __enter__(self) -> CpuQuota:
        if not self._is_old:
            (self.root / "cgroup.subtree_control").write_text("+cpu")
        self.folder.mkdir()
        return self

    def take(self, pid: int) -> None:
        (self.folder / "cgroup.procs").write_text(str(pid))

    def limit(self, cores: float) -> None:
        """So much of a core, from now on."""
        quota_us = int(cores * PERIOD_US)
        if self._is_old:
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (self.folder / "cpu.max").write_text(f"{quota_us} {PERIOD_US}")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for pid in (self.folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (self.root / "cgroup.procs").write_text(pid)
        self.folder.rmdir()
