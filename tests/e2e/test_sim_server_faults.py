"""Faults on purpose, and overload, as a client meets them."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.sim_process import MODEL, Sim, Stream, engine_sample, reads

pytestmark = pytest.mark.slow

SHORT = {"max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    log = tmp_path_factory.mktemp("sim") / "requests.jsonl"
    with Sim("--enable-prompt-tokens-details", log=log) as sim:
        yield sim


@pytest.fixture
def sim(server: Sim) -> Iterator[Sim]:
    yield server
    faults(server)


def faults(sim: Sim, *specs: str) -> None:
    answer = sim.post("/sim/faults", {"faults": list(specs)})
    assert answer.json() == {"faults": list(specs)}


def gaps_s(stream: Stream) -> list[float]:
    """Between reads that hold chunks with text."""
    stamps = [at_ns for at_ns, data in stream.reads if b'"delta":{"content"' in data]
    return [(b - a) / 1e9 for a, b in itertools.pairwise(stamps)]


def text_length(stream: Stream) -> int:
    deltas = [one["delta"] for event in stream.events for one in event["choices"]]
    return sum(len(delta.get("content", "")) for delta in deltas)


def read_to_the_end(connection: socket.socket) -> bytes:
    """What still comes until the server closes or resets the connection."""
    found = b""
    try:
        for _, data in reads(connection):
            found += data
    except ConnectionResetError:
        pass
    return found


def test_a_stall_is_a_gap_after_the_given_chunk(sim: Sim) -> None:
    faults(sim, "stall:after=3,seconds=0.4")
    stream = sim.chat(**SHORT)
    assert stream.data[-1] == "[DONE]"
    stalls = [gap for gap in gaps_s(stream) if gap >= 0.35]
    assert len(stalls) == 1
    assert sum(b'"delta":{"content"' in data for _, data in stream.reads[:4]) <= 4


def test_a_cut_stream_has_no_end(sim: Sim) -> None:
    faults(sim, "cut:after=4")
    stream = sim.chat(**SHORT)
    assert "[DONE]" not in stream.data
    assert not stream.raw.endswith(b"0\r\n\r\n")
    assert len(stream.events) == 5  # the role and four tokens
    line = sim.log_line(stream.events[0]["id"])
    assert (line["outcome"], line["faults"]) == ("cut", ["cut:after=4"])


def test_an_error_inside_a_200(sim: Sim) -> None:
    faults(sim, "error:after=2,code=500")
    stream = sim.chat(**SHORT)
    assert stream.status == 200
    *_, error = stream.events
    assert error["error"]["code"] == 500
    assert stream.data[-1] == "[DONE]"
    assert stream.http_chunks[-1] == b""


@pytest.mark.parametrize(("code", "retry_after"), [(429, "7"), (503, None), (500, None)])
def test_a_refusal_by_status(sim: Sim, code: int, retry_after: str | None) -> None:
    more = f",retry_after={retry_after}" if retry_after else ""
    faults(sim, f"status:code={code}{more},times=1")
    body = {"model": MODEL, "messages": [], **SHORT}
    refused = sim.post("/v1/chat/completions", body)
    assert (refused.status, refused.header("retry-after")) == (code, retry_after)
    assert refused.json()["error"]["code"] == code
    assert sim.post("/v1/chat/completions", body).status == 200


def test_headers_that_come_late(sim: Sim) -> None:
    faults(sim, "slow-headers:seconds=0.4")
    sent_ns = time.perf_counter_ns()
    stream = sim.chat(**SHORT)
    assert stream.reads[0][0] - sent_ns >= 0.4e9
    assert stream.data[-1] == "[DONE]"


def test_a_proxy_that_buffers(sim: Sim) -> None:
    faults(sim, "buffer")
    stream = sim.chat(max_tokens=40, ignore_eos=True)
    line = sim.log_line(stream.events[0]["id"])
    assert text_length(stream) == 4 * 40
    assert stream.reads[0][0] >= line["last_token_ns"]  # not even the headers came before


def test_a_refusal_is_not_held_back_with_the_stream(sim: Sim) -> None:
    faults(sim, "buffer")
    assert sim.post("/v1/chat/completions", {"model": "other", "messages": []}).status == 404
    faults(sim, "buffer", "error:after=2")
    stream = sim.chat(**SHORT)
    assert stream.events[-1]["error"]["code"] == 500


def test_a_slow_tokenizer_delays_the_queue_not_the_engine(sim: Sim) -> None:
    content = "slow down " * 400  # 4,000 bytes, 1,000 tokens
    plain = sim.log_line(sim.chat(content, **SHORT).events[0]["id"])
    faults(sim, "slow-tokenizer:factor=200")
    slow = sim.log_line(sim.chat(content + "!", **SHORT).events[0]["id"])
    # 2 microseconds a token on top of 3 ms a request: 1,006 tokens.
    assert plain["queued_s"] - plain["arrival_s"] == pytest.approx(0.003 + 1005 * 2e-6, abs=1e-4)
    assert slow["queued_s"] - slow["arrival_s"] == pytest.approx(
        0.003 + 200 * 1006 * 2e-6, abs=1e-3
    )


def test_a_timestamp_in_front_breaks_the_cache(sim: Sim) -> None:
    content = "the same words each time " * 40
    asked = {**SHORT, "stream_options": {"include_usage": True}}

    def cached() -> int:
        usage = sim.chat(content, **asked).events[-1]["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() > 200
    faults(sim, "timestamp")
    assert cached() == 0
    assert cached() == 0


def test_faults_hit_only_the_requests_asked_for(sim: Sim) -> None:
    faults(sim, "status:code=500,skip=1,every=3,times=2")
    body = {"model": MODEL, "messages": [], "max_tokens": 1}
    statuses = [sim.post("/v1/chat/completions", body).status for _ in range(9)]
    assert statuses == [200, 500, 200, 200, 500, 200, 200, 200, 200]


def test_a_wrong_fault_is_refused_with_what_is_allowed(sim: Sim) -> None:
    answer = sim.post("/sim/faults", {"faults": ["stall:after=3", "flood"]})
    assert answer.status == 400
    assert "stall, cut, error" in answer.json()["error"]["message"]


def test_a_restart_cuts_streams_and_resets_counters(tmp_path: Path) -> None:
    with Sim(log=tmp_path / "log.jsonl") as sim:
        sim.chat(**SHORT)
        assert sim.metrics()[engine_sample("generation_tokens_total")] == 8
        before = sim.metrics()["process_start_time_seconds"]
        body = {
            "model": MODEL,
            "prompt": "a",
            "max_tokens": 5000,
            "stream": True,
            "ignore_eos": True,
        }
        with sim.open("/v1/completions", body) as connection:
            connection.recv(1 << 16)
            assert sim.post("/sim/restart", {}).json() == {"restarting": True}
            rest = read_to_the_end(connection)
            assert b"[DONE]" not in rest
        assert sim.process.stdout is not None
        again = json.loads(sim.process.stdout.readline())
        assert again == sim.ready
        after = sim.metrics()
        assert after[engine_sample("generation_tokens_total")] == 0
        assert after["process_start_time_seconds"] > before


LONG = {"model": MODEL, "prompt": [1], "max_tokens": 3000, "ignore_eos": True, "stream": True}


def hold(sim: Sim, stack: ExitStack) -> socket.socket:
    """A long stream; its headers have come, so the server has taken it in."""
    connection = stack.enter_context(sim.open("/v1/completions", LONG))
    assert connection.recv(len(b"HTTP/1.1 200 OK")) == b"HTTP/1.1 200 OK"
    return connection


def test_a_full_queue_refuses_with_503() -> None:
    flags = ["--max-num-seqs", "1", "--max-num-queued-reqs", "2", "--enable-server-load-tracking"]
    with Sim(*flags, "--tokenizer-base-ms", "0") as sim, ExitStack() as stack:
        running = hold(sim, stack)
        while b"data:" not in running.recv(1 << 16):
            pass
        hold(sim, stack)
        hold(sim, stack)
        assert sim.get("/load").json() == {"server_load": 3}
        refused = sim.post("/v1/completions", LONG)
        assert (refused.status, refused.json()["error"]["type"]) == (503, "Service Unavailable")
        name = 'vllm:admission_rejections_total{model_name="tiny",reason="max_num_queued_reqs"}'
        assert sim.metrics()[name] == 1


def test_a_queue_that_fills_while_the_tokenizer_works_refuses_inside_the_stream() -> None:
    flags = ["--max-num-seqs", "1", "--max-num-queued-reqs", "1", "--tokenizer-base-ms", "100"]
    with Sim(*flags) as sim, ExitStack() as stack:
        hold(sim, stack)  # runs, once it is tokenized
        hold(sim, stack)  # waits
        third = Stream([(0, b"HTTP/1.1 200 OK"), *reads(hold(sim, stack))])
        assert third.status == 200
        [error] = third.events
        assert error["error"]["code"] == 503
        assert third.data[-1] == "[DONE]"


def test_a_client_that_leaves_frees_its_blocks(sim: Sim) -> None:
    body = {"model": MODEL, "prompt": "a" * 4000, "max_tokens": 3000, "ignore_eos": True}
    with sim.open("/v1/completions", {**body, "stream": True}) as connection:
        head = b""
        while b"data:" not in head:
            head += connection.recv(1 << 16)
        assert sim.metrics()[engine_sample("kv_cache_usage_perc")] > 0
        request_id = json.loads(head.partition(b"data: ")[2].partition(b"\n")[0])["id"]
    line = sim.log_line(request_id)
    assert line["outcome"] == "aborted"
    assert 0 < line["output_tokens"] < 3000
    until_s = time.monotonic() + 5
    while sim.metrics()[engine_sample("kv_cache_usage_perc")] > 0:
        assert time.monotonic() < until_s


def test_comments_while_silent() -> None:
    with Sim("--sse-keep-alive-interval", "0.05", "--tokenizer-base-ms", "300") as sim:
        stream = sim.chat(**SHORT)
        assert 2 <= stream.http_chunks.count(b": keep-alive\n\n") <= 6
        assert text_length(stream) == 4 * 8


def test_tokens_can_come_several_to_a_chunk() -> None:
    with Sim("--stream-interval", "3", "--speed", "0.2") as sim:
        stream = sim.chat(max_tokens=8, ignore_eos=True, return_token_ids=True)
        counts = [len(e["choices"][0].get("token_ids") or []) for e in stream.events]
        assert counts == [0, 1, 3, 3, 1]


@pytest.mark.parametrize("number", ["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_at_once_with_streams_under_way(number: str) -> None:
    with Sim() as sim:
        body = {
            "model": MODEL,
            "prompt": "a",
            "max_tokens": 5000,
            "ignore_eos": True,
            "stream": True,
        }
        with sim.open("/v1/completions", body) as connection:
            connection.recv(1 << 16)
            start_s = time.monotonic()
            sim.process.send_signal(getattr(signal, number))
            _, errors = sim.process.communicate(timeout=5)
            assert time.monotonic() - start_s < 2
            assert sim.process.returncode == 0
            assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (
            ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"],
            ["max_num_batched_tokens (8192)", "max_model_len (32768)", "increase", "decrease"],
        ),
        (["--max-model-len", "9000000"], ["decreasing `max_model_len`"]),
        (["--gpu-profile", "TPU"], ["TPU", "H100-80G"]),
        (["--speed", "0", "--port", "70000"], ["--speed 0.0", "--port 70000"]),
        (["--max-num-seq", "4"], ["unrecognized", "--max-num-seq"]),
        (["--fault", "stall:sec=1"], ["no setting 'sec'", "seconds"]),
    ],
)
def test_start_up_refuses_with_one_clear_error(flags: list[str], words: list[str]) -> None:
    command = [*Sim(*flags).command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert done.stdout == ""
    for word in words:
        assert word in line


def test_a_port_in_use_is_one_clear_error(sim: Sim) -> None:
    command = [sys.executable, "-m", "agentload.sim.server", "--port", str(sim.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{sim.port}" in done.stderr
