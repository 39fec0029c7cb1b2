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
def test_interrupted_it_leaves_readable_folders_and_no_process(tmp_path: Path) -> None:
    with begun(tmp_path) as process:
        wait_for(process.stdout, ": 0 turns recorded")
        left = [os.pidfd_open(pid) for pid in children_of(process.pid)]
        assert len(left) == 3, "its server, its load and its reaper"
        second = run(str(HERE / "experiment.yaml"), "--runs-dir", str(tmp_path), "--resume")
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read() if process.stdout else ""
    assert process.returncode == 130, rest
    assert "--resume" in rest
    assert all_end(left)
    folder = only_folder(tmp_path)
    assert second.returncode == 2
    assert f"{folder}: another process is running this experiment" in second.stderr
    cells = record(folder)
    assert sorted(str(c["state"]) for c in cells.values()) == ["interrupted", "planned"]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_it_leaves_no_process_and_goes_on_where_it_was(tmp_path: Path) -> None:
    with begun(tmp_path) as process:
        wait_for(process.stdout, ": complete,")
        wait_for(process.stdout, ": 0 turns recorded")
        left = [os.pidfd_open(pid) for pid in children_of(process.pid)]
        assert len(left) == 3
        process.send_signal(signal.SIGKILL)
    assert all_end(left)
    folder = only_folder(tmp_path)
    before = {arm: c["state"] for arm, c in record(folder).items()}
    assert sorted(map(str, before.values())) == ["complete", "running"]

    again = run(str(HERE / "experiment.yaml"), "--runs-dir", str(tmp_path), "--resume")
    assert again.returncode == 0, again.stdout + again.stderr
    cells = record(folder)
    assert {c["state"] for c in cells.values()} == {"complete"}
    tries = {before[arm]: c["tries"] for arm, c in cells.items()}
    assert tries == {"complete": 1, "running": 2}
    assert (folder / "report.html").exists()


def begun(runs: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(str(HERE / "experiment.yaml"), "--runs-dir", str(runs)),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


def all_end(processes: list[int]) -> bool:
    """Whether all of these process descriptors become readable: their processes ended."""
    ended = [select.select([one], [], [], 90)[0] == [one] for one in processes]
    for one in processes:
        os.close(one)
    return all(ended)


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
