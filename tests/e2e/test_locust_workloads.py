"""Loads of other shapes through the real Locust: retries, arrivals, interference, subagents."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.e2e.locust_process import SCENARIO, Bench, RunFolder
from tests.e2e.sim_process import Sim

pytestmark = pytest.mark.slow


def scenario(tmp_path: Path, *replaced: tuple[str, str], more: str = "") -> str:
    """The small scenario with some of its text replaced, and sections added."""
    text = SCENARIO.read_text(encoding="utf-8")
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "scenario.yaml"
    path.write_text(text + more, encoding="utf-8")
    return str(path)


STAGES = SCENARIO.read_text(encoding="utf-8").partition("stages:\n")[2]
NO_WARM_UP = ("turns_per_session: 1, output_tokens: 1", "turns_per_session: 0")


def run(bench: Bench, *args: str, code: int = 0) -> RunFolder:
    locust = bench.owner("--headless", *args)
    assert locust.wait() == code, locust.output
    return bench.folder()


def test_a_429_is_waited_out_as_told_and_every_attempt_is_a_record(
    bench: Bench, tmp_path: Path
) -> None:
    """Public case B04: the wait is think time, not latency."""
    path = scenario(tmp_path, NO_WARM_UP)
    csv_prefix = ("--csv", str(tmp_path / "locust"))
    with Sim("--fault", "status:code=429,retry_after=1,skip=1,times=2") as limited:
        host = f"http://127.0.0.1:{limited.port}"
        one = ("-u", "1", "-r", "1", "-t", "5s", "--exit-code-on-error", "0")
        folder = run(bench, "--scenario", path, "--host", host, *one, *csv_prefix)
    rows = folder.rows()
    first, second, third = rows[1:4]
    assert [row["attempt"] for row in rows[:4]] == ["1", "1", "2", "3"]
    assert [row["error_class"] for row in rows[1:4]] == ["rate_limited", "rate_limited", ""]
    assert [row["http_status"] for row in rows[1:4]] == ["429", "429", "200"]
    assert first["turn_index"] == second["turn_index"] == third["turn_index"]
    assert len({row["request_id"] for row in rows}) == len(rows)
    for before, after in ((first, second), (second, third)):
        assert float(after["call_start_s"]) - float(before["end_s"]) >= 0.999
        assert float(after["lag_s"]) < 0.5
        assert before["ttft_s"] == ""
    assert folder.events()["first_error"].startswith("rate_limited:")
    with (tmp_path / "locust_failures.csv").open(encoding="utf-8", newline="") as file:
        failures = list(csv.DictReader(file))
    assert [(row["Name"], row["Occurrences"]) for row in failures] == [("tool", "2")]


def test_failures_are_grouped_by_class_and_names_are_few(bench: Bench, tmp_path: Path) -> None:
    """Public case C09: ids in error texts must not make each failure its own kind."""
    path = scenario(tmp_path, NO_WARM_UP)
    csv_prefix = ("--csv", str(tmp_path / "locust"))
    with Sim("--fault", "error:after=2,every=2", "--fault", "status:code=500,every=5") as broken:
        host = f"http://127.0.0.1:{broken.port}"
        some = ("-u", "4", "-r", "4", "-t", "5s")
        folder = run(bench, "--scenario", path, "--host", host, *some, *csv_prefix, code=1)
    errors = [row["error_class"] for row in folder.rows() if row["status"] == "error"]
    assert set(errors) == {"stream_error_event", "http_500"}
    assert len(errors) > 4
    with (tmp_path / "locust_failures.csv").open(encoding="utf-8", newline="") as file:
        failures = list(csv.DictReader(file))
    assert len(failures) <= 4  # two classes, turns cold or tool
    counted = sum(int(row["Occurrences"]) for row in failures)
    assert len(errors) - 4 <= counted <= len(errors)  # Locust's last CSV may be a second old
    assert folder.manifest["counts"]["lost"] == 0


def test_open_arrivals_come_when_due_and_prompts_interfere_in_bursts(
    bench: Bench, tmp_path: Path
) -> None:
    path = scenario(
        tmp_path,
        (STAGES, "  - { name: a, duration_s: 6, users: 2, sessions_per_s: 1.5 }\n"),
        more="arrivals: { population: open }\n"
        "interference:\n"
        "  every_s: 2\n"
        "  burst: 2\n"
        "  prompt_tokens: { dist: constant, value: 60000 }\n"
        "  output_tokens: { dist: constant, value: 4 }\n",
    )
    folder = run(bench, "--scenario", path)
    rows, manifest = folder.rows(), folder.manifest
    from_s = manifest["measured_from_s"]
    single = [row for row in rows if row["session_id"].startswith("x")]
    assert [row["session_id"] for row in sorted(single, key=lambda row: row["session_id"])] == [
        f"x7-{number:06d}" for number in range(4)
    ]
    for row in single:
        due_s = 2.0 * (1 + int(row["session_id"][-6:]) // 2)
        assert float(row["intended_start_s"]) - from_s == pytest.approx(due_s, abs=1e-3)
        assert row["output_tokens"] == "4"
    sessions = [row for row in rows if row not in single]
    first_turns = [row for row in sessions if row["turn_index"] == "0"]
    assert len(first_turns) == len({row["session_id"] for row in sessions}) > 1
    assert all(float(row["intended_start_s"]) >= from_s for row in first_turns)
    assert max(int(row["turns_in_flight"]) for row in sessions) <= 1 + 2  # one user, one burst


def test_children_run_beside_each_other_and_the_parent_waits(bench: Bench, tmp_path: Path) -> None:
    constant = "{{ dist: constant, value: {} }}".format
    path = scenario(
        tmp_path,
        NO_WARM_UP,
        (STAGES, "  - { name: a, duration_s: 20, users: 1 }\n"),
        ("max: 40 }", f"max: 40 }}\n  calls_per_user_turn: {constant(1)}"),
        more="stop: { after_turns: 12 }\n"
        "subagents:\n"
        "  probability: 1.0\n"
        f"  fanout: {constant(2)}\n"
        "  prefix_tokens: 6000\n"
        f"  start_tokens: {constant(10000)}\n"
        f"  calls: {constant(2)}\n"
        f"  report_chars: {constant(300)}\n",
    )
    folder = run(bench, "--scenario", path)
    rows = folder.rows()
    assert folder.events()["stop_rule"].endswith("turns are done")
    assert folder.manifest["state"] == "complete"
    family = first_family(rows)
    children = [row for row in family if row["turn_class"] == "child"]
    (joined,) = [row for row in family if row["turn_class"] != "child"]
    assert len({row["session_id"] for row in children}) == 2
    assert len(children) == 4
    assert float(joined["call_start_s"]) >= max(float(row["end_s"]) for row in children)
    starts = sorted(float(row["call_start_s"]) for row in children)
    assert starts[1] < min(float(row["end_s"]) for row in children)  # side by side


def first_family(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The children that one turn spawned first, and the parent's turn that followed it."""
    child = next(row for row in rows if row["turn_class"] == "child")
    parent, spawned_by, _ = child["session_id"].rsplit(".", 2)
    assert child["parent_session_id"] == parent
    following = str(int(spawned_by) + 1)
    return [
        row
        for row in rows
        if row["session_id"].startswith(f"{parent}.{spawned_by}.")
        or (row["session_id"] == parent and row["turn_index"] == following)
    ]


