"""The commands: what they write, what they refuse, and what comes back."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from agentload.scenario import load as load_scenario
from agentload.scenario.pace import at_pace
from agentload.workload.content import Corpus
from agentload.workload.traces import export_command, import_command, mooncake
from agentload.workload.traces.reading import Report, json_objects
from agentload.workload.traces.record import SessionFile, TraceError
from agentload.workload.traces.replay import Replay, load_replay, session_source

DATA = Path(__file__).parent / "data"
SCENARIOS = Path(__file__).parents[4] / "scenarios"
FORMAT_FILES = {
    "weka": "weka.json", "tracelab": "tracelab.jsonl", "tracelab-csv": "tracelab.csv",
    "mooncake": "mooncake.jsonl", "bailian": "bailian.jsonl", "azure": "azure.csv",
    "burstgpt": "burstgpt.csv", "otel": "otel.json", "openai-batch": "batch.jsonl",
    "sharegpt": "sharegpt.json",
}  # fmt: skip


def run(capsys: pytest.CaptureFixture[str], command: Any, *argv: object) -> tuple[int, str, str]:
    code = command.main([str(word) for word in argv])
    out = capsys.readouterr()
    return code, out.out, out.err


@pytest.mark.parametrize("name", sorted(FORMAT_FILES))
def test_a_trace_becomes_a_session_file_that_replays(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, corpus: Corpus, target: Any, name: str
) -> None:
    path = tmp_path / "s.jsonl"
    code, out, err = run(capsys, import_command, name, DATA / FORMAT_FILES[name], path)
    assert (code, err) == (0, "")
    assert "0 bad lines" in out
    scenario = load_scenario(
        SCENARIOS / "smoke.yaml", {"trace": {"file": str(path)}, "window.tokens": 30_000}
    )
    file = SessionFile(path)
    make = session_source(scenario, corpus, 4.0, None, replay=load_replay(scenario))
    for index, root in enumerate(file.roots):
        recorded = list(file.calls(root))
        t = target(make(index))
        t.run(100, report=False)
        assert len(t.turns) == len(recorded)
        assert [turn.turn_class for turn in t.turns] == [c.turn_class for c in recorded]
        assert [turn.output_tokens for turn in t.turns] == [c.output_tokens for c in recorded]
        for turn, call in zip(t.turns, recorded, strict=True):
            assert turn.planned_prompt_tokens == pytest.approx(call.prompt_tokens, rel=0.05, abs=60)
            if call.wait_s is not None and call.call:
                assert turn.wait_s == pytest.approx(min(call.wait_s, 300.0))


def test_replayed_children_run_between_their_parents_turns(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, corpus: Corpus, target: Any
) -> None:
    path = tmp_path / "s.jsonl"
    run(capsys, import_command, "weka", DATA / "weka.json", path)
    scenario = load_scenario(SCENARIOS / "smoke.yaml", {"trace": {"file": str(path)}})
    t = target(session_source(scenario, corpus, 4.0, None, replay=load_replay(scenario))(0))
    t.run(10)
    assert [len(turn.spawns) for turn in t.turns] == [0, 1, 0, 0]
    child = target(t.session.child(t.turns[1].spawns[0]))
    child.run(10)
    assert [turn.output_tokens for turn in child.turns] == [30, 50]
    assert {turn.parent_session_id for turn in child.turns} == {t.session.session_id}


def test_a_second_round_has_the_same_sizes_and_other_text(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, corpus: Corpus, target: Any
) -> None:
    path = tmp_path / "s.jsonl"
    run(capsys, import_command, "weka", DATA / "weka.json", path)
    scenario = load_scenario(SCENARIOS / "smoke.yaml", {"trace": {"file": str(path)}})
    rounds = [
        target(session_source(scenario, corpus, 4.0, None, replay=load_replay(scenario))(index))
        for index in (0, 1)
    ]
    for t in rounds:
        t.run(10, report=False)
    sizes = [[turn.planned_prompt_tokens for turn in t.turns] for t in rounds]
    assert sizes[0] == pytest.approx(sizes[1], abs=8)
    assert rounds[0].prompts[0] != rounds[1].prompts[0]


def only_with_starts(path: Path) -> None:
    """Leave out the one session whose first instant the sample does not have."""
    head, *lines = path.read_text().splitlines(keepends=True)
    calls = [json.loads(line) for line in lines]
    (bare,) = {c["session"] for c in calls if c["call"] == 0 and c["start_s"] is None}
    kept = [line for line, c in zip(lines, calls, strict=True) if c["session"] != bare]
    path.write_text("".join([head, *kept]))


def test_absolute_replay_gives_the_recorded_instants(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, corpus: Corpus, target: Any
) -> None:
    path = tmp_path / "s.jsonl"
    run(capsys, import_command, "mooncake", DATA / "mooncake.jsonl", path)
    only_with_starts(path)
    trace = {"file": str(path), "replay": "absolute"}
    scenario = load_scenario(SCENARIOS / "smoke.yaml", {"trace": trace})
    t = target(session_source(scenario, corpus, 4.0, None, replay=load_replay(scenario))(2))
    t.run(5)
    assert [turn.at_s for turn in t.turns] == [3.0, 9.0]
    assert [(s.index, s.at_s) for s in Replay(path).starts(1.0)] == [(0, 0.0), (1, 1.0), (2, 3.0)]


def test_at_a_pace_recorded_times_are_divided(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, corpus: Corpus, target: Any
) -> None:
    path = tmp_path / "s.jsonl"
    run(capsys, import_command, "mooncake", DATA / "mooncake.jsonl", path)
    only_with_starts(path)
    trace = {"file": str(path), "replay": "absolute"}
    plain = load_scenario(SCENARIOS / "smoke.yaml", {"trace": trace})
    waits = {}
    for pace in (1.0, 4.0):
        scenario = at_pace(plain, pace)
        t = target(session_source(scenario, corpus, 4.0, None, replay=load_replay(scenario))(2))
        t.run(5)
        assert [turn.at_s for turn in t.turns] == [3.0 / pace, 9.0 / pace]
        waits[pace] = [turn.wait_s for turn in t.turns]
    assert waits[1.0][1] > 0
    assert waits[4.0] == pytest.approx([wait / 4 for wait in waits[1.0]])
    assert [start.at_s for start in Replay(path).starts(4.0)] == [0.0, 0.25, 0.75]


def test_absolute_replay_needs_the_start_of_every_session(tmp_path: Path) -> None:
    call = {"call": 0, "turn_class": "cold", "wait_kind": "none", "wait_s": None}
    call |= {"keep_tokens": 0, "append_tokens": 900, "output_tokens": 5}
    rows = [{"session": "late", "start_s": 8.0}, {"session": "early", "start_s": 2.0}]
    rows += [{"session": "unknown", "start_s": None}]
    head = json.dumps({"format": "agentload-sessions", "version": 1, "source": "by hand"})
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join([head, *(json.dumps(row | call) for row in rows)]) + "\n")
    assert [start.index for start in Replay(path).starts(1.0)] == [1, 0]
    overrides = {"trace": {"file": str(path), "replay": "absolute"}}
    with pytest.raises(TraceError, match="1 of 3 sessions have no start_s"):
        load_replay(load_scenario(SCENARIOS / "smoke.yaml", overrides))
    overrides["trace"]["replay"] = "think"
    assert load_replay(load_scenario(SCENARIOS / "smoke.yaml", overrides)) is not None


def test_bad_lines_leave_nothing_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace, path = tmp_path / "t.jsonl", tmp_path / "s.jsonl"
    trace.write_text((DATA / "mooncake.jsonl").read_text() + "{}\nnonsense\n")
    path.write_text("what was there before")
    code, _, err = run(capsys, import_command, "mooncake", trace, path)
    assert code == 1
    assert "line 7: input_length, text_input or messages is needed" in err
    assert "line 8: not JSON" in err
    assert path.read_text() == "what was there before"
    code, out, _ = run(capsys, import_command, "mooncake", trace, path, "--skip-bad")
    assert code == 0
    assert "4 sessions, 6 calls, 2 bad lines" in out
    assert len(path.read_text().splitlines()) == 7
    assert sorted(os.listdir(tmp_path)) == ["s.jsonl", "t.jsonl"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("mooncake", b"", "no call in it"),
        ("azure", b"a,b\n1,2\n", "no column TIMESTAMP"),
        ("weka", b'{"id": "a", "req', "not JSON near"),
        ("weka", b"\xff\xfe", "not JSON near"),
    ],
)
def test_files_that_are_no_trace(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    trace, path = tmp_path / "t", tmp_path / "s.jsonl"
    trace.write_bytes(content)
    code, _, err = run(capsys, import_command, name, trace, path)
    assert code in (1, 2)
    assert said in err
    assert not path.exists()


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, import_command, "weka", tmp_path / "none", tmp_path / "s")
    assert code == 2
    assert "No such file" in err
    code, _, err = run(capsys, import_command, "weka", DATA / "weka.json", tmp_path / "no" / "s")
    assert code == 2
    assert "No such file" in err


def test_gzip_is_read_and_a_cut_one_is_an_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    whole = gzip.compress((DATA / "tracelab.jsonl").read_bytes())
    trace = tmp_path / "t.jsonl.gz"
    trace.write_bytes(whole)
    assert run(capsys, import_command, "tracelab", trace, tmp_path / "s")[0] == 0
    trace.write_bytes(whole[:-20])
    code, _, err = run(capsys, import_command, "tracelab", trace, tmp_path / "s2")
    assert code == 2
    assert "t.jsonl.gz" in err
    assert not (tmp_path / "s2").exists()


def test_a_large_array_is_read_in_parts(tmp_path: Path) -> None:
    path, item = tmp_path / "a.json", {"id": "x", "text": "y" * 4000}
    with path.open("w") as file:
        file.write("[" + ",\n".join(json.dumps(item) for _ in range(5000)) + "]")
    report = Report(print)
    tracemalloc.start()
    count = sum(1 for _ in json_objects(path, report))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 5000
    assert peak < 8e6 < path.stat().st_size


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "line 1 is not a JSON object"),
        (['{"format": "other"}'], "not the header"),
        (['{"format": "agentload-sessions", "version": 9}'], "not the header"),
        ([None], "no sessions in it"),
        ([None, '{"session": "a", "call": 1}'], "turn_class: None is none of"),
        ([None, {"call": 1}], "call 1 of 'a'; the next is 0"),
        ([None, {"extra": 1}], "unknown key 'extra'"),
        ([None, {"output_tokens": 0}], "output_tokens: 0; allowed are 1"),
        ([None, {}, {"session": "b", "parent": "a", "parent_call": 7}], "hangs on call 7 of 'a'"),
    ],
)
def test_a_session_file_with_a_fault(tmp_path: Path, lines: list[Any], said: str) -> None:
    call = {
        "session": "a", "call": 0, "turn_class": "cold", "wait_kind": "none", "keep_tokens": 0,
        "append_tokens": 5, "output_tokens": 1,
    }  # fmt: skip
    header = '{"format": "agentload-sessions", "version": 1, "source": "x"}'
    texts = [
        header if line is None else json.dumps({**call, **line}) if isinstance(line, dict) else line
        for line in lines
    ]
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join(texts))
    with pytest.raises(TraceError, match=r"s\.jsonl") as caught:
        SessionFile(path)
    assert said in str(caught.value)


def test_what_is_exported_to_mooncake_comes_back(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = [SCENARIOS / "steady-append.yaml", "--count", "3", "--turns", "8"]
    for name in ("mooncake", "sessions"):
        code, out, err = run(capsys, export_command, name, source[0], tmp_path / name, *source[1:])
        assert (code, err) == (0, "")
        assert "3 sessions, 24 calls" in out
    run(capsys, import_command, "mooncake", tmp_path / "mooncake", tmp_path / "back")
    there, back = SessionFile(tmp_path / "sessions"), SessionFile(tmp_path / "back")
    assert there.roots == back.roots
    for name in there.roots:
        for a, b in zip(there.calls(name), back.calls(name), strict=True):
            assert (a.prompt_tokens, a.output_tokens) == (b.prompt_tokens, b.output_tokens)
            assert a.call == 0 or b.wait_s == pytest.approx(a.wait_s, abs=1e-5)


def test_mooncake_says_what_it_cannot_carry(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(capsys, import_command, "weka", DATA / "weka.json", tmp_path / "s.jsonl")
    code, out, _ = run(capsys, export_command, "mooncake", tmp_path / "s.jsonl", tmp_path / "m")
    assert code == 0
    assert "drops part of the one before (written as an append) (1x)" in out
    assert "waited for by, its parent (2x)" in out


def test_conversations_for_vllm_alternate_and_begin_with_the_user(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "v.json"
    code, out, _ = run(
        capsys, export_command, "vllm-multi-turn", SCENARIOS / "smoke.yaml", path,
        "--count", "3", "--turns", "4", "--set", "seed=9",
    )  # fmt: skip
    assert code == 0
    assert "waits and lengths" in out
    conversations = json.loads(path.read_text())
    assert [c["id"] for c in conversations] == [f"s9-00000{i}" for i in range(3)]
    for conversation in conversations:
        roles = [m["role"] for m in conversation["messages"]]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(m["content"] for m in conversation["messages"])


def test_export_refuses_what_it_cannot_do(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run(capsys, import_command, "weka", DATA / "weka.json", tmp_path / "s.jsonl")
    code, _, err = run(
        capsys, export_command, "vllm-multi-turn", tmp_path / "s.jsonl", tmp_path / "v"
    )
    assert (code, "--scenario is needed" in err) == (2, True)
    code, _, err = run(
        capsys, export_command, "mooncake", SCENARIOS / "smoke.yaml", tmp_path / "v", "--count", "0"
    )
    assert (code, "1 or more" in err) == (2, True)
    assert not (tmp_path / "v").exists()


RUN_ROWS = """\
session_id,parent_session_id,turn_index,turn_class,status,send_start_s,end_s,prompt_tokens,planned_prompt_tokens,planned_prefix_tokens,output_tokens
s1,,0,cold,success,0.5,2.5,1000,1010,600,40
s1,,1,user,success,5.5,6.5,1100,1099,1000,30
s1.1.0,s1,0,child,success,6.6,7.0,300,300,100,10
s1,,2,tool,error,8.0,8.1,,1200,1100,
s1,,3,tool,aborted,9.0,9.5,1250,1250,1100,
"""


def test_a_run_folder_is_a_trace_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "turns.csv").write_text(RUN_ROWS)
    code, out, err = run(capsys, import_command, "run", tmp_path / "run", tmp_path / "s.jsonl")
    assert (code, err) == (0, "")
    assert "turns that failed (1x)" in out
    file = SessionFile(tmp_path / "s.jsonl")
    calls = list(file.calls("s1"))
    assert [(c.keep_tokens, c.prompt_tokens, c.output_tokens) for c in calls] == [
        (0, 1000, 40), (1000, 1100, 30), (1100, 1250, 1),
    ]  # fmt: skip
    assert [c.wait_s for c in calls] == [None, 3.0, 2.5]
    assert file.children("s1", 1) == ["s1.1.0"]
    code, _, _ = run(capsys, export_command, "mooncake", tmp_path / "run", tmp_path / "m")
    assert code == 0


AIPERF_SCRIPT = """
import json, sys
from unittest.mock import MagicMock
from aiperf.dataset.loader.mooncake_trace import MooncakeTraceDatasetLoader
no_text = MagicMock()
no_text.tokenizer.resolved_name = "none"
loader = MooncakeTraceDatasetLoader(filename=sys.argv[1], prompt_generator=no_text)
print(json.dumps({
    session: [len(turns), sum(t.input_length for t in turns), sum(t.output_length for t in turns),
              round(sum(t.delay or 0.0 for t in turns))]
    for session, turns in loader.load_dataset().items()
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("AIPERF_PYTHON"),
    reason="AIPERF_PYTHON has to be a Python with aiperf, which needs an environment of its own",
)
def test_aiperf_reads_the_same_sessions_and_tokens(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "m.jsonl"
    scenario = SCENARIOS / "pause-evict.yaml"
    run(capsys, export_command, "mooncake", scenario, path, "--count", "4", "--turns", "9")
    read = json.loads(
        subprocess.run(
            [os.environ["AIPERF_PYTHON"], "-c", AIPERF_SCRIPT, str(path)],
            check=True, capture_output=True, text=True,
        ).stdout
    )  # fmt: skip
    report = Report(print)
    ours: dict[str, list[float]] = {}
    for call in mooncake.read(path, report):
        sums = ours.setdefault(call.session, [0, 0, 0, 0.0])
        before = 0 if call.call == 0 else call.keep_tokens
        sums[0] += 1
        sums[1] += call.prompt_tokens - before
        sums[2] += call.output_tokens
        sums[3] += 1000 * (call.wait_s or 0.0)
    assert len(read) == 4
    for session, sums in ours.items():
        assert read[session] == pytest.approx(sums, abs=1)


def test_import_is_one_process_without_the_load_side() -> None:
    script = (
        "import sys; import agentload.workload.traces.import_command,"
        " agentload.workload.traces.export_command;"
        "print([m for m in ('locust', 'gevent', 'openai') if m in sys.modules])"
    )
    out = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    ).stdout
    assert out.strip() == "[]"
