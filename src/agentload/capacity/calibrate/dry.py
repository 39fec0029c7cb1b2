"""The embedded simulator as the server of a dry run."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agentload.capacity.calibrate.probes import ProbeError
from agentload.experiment.process import Child
from agentload.sim.profiles import ReplicaProfile

START_LIMIT_S, STOP_LIMIT_S, LOOK_S = 60.0, 5.0, 0.1


@contextmanager
def simulator(sheet: ReplicaProfile, depth: int) -> Iterator[str]:
    """Its base URL; serves contexts a little deeper than `depth`. Raises `ProbeError`."""
    room = min(sheet.max_model_len, 131_072)
    subject = sheet.cost_file.subject
    command = [
        *(sys.executable, "-m", "agentload.sim.server", "--port", "0"),
        *("--gpu-profile", str(subject["gpu"]), "--model-profile", str(subject["model"])),
        *("--max-model-len", str(max(room, depth + 4096) if depth < 126_000 else room)),
        "--enable-prompt-tokens-details",
    ]
    with tempfile.TemporaryDirectory(prefix="agentload-dry-") as folder:
        log = Path(folder) / "simulator.log"
        child = Child(command, log)
        try:
            yield _ready_url(child, log)
        finally:
            child.end(STOP_LIMIT_S)


def _ready_url(child: Child, log: Path) -> str:
    for _ in range(int(START_LIMIT_S / LOOK_S)):
        ended = child.wait(LOOK_S)
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith('{"event":"ready"'):
                return str(json.loads(line)["url"])
        if ended is not None:
            raise ProbeError(f"the simulator did not start: {child.last_lines(3)}")
    raise ProbeError(f"the simulator did not start within {START_LIMIT_S:g} s")