def test_tokens_are_calibrated_for_each_kind_of_text(bench: Bench) -> None:
    """The simulator has four bytes a token whatever the text: a ratio for the mix of a context
    would plan the prefix a quarter too short."""
    one_by_one = ("-u", "3", "-r", "0.5", "-t", "8s", "--context-scale", "0.2")
    folder = run(bench, *one_by_one, "--set", "warm_up.turns_per_session=0")
    manifest = folder.manifest
    by_kind = manifest["chars_per_token_by_kind"]
    assert set(by_kind) == {"json", "prose", "view", "log"}
    assert list(by_kind.values()) == pytest.approx([4.0] * 4, rel=0.01)
    assert manifest["chars_per_token"] == pytest.approx(4.0, rel=0.01)
    first = [row for row in folder.rows() if row["turn_index"] == "0"]
    assert len(first) == 3
    for row in first:
        planned = int(row["planned_prompt_tokens"])
        assert int(row["prompt_tokens"]) == pytest.approx(planned, rel=0.02)
    shared = 15_000 * 0.2  # the prefix, in whole blocks of 16
    for row in first[1:]:
        assert int(row["cached_tokens"]) == pytest.approx(shared, rel=0.02)
        assert int(row["planned_prefix_tokens"]) == pytest.approx(shared, rel=0.02)


def test_text_cut_inside_words_goes_out_without_role_marks(bench: Bench) -> None:
    """Marks of eight tokens a message would make prompts of a dozen messages longer than planned,
    and would end the word that a message cuts."""
    cut = ("--set", "wire=completions", "--set", "content.cut=inside_word")
    folder = run(bench, "-u", "2", "-r", "2", "-t", "4s", *cut)
    rows = folder.rows()
    assert len(rows) > 8
    for row in rows:
        planned = int(row["planned_prompt_tokens"])
        assert int(row["prompt_tokens"]) == pytest.approx(planned, rel=0.005, abs=2)
