"""Asks the target what it is before any load is sent to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from agentload.client.base_url import server_root
from agentload.client.errors import RequestFailure
from agentload.client.preflight import PreflightError, Target, check_target, count_tokens
from agentload.client.token_body import Encode
from agentload.client.transport import Client
from agentload.recording.metrics_page import PageError, info_labels
from agentload.swarm.plan import InputError, Wishes
from agentload.swarm.token_check import examine_tokenizer
from agentload.workload.calibration import calibrate
from agentload.workload.content import Corpus
from agentload.workload.window import misfit

CACHE_CONFIG = "vllm:cache_config_info"
SIMULATOR_CONFIG = "agentload_sim_info"


@dataclass(frozen=True, slots=True)
class Found:
    """The target as found. `target` and `server_settings` are parts of the manifest."""

    model: str
    corpus_fingerprint: str
    trace_fingerprint: str | None
    max_model_len: int | None
    chars_per_token: float | dict[str, float]  # as given, or measured by kind of content
    target: dict[str, Any]
    server_settings: dict[str, Any]
    token_cuts: bool  # of the tokenizer of wire token_ids: see `Tokenizer`
    warnings: tuple[str, ...]


def examine(wishes: Wishes, corpus: Corpus, trace_fingerprint: str | None) -> Found:
    """Reach the target, find the model, measure its tokens; raises InputError with the mend.

    Nothing but these few requests is sent before it is known that the scenario fits the target.
    """
    client = Client(wishes.settings)
    try:
        target = check_target(client)
        fault = misfit(wishes.scenario, target.max_model_len)
        if fault is not None:
            raise InputError(fault)
        ids = examine_tokenizer(client, wishes.scenario, target.model)
        encode = None if ids is None else ids.encode
        ratios = _chars_per_token(client, wishes, corpus, target, encode)
        described, server_settings = _described(client)
    except PreflightError as error:
        raise InputError(str(error)) from None
    finally:
        client.close()
    described["max_model_len"] = target.max_model_len
    described["tokenizer"] = None if ids is None else ids.name
    return Found(
        model=target.model,
        corpus_fingerprint=corpus.fingerprint,
        trace_fingerprint=trace_fingerprint,
        max_model_len=target.max_model_len,
        chars_per_token=ratios,
        target=described,
        server_settings=server_settings,
        token_cuts=ids is not None and ids.cuts,
        warnings=(*target.warnings, *(ids.warnings if ids else ())),
    )


def _chars_per_token(
    client: Client, wishes: Wishes, corpus: Corpus, target: Target, encode: Encode | None
) -> float | dict[str, float]:
    """As the scenario says, or measured on its kinds of text: by the tokenizer that makes the ids
    of prompts where there is one, else by the server's own count."""
    wished = wishes.scenario.chars_per_token
    if wished != "calibrate":
        return wished

    def count(pieces: list[bytes]) -> int | None:
        if encode is not None:
            return len(encode(orjson.loads(b'"%b"' % b"".join(pieces))))
        counted = count_tokens(client, target.model, pieces)
        return None if counted is None else counted.tokens

    measured = calibrate(wishes.scenario, corpus, target.max_model_len, count)
    if measured is None:
        raise InputError(
            f"{wishes.settings.base_url} counts no tokens, neither by /tokenize nor in usage; "
            "to mend: set chars_per_token in the scenario to a number (3.9 to 4.2 is common)"
        )
    return measured


def _described(client: Client) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the server says of itself: parts of the manifest's target, and its settings."""
    root = server_root(client.settings.base_url)
    target: dict[str, Any] = {"server_version": None}
    try:
        page = client.ask("GET", f"{root}/version").json()
        target["server_version"] = str(page["version"])[:80]
    except (RequestFailure, ValueError, KeyError, TypeError):
        pass
    try:
        metrics = client.ask("GET", f"{root}/metrics").body.decode("utf-8", "replace")
        cache = info_labels(metrics, CACHE_CONFIG)
        simulator = info_labels(metrics, SIMULATOR_CONFIG)
    except (RequestFailure, PageError):
        cache, simulator = {}, {}
    target["num_gpu_blocks"] = _whole(cache.get("num_gpu_blocks"))
    target["block_size"] = _whole(cache.get("block_size"))
    target["sim_speed"] = _number(simulator.get("speed"))
    return target, {**cache, **simulator}


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
