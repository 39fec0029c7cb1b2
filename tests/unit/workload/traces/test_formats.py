"""Each public format, from a sample made in it; expected values are worked out by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from agentload.workload.traces.import_command import READERS
from agentload.workload.traces.reading import Report
from agentload.workload.traces.record import TraceCall

DATA = Path(__file__).parent / "data"


def load(name: str, file: str | Path) -> tuple[list[TraceCall], Report, list[str]]:
    bad: list[str] = []
    report = Report(bad.append)
    calls = list(READERS[name][0](DATA / file, report))
    assert report.calls == len(calls)
    assert report.sessions == len({call.session for call in calls})
    assert report.bad == len(bad)
    return calls, report, bad


def rows(calls: list[TraceCall], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(getattr(call, name) for name in names) for call in calls]


SIZES = ("session", "call", "keep_tokens", "append_tokens", "output_tokens")


def test_weka() -> None:
    calls, report, bad = load("weka", "weka.json")
    child = "trace-1/agent_001"
    assert bad == []
    assert rows(calls, *SIZES) == [
        ("trace-1", 0, 0, 330, 40),
        ("trace-1", 1, 330, 130, 25),  # 5 blocks of 64 are seen: all of 330 but the partial block
        (child, 0, 0, 200, 30),
        (child, 1, 200, 100, 50),
        ("trace-1", 2, 460, 140, 10),
        ("trace-1", 3, 128, 82, 60),  # 2 blocks stay
    ]
    assert rows(calls, "turn_class", "wait_kind", "start_s") == [
        ("cold", "none", 0.0),
        ("tool", "tool", 4.5),
        ("child", "none", 6.7),
        ("child", "tool", 8.7),
        ("tool", "tool", 16.0),
        ("rebuild", "human", 100.0),
    ]
    waits = [call.wait_s for call in calls if call.call]
    assert waits == pytest.approx([0.5, 1.0, 9.5, 83.0])
    assert {(call.parent, call.parent_call) for call in calls if call.session == child} == {
        ("trace-1", 1)
    }
    assert any("tools and system" in what for what in report.lost)


def test_tracelab() -> None:
    calls, report, bad = load("tracelab", "tracelab.jsonl")
    assert bad == []
    assert rows(calls, *SIZES) == [
        ("claude:a", 0, 0, 15_300, 120),
        ("codex:b", 0, 0, 9000, 50),
        ("claude:a", 1, 15_400, 500, 80),
        ("codex:b", 1, 512, 8888, 70),
    ]
    assert rows(calls, "turn_class", "wait_kind") == [
        ("cold", "none"), ("cold", "none"), ("tool", "tool"), ("rebuild", "human"),
    ]  # fmt: skip
    # the later of two tool results, after the last event of the answer
    assert calls[2].wait_s == pytest.approx(1.0)
    assert calls[3].wait_s == pytest.approx(1200.0)
    assert calls[1].start_s == pytest.approx(2.0)
    assert report.lost["a prefix evicted at the provider is replayed as a changed prompt"] == 1


def test_tracelab_replay_csv() -> None:
    calls, _, bad = load("tracelab-csv", "tracelab.csv")
    assert bad == []
    assert rows(calls, *SIZES, "wait_s", "start_s") == [
        ("a", 0, 0, 12_000, 100, None, 0.0),
        ("b", 0, 0, 5000, 60, None, 1.5),
        ("a", 1, 12_000, 450, 80, 0.3, 9.0),
        ("a", 2, 12_450, 90, 10, 2.5005, 15.0),
    ]


def test_mooncake() -> None:
    calls, report, bad = load("mooncake", "mooncake.jsonl")
    assert bad == []
    assert rows(calls, *SIZES, "wait_s") == [
        ("request-0", 0, 0, 1200, 50, None),
        ("s", 0, 0, 1100, 30, None),
        ("s", 1, 1130, 200, 40, 2.5),  # input_length is what is new
        ("whole", 0, 0, 1024, 20, None),
        ("whole", 1, 1024, 476, 20, 6.0),  # the hashes begin as before: input_length is all
        ("request-5", 0, 0, 12, 12, None),
    ]
    assert report.lost["what a request without session_id shares with others"] == 2


def test_bailian() -> None:
    calls, report, bad = load("bailian", "bailian.jsonl")
    assert bad == []
    assert rows(calls, *SIZES) == [
        ("159", 0, 0, 50, 20),
        ("200", 0, 0, 40, 5),
        ("159", 1, 50, 70, 33),
    ]
    assert [call.wait_s for call in calls] == [None, None, pytest.approx(10.0)]
    assert sum("parent is not in the file" in what for what in report.lost) == 1


def test_azure_and_burstgpt() -> None:
    calls, _, _ = load("azure", "azure.csv")
    assert rows(calls, *SIZES) == [("request-0", 0, 0, 4808, 10), ("request-1", 0, 0, 3180, 8)]
    assert calls[1].start_s == pytest.approx(0.052, abs=1e-6)
    calls, report, _ = load("burstgpt", "burstgpt.csv")
    assert rows(calls, *SIZES, "start_s") == [
        ("request-0", 0, 0, 472, 18, 0.0),
        ("request-1", 0, 0, 1087, 1, 40.5),
    ]
    assert "an answer of no tokens is replayed as one of one token" in report.lost


def test_opentelemetry() -> None:
    calls, report, bad = load("otel", "otel.json")
    assert bad == []
    assert rows(calls, *SIZES, "wait_kind") == [
        ("c1", 0, 0, 1000, 40, "none"),
        ("c1", 1, 1024, 76, 30, "tool"),
        ("0xabc", 0, 0, 300, 20, "none"),
    ]
    assert calls[1].wait_s == pytest.approx(1.25, abs=1e-6)
    assert calls[2].start_s == pytest.approx(10.0)
    assert not any("assumed" in what for what in report.lost)


def test_openai_batch() -> None:
    calls, report, bad = load("openai-batch", "batch.jsonl")
    assert bad == []
    assert rows(calls, "session", "output_tokens") == [("one", 77), ("two", 214)]
    assert calls[1].append_tokens == pytest.approx(18 / 4, abs=1.5)
    assert any("length of an answer" in what for what in report.lost)


def test_conversations() -> None:
    calls, _, bad = load("sharegpt", "sharegpt.json")
    assert bad == []
    assert rows(calls, *SIZES, "wait_s", "wait_kind") == [
        ("x_0", 0, 0, 5, 4, None, "none"),
        ("x_0", 1, 9, 3, 1, None, "human"),
        ("y_0", 0, 0, 2, 6, None, "none"),
    ]


BAD = {
    "weka": ('{"id": "a", "block_size": 0, "requests": []}\n{"id": "b", "block_size": 64,'
             ' "requests": [{"t": 0, "type": "x"}, {"t": 1, "type": "n", "in": 0, "out": 1},'
             ' {"type": "subagent"}]}', 4),
    "tracelab": ('{"session_id": "a"}\nnot json\n[1]\n{"session_id": "a", "prefix_tokens": 1,'
                 ' "newly_append_tokens": -5, "output_tokens": 1}', 4),
    "tracelab-csv": ("session_id,arrival_time,prefix_len,input_len,output_len,tool_wait_after_ms\n"
                     "a,0,0,x,1,1\na,0,0\n", 2),
    "mooncake": ('{"output_length": 5}\n{"input_length": 1.5, "output_length": 1}\n'
                 '{"input_length": true, "output_length": 1}\n'
                 '{"input_length": 5, "hash_ids": ["a"]}', 4),
    "bailian": ('{"chat_id": 1, "parent_chat_id": -1, "timestamp": 1, "input_length": 5,'
                ' "output_length": 1}\n{"chat_id": 1, "parent_chat_id": -1, "timestamp": 2,'
                ' "input_length": 5, "output_length": 1}\n{"chat_id": 2, "parent_chat_id": 1,'
                ' "timestamp": 0.5, "input_length": 5, "output_length": 1}', 2),
    "azure": ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n2023-99-16 1:1:1,1,1\n", 2),
    "burstgpt": ("Timestamp,Request tokens,Response tokens\nnan,1,1\n1,,1\n", 2),
    "otel": ('{"traceId": "t", "attributes": {"gen_ai.operation.name": "chat"}}\n'
             '{"traceId": "t", "attributes": [3]}', 2),
    "openai-batch": ('{"custom_id": "a"}\n{"custom_id": "b", "body": {}}\n'
                     '{"body": {"prompt": 1}}', 3),
    "sharegpt": ('[{"id": "a", "messages": [{"role": "robot", "content": "x"}]},'
                 ' {"id": "b", "messages": []}, 5]', 3),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(BAD))
def test_every_bad_line_is_reported_with_its_place(tmp_path: Path, name: str) -> None:
    content, count = BAD[name]
    path = tmp_path / "trace"
    path.write_text(content)
    _, report, bad = load(name, path)
    assert report.bad == count, bad
    assert all(problem.startswith(("line ", "item ")) for problem in bad)


def test_there_is_a_bad_sample_of_every_format() -> None:
    assert set(BAD) == set(READERS) - {"run"}
