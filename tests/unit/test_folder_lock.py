"""A shard is left behind when its worker is no more, however that ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentload.folder_lock import LOCK, FolderLock, left_behind


def test_a_shard_is_left_behind_when_its_lock_is_free(tmp_path: Path) -> None:
    assert not left_behind(tmp_path / "nowhere")
    assert not left_behind(tmp_path)  # nobody wrote here
    lock = FolderLock(tmp_path)
    assert not left_behind(tmp_path)
    with pytest.raises(OSError, match="unavailable"):
        FolderLock(tmp_path)
    lock.release()
    assert left_behind(tmp_path)
    assert left_behind(tmp_path)  # looking takes nothing


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from agentload.folder_lock import FolderLock;"
        "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not left_behind(tmp_path)
        process.kill()
    assert left_behind(tmp_path)


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    (tmp_path / LOCK).symlink_to(tmp_path / "other")
    assert not left_behind(tmp_path)
