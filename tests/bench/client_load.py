"""One measured load of one client variant on the mock server; prints one JSON object.

A process of its own for each figure: `python client_load.py JOB` with a JSON job (see
bench_client.py). Variants: `agentload`, `agentload-user` (no kernel stamps), `openai`
(`chat.completions.create(stream=True)`, typed chunks).
"""

from gevent import monkey

monkey.patch_all()

import gc  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import resource  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from typing import Any, Protocol  # noqa: E402

import gevent  # noqa: E402
import openai  # noqa: E402
from gevent.event import Event  # noqa: E402
from locust import HttpUser  # noqa: E402, F401 -- a real worker has locust loaded as well

from agentload.client import connection  # noqa: E402
from agentload.client.body import PromptBody  # noqa: E402
from agentload.client.settings import load_settings  # noqa: E402
from agentload.client.transport import Client, prepare_process  # noqa: E402
from agentload.workload.turn import Message  # noqa: E402

now_ns = time.perf_counter_ns


@dataclass
class Turn:
    """What a variant says about one request; `gap_ok[i]` is about the gap before token i."""

    request: int
    send_start_ns: int
    stamps_ns: list[int] = field(default_factory=list)
    gap_ok: list[bool] = field(default_factory=list)
    error: str | None = None


class Session(Protocol):
    def turn(self, request: int) -> Turn: ...


class OurSession:
    def __init__(self, base_url: str, history: list[Message]) -> None:
        settings, _ = load_settings({"base_url": base_url, "model": "mock"}, {}, None)
        self._client = Client(settings)
        self._body = PromptBody({"model": "mock", "max_tokens": 400})
        self._body.add(history)

    def turn(self, request: int) -> Turn:
        self._body.add(NEW_MESSAGES)
        result = self._client.stream(self._body, request_id=f"r{request}")
        return Turn(
            request,
            result.send_start_ns or 0,
            result.chunk_ns,
            [not merged for merged in result.merged],
            result.error_class,
        )


class SdkSession:
    def __init__(self, base_url: str, history: list[Message]) -> None:
        self._sdk = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
        self._messages: list[Any] = []
        for at, message in enumerate(history):
            text = json.loads(b'"%b"' % b"".join(message.pieces))
            self._messages += tool_call(at, text)

    def turn(self, request: int) -> Turn:
        self._messages += tool_call(request, "line of output\n" * 93)
        turn = Turn(request, now_ns())
        stream = self._sdk.chat.completions.create(
            model="mock",
            messages=self._messages,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"x-request-id": f"r{request}"},
        )
        for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                turn.stamps_ns.append(now_ns())
                turn.gap_ok.append(True)
        return turn


def tool_call(number: int, text: str) -> list[dict[str, Any]]:
    """The two messages by which a coding agent's history grows, as large as one of `history`."""
    function = {"name": "read_file", "arguments": json.dumps({"path": f"/src/{number}.py"})}
    call = {"id": f"call_{number}", "type": "function", "function": function}
    return [
        {"role": "assistant", "content": text[:120], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"call_{number}", "content": text[350:]},
    ]


NEW_MESSAGES = [
    Message("assistant", (b"x = 1\\n" * 40,)),
    Message("user", (b"line of output\\n" * 75,)),
]


def history(body_kb: int) -> list[Message]:
    """Messages of about 1,400 characters, whose bytes all sessions share."""
    piece = memoryview(b"    return self.value + 1\\n" * 52)
    count = body_kb * 1000 // len(piece)
    return [Message("user" if at % 2 else "assistant", (piece,)) for at in range(count)]


class Freezes:
    """Longest time the loop did not come round, by a timer of 5 ms."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._watch = gevent.spawn(self._run)

    def _run(self) -> None:
        while True:
            before = now_ns()
            gevent.sleep(0.005)
            self.longest_ms = max(self.longest_ms, (now_ns() - before) / 1e6 - 5)

    def stop(self) -> float:
        self._watch.kill()
        return self.longest_ms


def resident_kb() -> float:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() / 1000


def make_session(variant: str, base_url: str, messages: list[Message]) -> Session:
    if variant == "openai":
        return SdkSession(base_url, messages)
    return OurSession(base_url, messages)


def run_requests(job: dict[str, Any], sessions: list[Session]) -> dict[str, Any]:
    """CPU of whole requests with a two-token answer, one after the other."""
    sessions[0].turn(0)
    costs = []
    for _ in range(job["repeats"]):
        before = time.process_time()
        sessions[0].turn(0)
        costs.append((time.process_time() - before) * 1e3)
    return {"cpu_ms_min": min(costs), "cpu_ms_median": sorted(costs)[len(costs) // 2]}


def run_sessions(job: dict[str, Any], sessions: list[Session]) -> dict[str, Any]:
    """All sessions for `seconds`; each turn is followed by a pause. The CPU window leaves out
    the first and the last `edge_s`."""
    turns: list[Turn] = []
    ending = Event()

    def live(index: int) -> None:
        gevent.sleep(index * job["spread_s"] / len(sessions))
        number = index + 1
        for _ in range(job.get("turns", 1_000_000)):
            if ending.is_set():
                break
            turns.append(sessions[index].turn(number))
            number += len(sessions)
            ending.wait(job["pause_s"])

    gc.collect()
    gc.freeze()
    freezes = Freezes() if job.get("freezes", True) else None
    greenlets = [gevent.spawn(live, index) for index in range(len(sessions))]
    gevent.sleep(job["edge_s"])
    if freezes is not None:
        freezes.longest_ms = 0.0
    window = [now_ns()]
    cpu = [time.process_time()]
    resident = resident_kb()
    gevent.sleep(job["seconds"] - 2 * job["edge_s"])
    window.append(now_ns())
    cpu.append(time.process_time())
    longest_ms = freezes.stop() if freezes is not None else None
    ending.set()
    gevent.joinall(greenlets, timeout=job.get("drain_s", 60))
    return {
        "cpu_s": cpu[1] - cpu[0],
        "window_ns": window,
        "freeze_ms": longest_ms,
        "resident_kb": resident,
        "turns": [vars(turn) for turn in turns],
    }


def main() -> None:
    job = json.loads(sys.argv[1])
    os.sched_setaffinity(0, {job["core"]})
    if job["variant"] == "agentload-user":
        connection.request_kernel_stamps = lambda _: False  # type: ignore[assignment]
    prepare_process(load_settings({"base_url": job["base_url"]}, {}, None)[0])
    messages = history(job["body_kb"])
    make_session(job["variant"], job["base_url"], messages[:2]).turn(0)  # lazy imports
    gc.collect()
    before_kb = resident_kb()
    sessions = [
        make_session(job["variant"], job["base_url"], messages) for _ in range(job["sessions"])
    ]
    if job.get("realtime"):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))
    run = run_requests if job["kind"] == "requests" else run_sessions
    print(json.dumps({"before_kb": before_kb, **run(job, sessions)}))


if __name__ == "__main__":
    main()
