"""The same sessions through the virtual-clock core and through the HTTP server."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentload.sim.core.offline import Offline, Replica, Turn, TurnResult
from agentload.sim.server.settings import read
from tests.e2e.sim_process import MODEL, SMALL, Sim, reads

pytestmark = pytest.mark.slow

FLAGS = [
    *("--gpu-profile", "A100-40G", "--model-profile", "Qwen2.5-7B", "--max-num-seqs", "3"),
    *("--max-num-batched-tokens", "2048", "--max-model-len", "16384"),
    "--enable-prompt-tokens-details",
]
ROOMY = ["--num-gpu-blocks-override", "2800"]  # all sessions fit
TIGHT = ["--num-gpu-blocks-override", "1950"]  # they do not: blocks are evicted
SESSIONS, TURNS = 4, 4
SHARED = 2048  # tokens of the system prompt
FIRST, APPENDED, OUTPUT = 6000, 1200, 24
# Chosen so that, when all fits, nothing happens within 100 ms of anything else: a busy machine may
# be late by some of that.
THINK_S = (1.1, 1.1, 1.7, 1.0)
START_S = (0.0, 0.2, 0.4, 0.7)
# Marks: a message costs three tokens, the request for an answer two.
SYSTEM_TEXT = "s" * 4 * (SHARED - 3)
ASK = 2


@dataclass
class Seen:
    """A turn as its client saw it."""

    session: int
    turn: int
    sent_s: float
    first_s: float
    end_s: float
    usage: dict[str, Any]


def prompt_tokens(turn: int) -> int:
    """System, the first message, then for each turn before an answer and another message."""
    return SHARED + FIRST + 3 + turn * (OUTPUT + 3 + APPENDED + 3) + ASK


def turns(session: int) -> Iterator[Turn]:
    for turn in range(TURNS):
        own = prompt_tokens(turn) - SHARED
        prompt = (("shared", SHARED), (f"session {session}", own))
        yield Turn(prompt, OUTPUT, THINK_S[session])


def replica(flags: list[str]) -> Replica:
    settings = read([*SMALL, *FLAGS, *flags], {})
    costs = settings.cost_file
    return Replica(settings.engine, costs.step_cost(), costs.make_frontend())


def offline(flags: list[str]) -> list[TurnResult]:
    """The turns in the order in which they ended."""
    world = Offline([replica(flags)])
    for session in range(SESSIONS):
        world.add_session(turns(session), START_S[session])
    return world.run()


@dataclass
class Client:
    """Sessions of threads. A turn is sent when it was planned, and after the answer before it: a
    pause counted from that answer would add up what a busy machine is late by.
    """

    sim: Sim
    planned: list[TurnResult]
    seen: list[Seen] = field(default_factory=list)

    def run(self) -> list[Seen]:
        start_s = time.perf_counter() + 0.2
        threads = [
            threading.Thread(target=self.session, args=(i, start_s)) for i in range(SESSIONS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(self.seen, key=lambda one: one.end_s)

    def session(self, number: int, start_s: float) -> None:
        history = [{"role": "system", "content": SYSTEM_TEXT}]
        for one in sorted(self.planned, key=lambda one: one.sent_s):
            if one.session != number:
                continue
            turn = one.turn_index
            size = FIRST if turn == 0 else APPENDED
            history.append({"role": "user", "content": f"{number}" * 4 * size})
            body = {"model": MODEL, "messages": history, "max_tokens": OUTPUT, "ignore_eos": True}
            body |= {"stream": True, "stream_options": {"include_usage": True}}
            time.sleep(max(0.0, start_s + one.sent_s - time.perf_counter()))
            sent_s = time.perf_counter()
            text, first_s, last_s, usage = self.answer(body, f"{number}-{turn}")
            self.seen.append(Seen(number, turn, sent_s, first_s, last_s, usage))
            history.append({"role": "assistant", "content": text})

    def answer(self, body: dict[str, Any], name: str) -> tuple[str, float, float, dict[str, Any]]:
        """Text, instants of the first and last chunk with text, usage."""
        text, stamps, usage, rest = "", [], {}, b""
        with self.sim.open("/v1/chat/completions", body, {"X-Request-Id": name}) as connection:
            for at_ns, data in reads(connection):
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    if not line.startswith(b"data: {"):
                        continue
                    event = json.loads(line[6:])
                    usage = event.get("usage") or usage
                    for choice in event["choices"]:
                        if choice["delta"].get("content"):
                            text += choice["delta"]["content"]
                            stamps.append(at_ns / 1e9)
        return text, stamps[0], stamps[-1], usage


def online(flags: list[str], log: Path) -> tuple[list[Seen], list[dict[str, Any]]]:
    """What the clients saw, and the server's log."""
    with Sim(*FLAGS, *flags, log=log) as sim:
        seen = Client(sim, offline(flags)).run()
        return seen, [json.loads(line) for line in log.read_text().splitlines()]


def test_counts_hits_and_order_agree_exactly_and_ttft_within_five_percent(tmp_path: Path) -> None:
    planned = offline(ROOMY)
    seen, lines = online(ROOMY, tmp_path / "log.jsonl")
    assert [(one.session, one.turn) for one in seen] == [
        (one.session, one.turn_index) for one in planned
    ]
    requests = [one.request for one in planned]
    assert [one.usage["prompt_tokens"] for one in seen] == [r.prompt_tokens for r in requests]
    cached = [one.usage["prompt_tokens_details"]["cached_tokens"] for one in seen]
    assert cached == [request.cached_tokens for request in requests]
    assert {0, SHARED} < set(cached)
    server = statistics.median(
        (line["first_token_s"] - line["arrival_s"]) / one.ttft_s
        for line, one in zip(lines, planned, strict=True)
    )
    client = statistics.median(
        (one.first_s - one.sent_s) / plan.ttft_s for one, plan in zip(seen, planned, strict=True)
    )
    assert 0.95 < server < 1.05
    assert 0.95 < client < 1.05


def test_the_same_arrivals_give_the_same_times_to_the_microsecond(tmp_path: Path) -> None:
    """Evicting a block more or less depends on milliseconds, so arrivals are taken from the log."""
    _, lines = online(TIGHT, tmp_path / "log.jsonl")
    again = replica(TIGHT)
    requests = {}
    for line in sorted(lines, key=lambda one: one["arrival_ns"]):
        session, turn = map(int, line["request_id"].removeprefix("chatcmpl-").split("-"))
        again.engine.run_until(line["arrival_s"])
        planned = list(turns(session))[turn]
        requests[line["request_id"]], _ = again.send(len(requests), planned, line["arrival_s"])
    again.engine.run_until(1e6)
    for line in lines:
        request = requests[line["request_id"]]
        assert line["prompt_tokens"] == request.prompt_tokens
        assert line["cached_tokens"] == request.cached_tokens
        assert line["first_token_s"] == pytest.approx(request.first_token_s, abs=1e-6)
        assert line["last_token_s"] == pytest.approx(request.last_token_s, abs=1e-6)
    # Without eviction there are five: nothing, the shared prompt, one for each later turn.
    assert len({line["cached_tokens"] for line in lines}) > 5
