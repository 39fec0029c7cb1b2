"""`agentload experiment` as its users run it: to the report, interrupted, resumed, refused."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "agentload", "experiment", *args]


def run(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*args), capture_output=True, text=True, timeout=280, check=False)


def record(folder: Path) -> dict[str, dict[str, object]]:
    """Arm -> its cell in `experiment.json`."""
    data = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
    return {cell["arm"]: cell for cell in data["cells"]}


def only_folder(runs: Path) -> Path:
    (folder,) = runs.iterdir()
    return folder


def test_from_a_file_to_the_report(tmp_path: Path) -> None:
    done = run(str(HERE / "experiment.yaml"), "--runs-dir", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    folder = only_folder(tmp_path)
    cells = record(folder)
    assert {cell["state"] for cell in cells.values()} == {"complete"}
    assert cells["cache-off"]["server_found"]["enable_prefix_caching"] == "False"
    for name in ("report.html", "summary.json"):
        assert (folder / name).stat().st_size > 0
        assert str(folder / "report.html") in done.stdout.replace("\n", "")
    assert all(str(cell["run_id"]) in done.stdout for cell in cells.values())
    assert "TTFT" in done.stdout


def wait_for(stream: object, text: str) -> None:
    """Read lines until one holds the text; the test's own timeout is the limit."""
    for line in stream:  # type: ignore[attr-defined]
        if text in line:
            return
    raise AssertionError(f"ended without {text!r}")


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task")
    return [int(c) for t in tasks.iterdir() for c in (t / "children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_leaves_readable_folders_and_no_process(
    tmp_path: Path, number: signal.Signals
) -> None:
    with subprocess.Popen(
        command(str(HERE / "experiment.yaml"), "--runs-dir", str(tmp_path)),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    ) as process:
        wait_for(process.stdout, ": 0 turns recorded")
        left = [os.pidfd_open(pid) for pid in children_of(process.pid)]
        assert len(left) == 2, "its server and its load"
        process.send_signal(number)
        rest = process.stdout.read() if process.stdout else ""
    assert process.returncode == 130, rest
    assert "--resume" in rest
    for child in left:
        assert select.select([child], [], [], 30)[0] == [child]
        os.close(child)
    folder = only_folder(tmp_path)
    assert sorted(str(c["state"]) for c in record(folder).values()) == ["interrupted", "planned"]

    again = run(str(HERE / "experiment.yaml"), "--resume", str(folder))
    assert again.returncode == 0, again.stdout + again.stderr
    assert {cell["state"] for cell in record(folder).values()} == {"complete"}
    assert (folder / "report.html").exists()


def test_a_server_that_does_not_start_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    text = (
        (HERE / "experiment.yaml").read_text().replace("max-model-len: 8192", "max-model-len: -4")
    )
    file = tmp_path / "experiment.yaml"
    file.write_text(text.replace("small.yaml", str(HERE / "small.yaml")))
    done = run(str(file), "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 1
    assert "max-model-len" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    cells = record(only_folder(tmp_path / "runs"))
    assert {cell["state"] for cell in cells.values()} == {"failed"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("arms:", "arns:"), "arns"),
        (("scenario: small.yaml", "scenario: gone.yaml"), "gone.yaml"),
        (("vary: [enable-prefix-caching]", "vary: []"), "enable-prefix-caching"),
        (("kind: embedded", "kind: magic"), "magic"),
    ],
)
def test_a_faulty_file_starts_nothing(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    file = tmp_path / "experiment.yaml"
    file.write_text((HERE / "experiment.yaml").read_text().replace(*change))
    (tmp_path / "small.yaml").write_text((HERE / "small.yaml").read_text())
    done = run(str(file), "--runs-dir", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "file", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda p: p.stem
)
def test_every_shipped_experiment_can_be_planned(file: Path) -> None:
    done = run(str(file), "--dry-run")
    assert done.returncode == 0, done.stderr
