"""Downloads: known names of the run folder, whatever is asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentload.swarm.web.files import kind_of, listing, open_file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    run = tmp_path / "run"
    run.mkdir()
    (run / "turns.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (run / "metrics_first_0.txt").write_text("x 1\n", encoding="utf-8")
    (run / "secret.txt").write_text("no", encoding="utf-8")
    (tmp_path / "turns.csv").write_text("outside", encoding="utf-8")
    return run


def test_a_known_file_is_read_up_to_the_size_it_had(folder: Path) -> None:
    found = open_file(folder, "turns.csv")
    assert found is not None
    with (folder / "turns.csv").open("a", encoding="utf-8") as more:
        more.write("3,4\n")
    assert (found.size, b"".join(found.blocks())) == (8, b"a,b\n1,2\n")
    assert found.kind.startswith("text/csv")
    found.file.close()


@pytest.mark.parametrize(
    "name",
    [
        "secret.txt",
        "../turns.csv",
        "..%2fturns.csv",
        "./turns.csv",
        "turns.csv/",
        "turns.csv\0",
        "TURNS.CSV",
        "",
        ".",
        "/etc/passwd",
        "metrics_first_0.txt/../secret.txt",
        "metrics_first_9999.txt",
    ],
)
def test_no_other_name_is_opened(folder: Path, name: str) -> None:
    assert open_file(folder, name) is None


def test_neither_links_nor_folders_nor_pipes_are_opened(folder: Path) -> None:
    (folder / "chunks.csv").symlink_to(folder.parent / "turns.csv")
    (folder / "report.html").mkdir()
    os.mkfifo(folder / "scrape.csv")
    for name in ("chunks.csv", "report.html", "scrape.csv"):
        assert kind_of(name) is not None
        assert open_file(folder, name) is None
    assert [file["name"] for file in listing(folder)] == ["turns.csv", "metrics_first_0.txt"]


def test_a_folder_that_is_gone_lists_nothing(tmp_path: Path) -> None:
    assert listing(tmp_path / "gone") == []
