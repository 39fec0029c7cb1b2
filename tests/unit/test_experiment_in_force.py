"""What a server tells of itself is held against what its arm asked for."""

from pathlib import Path

import pytest

from agentload.client.chunking import Chunking
from agentload.experiment.in_force import (
    Reading,
    not_in_force,
    probe_contradicts,
    probe_tokens,
    same,
    settings_of,
    taken_on_trust,
    unlike,
)
from agentload.experiment.readback import readings


@pytest.mark.parametrize(
    ("wished", "found", "is_same"),
    [
        (True, "True", True),
        (True, "False", False),
        (False, "false", True),
        (True, "1", None),
        (8192, "8192", True),
        (8192, "8192.0", True),
        (8192, "2048", False),
        ("32k", "32000", True),
        ("32K", "32768", True),
        ("1.5k", "1500", True),
        (0.9, "0.9", True),
        ("auto", "8192", None),
        (-1, "131072", None),
        ("fp8", "fp8", True),
        ("fp8", "bfloat16", False),
        ("sha256", "7", None),
    ],
)
def test_a_wish_and_what_was_found_mean_the_same_or_not(
    wished: bool | int | float | str, found: str, is_same: bool | None
) -> None:
    assert same(wished, found) is is_same


WISHED = {"enable-prefix-caching": True, "max-num-batched-tokens": 2048, "max-model-len": 8192}


def test_every_source_that_says_otherwise_is_named() -> None:
    told = [
        Reading("enable_prefix_caching", "True", "the server's log"),
        Reading("max_num_batched_tokens", "2048", "the server's log"),
        Reading("max_model_len", "4096", "/v1/models"),
        Reading("enable_prefix_caching", "False", "/metrics"),
        Reading("version", "0.32.0", "/version"),
    ]
    assert not_in_force(WISHED, told) == [
        "max-model-len: asked for 8192, in force 4096 (/v1/models)",
        "enable-prefix-caching: asked for on, in force False (/metrics)",
    ]
    assert settings_of(told)["enable_prefix_caching"] == "False", "the surest source is the last"
    assert not_in_force(WISHED, told[:2]) == []


def test_what_nothing_tells_of_is_named() -> None:
    vary = ["max-num-seqs", "enable-prefix-caching", "scenario.prefix.dynamic", "overlay.replicas"]
    assert taken_on_trust(vary, {"enable_prefix_caching": "True"}) == ["max-num-seqs"]


def test_servers_may_differ_in_what_was_meant_only() -> None:
    before = {
        "a": {"version": "1", "num_gpu_blocks": "10", "max_num_seqs": "4", "block_size": "16"}
    }
    now = {"version": "2", "num_gpu_blocks": "11", "max_num_seqs": "8", "block_size": "32"}
    found = unlike("b", now, before, ["max-num-seqs"], ["block-size"])
    assert found.faults == ("version: 2, but 1 in the cell of a",)
    assert [n.split(":")[0] for n in found.notes] == ["block_size", "num_gpu_blocks"]
    again = unlike("a", now, before, ["max-num-seqs"], ["block-size", "version"])
    assert again.faults == ("max_num_seqs: 8, but 4 in the cell of a",), "one arm is one server"


@pytest.mark.parametrize(
    ("settings", "wished", "tokens"),
    [
        # six chunks, 6 x 8,192
        ({"max_model_len": "131072"}, {"max-num-batched-tokens": 8192}, 49_152),
        ({"max_model_len": "131072", "max_num_batched_tokens": "2048"}, {}, 16_000),
        ({"max_model_len": "32768"}, {"max-num-batched-tokens": 2048}, 16_000),
        # half of the context is two chunks: nothing to see
        ({"max_model_len": "32768"}, {"max-num-batched-tokens": 8192}, None),
        # the whole prompt is one step, as asked for
        ({"max_model_len": "8192"}, {"enable-chunked-prefill": False}, 4_096),
        ({"max_model_len": "131072", "max_num_seqs": "1"}, {}, None),
        ({}, {}, 49_152),
    ],
)
def test_the_prompt_of_the_trial_has_several_chunks(
    settings: dict[str, str], wished: dict[str, int], tokens: int | None
) -> None:
    assert probe_tokens(settings, wished) == tokens


def test_a_trial_contradicts_only_what_was_asked_for_and_seen() -> None:
    off = {"effective": False, "longest_gap_s": 1.19, "prefill_s": 1.2}
    said = probe_contradicts({"enable-chunked-prefill": True}, off)
    assert said is not None
    assert "asked for on, in effect off" in said
    assert "1.190 s of the 1.200 s" in said
    assert probe_contradicts({"enable-chunked-prefill": False}, off) is None
    assert probe_contradicts({}, off) is None
    assert probe_contradicts({"enable-chunked-prefill": True}, {"effective": None}) is None


def test_a_chunk_is_the_share_of_the_prompt_that_the_longest_gap_took() -> None:
    assert Chunking(True, "", 0.3, 1.2, 16_000).chunk_tokens == 4_000
    assert Chunking(False, "", 1.2, 1.2, 16_000).chunk_tokens is None
    assert Chunking(None, "too short").chunk_tokens is None


def test_a_log_is_read_where_no_page_answers(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "INFO non-default args: {'enable_chunked_prefill': True, 'max_num_seqs': 8}\n"
        "INFO config: max_seq_len=4096, enable_prefix_caching=True, enable_chunked_prefill=False\n"
    )
    found = settings_of(readings("http://127.0.0.1:1/v1", log, []))
    assert found == {
        "enable_chunked_prefill": "False",
        "max_num_seqs": "8",
        "max_model_len": "4096",
        "enable_prefix_caching": "True",
    }
    assert readings("http://127.0.0.1:1/v1", tmp_path / "none.log", []) == []
