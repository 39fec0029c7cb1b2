"""Runs of the real Locust whose prompts are token ids: their lengths, their ids, their time."""

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest
import quicktok

from tests.e2e.client.fake_server import FakeServer, Request, Schedule
from tests.e2e.client.gateway import gateway, prompts
from tests.e2e.locust_process import Bench, RunFolder
from tests.e2e.sim_process import Sim

pytestmark = pytest.mark.slow

ENCODING_S = 0.4  # of each /tokenize of the slow gateway; waits of the scenario are below 0.3 s
TEXT_ID = 1 << 32  # see the simulator's docs: a text id is this + four bytes, big-endian
PAD = 0xFF


@dataclass
class Runs:
    """Two runs that went on side by side: ids of this machine, and of a slow, broken server."""

    local: RunFolder
    local_seen: FakeServer
    remote: RunFolder
    remote_seen: FakeServer


class SlowTokenizer:
    """Holds up each `/tokenize` of the run; one of them fails and one is never answered."""

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def __call__(self, request: Request) -> bool:
        # The run's own encode the history's ids; those before it are short probes and samples.
        if request.path != "/tokenize" or b"<|im_start|>assistant" not in request.body:
            return False
        number = next(self._numbers)
        if number == 6:
            request.wire.answer(500, b'{"error": {"message": "tokenizer pool is gone"}}')
            return True
        if number == 9:
            request.wire.sock.settimeout(60)
            request.wire.sock.recv(1)  # the client gives up first
            request.wire.close()
            return True
        Schedule().wait(ENCODING_S)
        return False


@pytest.fixture(scope="module")
def runs(target: Sim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("token-ids")
    common = ("--headless", "-u", "4", "-r", "4", "-t", "7s", "--set", "wire=token_ids")
    local_seen = gateway(target.port, lambda _: False)
    remote_seen = gateway(target.port, SlowTokenizer())
    with local_seen, remote_seen:
        local = bench_at(folder / "local", local_seen)
        remote = bench_at(folder / "remote", remote_seen)
        try:
            processes = [
                local.owner(*common, "--set", "tokenizer=qwen3"),
                remote.owner(
                    *common, "--set", "deadlines.first_token_s=1",
                    "--exit-code-on-error", "0",
                ),
            ]  # fmt: skip
            for process in processes:
                assert process.wait() == 0, process.output
            yield Runs(local.folder(), local_seen, remote.folder(), remote_seen)
        finally:
            local.close()
            remote.close()


def bench_at(folder: Path, server: FakeServer) -> Bench:
    return Bench(folder, server.url.removesuffix("/v1"))


def test_the_server_counts_what_was_planned(runs: Runs) -> None:
    for folder in (runs.local, runs.remote):
        done = [row for row in folder.rows() if row["status"] == "success"]
        assert len(done) > 8
        assert [row["prompt_tokens"] for row in done] == [r["planned_prompt_tokens"] for r in done]
        assert folder.manifest["counts"]["lost"] == 0
    # The cache holds the prompt before in whole blocks: ids of a growing history stay as they were.
    tools = [r for r in runs.local.rows() if r["turn_class"] == "tool" and r["status"] == "success"]
    for row in tools:
        assert int(row["cached_tokens"]) > int(row["planned_prefix_tokens"]) - 32


def test_ids_are_those_of_the_whole_text(runs: Runs) -> None:
    encoding = quicktok.get_encoding("qwen3")
    sent = prompts(runs.local_seen)
    assert len(sent) > 8
    for ids in sent:
        text = encoding.decode(ids)
        assert text.endswith("<|im_start|>assistant\n")
        assert encoding.encode_with_special(text) == ids


def test_ids_of_the_server_are_those_of_the_whole_text_too(runs: Runs) -> None:
    """The simulator cuts a text into fours from its start: only the last token may be short."""
    sent = prompts(runs.remote_seen)
    assert len(sent) > 8
    for ids in sent:
        data = b"".join((token - TEXT_ID).to_bytes(4, "big") for token in ids)
        assert PAD not in data.rstrip(bytes([PAD]))
        assert data.rstrip(bytes([PAD])).decode().endswith("<|im_start|>assistant\n")


def test_the_manifest_says_whose_ids_they_are(runs: Runs) -> None:
    assert runs.remote.manifest["target"]["tokenizer"] == "server"
    assert runs.local.manifest["target"]["tokenizer"] == "qwen3"
    assert "other ids than the server's" in runs.local.events()["warning"]
    asked = Counter(request.path for request in runs.local_seen.requests)
    assert asked["/tokenize"] < 4  # the comparison before the run, and none for a turn


def test_encoding_is_no_lag_and_no_latency(runs: Runs) -> None:
    rows = [row for row in runs.remote.rows() if row["stage"] != "warm_up"]
    assert median(float(row["lag_s"]) for row in rows) < ENCODING_S / 2
    ttft_s = [float(row["ttft_s"]) for row in rows if row["turn_class"] == "tool" and row["ttft_s"]]
    local_s = [
        float(row["ttft_s"])
        for row in runs.local.rows()
        if row["turn_class"] == "tool" and row["ttft_s"]
    ]
    assert median(ttft_s) < median(local_s) + ENCODING_S / 2
    sessions = itertools.groupby(
        sorted(rows, key=lambda r: (r["session_id"], float(r["call_start_s"]))),
        key=lambda row: row["session_id"],
    )
    waits_s = [
        float(after["intended_start_s"]) - float(before["end_s"])
        for _, turns in sessions
        for before, after in itertools.pairwise(turns)
        if after["status"] == "success"
    ]
    assert len(waits_s) > 4
    assert min(waits_s) > ENCODING_S - 0.01  # what it took stands between the turns


def test_a_tokenizer_that_fails_is_an_error_class(runs: Runs) -> None:
    rows = runs.remote.rows()
    failed = [row for row in rows if row["status"] == "error"]
    assert {row["error_class"] for row in failed} == {"tokenize_error"}
    texts = sorted(row["error_text"].partition(":")[0] for row in failed)
    assert texts == ["http_500", "timeout_first_token"]
    for row in failed:
        assert row["send_start_s"] == row["ttft_s"] == row["prompt_tokens"] == ""
        assert float(row["call_start_s"]) >= float(row["intended_start_s"])
        later = [r for r in rows if float(r["call_start_s"]) > float(row["end_s"])]
        user = row["session_id"].partition("-")[2]
        assert any(int(r["session_id"].partition("-")[2]) % 10**6 == int(user) % 10**6
                   for r in later), "its user went on"  # fmt: skip
    assert runs.remote.events()["first_error"].startswith("tokenize_error: ")
