"""Workloads of closed-loop sessions, run through the fast core.

A workload is plain data, so that vLLM's own classes can run it in another process:

    {"cfg": scheduler settings, "cost": c0..c4 of the linear step cost,
     "sessions": [{"t0": start in s, "turns": [
         {"path": [[node name, tokens], ...], "output": tokens, "think_s": pause afterwards,
          "abort_after_s": optional; the client goes away this long after sending}]}]}

Request number = session * 1000 + turn. A turn is sent when the one before it has ended and the
pause is over.
"""

import heapq
import math
from collections.abc import Callable
from typing import Any

from agentload.sim.core import Engine, EngineConfig, Node, Request, StepCost

Workload = dict[str, Any]
INFINITY = math.inf


def engine_config(cfg: dict[str, Any]) -> EngineConfig:
    """A workload's settings as ours; what it does not name is as in vLLM 0.32."""
    return EngineConfig(
        max_num_seqs=cfg["max_num_seqs"],
        max_num_batched_tokens=cfg["max_batched"],
        enable_chunked_prefill=cfg["chunked"],
        enable_prefix_caching=cfg["prefix_cache"],
        num_blocks=cfg["num_blocks"],
        long_prefill_token_threshold=cfg["long_prefill_threshold"],
        reserve_full_isl=cfg["reserve_full_isl"],
        async_scheduling=cfg["async_sched"],
        unhashed_blocks_first=cfg.get("unhashed_first", True),
        threshold_needs_company=cfg.get("threshold_needs_company", True),
        max_model_len=200000 if cfg["chunked"] else min(200000, cfg["max_batched"]),
    )


def from_golden(case: dict[str, Any]) -> Workload:
    """A workload of `golden.json`: each session appends to a node of its own."""
    sessions = []
    for index, session in enumerate(case["sessions"]):
        prompt, turns = session["first"], []
        shared = [["shared", case["shared"]]] if case["shared"] else []
        for output, appended, think_s in session["turns"]:
            own = [f"session {index}", prompt - case["shared"]]
            turns.append({"path": [*shared, own], "output": output, "think_s": think_s})
            prompt += output + appended
        sessions.append({"t0": session["t0"], "turns": turns})
    return {"cfg": case["cfg"], "cost": case["cost"], "sessions": sessions}


def from_compact(case: dict[str, Any]) -> Workload:
    """A workload of `golden_hard.json`: a turn is [which of `above`, leaf, tokens, output, think_s,
    abort_after_s where the client goes away].
    """
    sessions = []
    for session in case["sessions"]:
        turns = []
        for above, leaf, tokens, output, think_s, *away in session["turns"]:
            path = [*session["above"][above], [leaf, tokens]]
            turns.append({"path": path, "output": output, "think_s": think_s})
            if away:
                turns[-1]["abort_after_s"] = away[0]
        sessions.append({"t0": session["t0"], "turns": turns})
    return {"cfg": case["cfg"], "cost": case["cost"], "sessions": sessions}


class Clients:
    """What the sessions of a workload do next, and when."""

    def __init__(self, workload: Workload) -> None:
        self.sessions = workload["sessions"]
        self.turn = [0] * len(self.sessions)
        self.arrivals = [(s["t0"], i, i * 1000) for i, s in enumerate(self.sessions)]
        heapq.heapify(self.arrivals)
        self.aborts: list[tuple[float, int]] = []
        self.sent = len(self.sessions)

    def next_s(self) -> float:
        """When the next client sends or goes away."""
        arrival = self.arrivals[0][0] if self.arrivals else INFINITY
        return min(arrival, self.next_abort_s())

    def next_abort_s(self) -> float:
        return self.aborts[0][0] if self.aborts else INFINITY

    def pop(self) -> tuple[float, int, dict[str, Any] | None]:
        """(time, request number, turn to send); None instead of a turn means an abort."""
        if self.next_abort_s() == self.next_s():
            return (*self.pop_abort(), None)
        at_s, _, number = heapq.heappop(self.arrivals)
        turn = self.sessions[number // 1000]["turns"][number % 1000]
        if turn.get("abort_after_s") is not None:
            heapq.heappush(self.aborts, (at_s + turn["abort_after_s"], number))
        return at_s, number, turn

    def pop_abort(self) -> tuple[float, int]:
        """(time, request number) of the next client to go away."""
        return heapq.heappop(self.aborts)

    def ended(self, number: int, at_s: float) -> None:
        """The request's last token came, or its client went away, at `at_s`."""
        session = number // 1000
        turns = self.sessions[session]["turns"]
        think_s = turns[self.turn[session]]["think_s"]
        self.turn[session] += 1
        if self.turn[session] < len(turns):
            number = session * 1000 + self.turn[session]
            self.sent += 1
            heapq.heappush(self.arrivals, (at_s + think_s, self.sent, number))


class FastRun:
    """A workload run through the fast core; `requests` by number."""

    def __init__(
        self,
        workload: Workload,
        after_each: Callable[[Engine], None] | None = None,
        **options: Any,
    ) -> None:
        self.clients = Clients(workload)
        self.engine = Engine(
            engine_config(workload["cfg"]),
            StepCost(**workload["cost"]),
            on_finish=self._finished,
            **options,
        )
        self.nodes: dict[str, Node] = {}  # by the path down to it: a node has one parent
        self.requests: dict[int, Request] = {}
        while True:
            wake_s = self.engine.next_wake_s()
            if self.clients.next_s() <= (INFINITY if wake_s is None else wake_s):
                if self.clients.next_s() == INFINITY:
                    return
                self._client_acts()
            else:
                assert wake_s is not None
                self.engine.run_until(wake_s)
            if after_each is not None:
                after_each(self.engine)

    def _client_acts(self) -> None:
        at_s, number, turn = self.clients.pop()
        if turn is not None:
            self.requests[number] = Request(number, self._path(turn), turn["output"], at_s)
            self.engine.add(self.requests[number], at_s)
        elif not self.requests[number].finished:
            self.engine.abort(self.requests[number], at_s)
            self.clients.ended(number, at_s)

    def _finished(self, request: Request, now_s: float) -> None:
        """The next turn is sent; one without a pause is there before the next batch is formed."""
        self.clients.ended(int(request.request_id), now_s)
        while self.clients.next_s() <= now_s:
            self._client_acts()

    def _path(self, turn: dict[str, Any]) -> list[tuple[Node, int]]:
        path, above = [], ""
        for name, tokens in turn["path"]:
            path.append((self.nodes.setdefault(f"{above}/{name}", Node()), tokens))
            above += f"/{name}:{tokens}"
        return path

    def rows(self) -> list[list[Any]]:
        """[number, first token s, last token s, cached tokens, preemptions] by number."""
        return [
            [n, r.first_token_s, r.last_token_s, r.cached_tokens, r.preemptions]
            for n, r in sorted(self.requests.items())
        ]


def differences(expected: list[list[Any]], got: list[list[Any]]) -> list[str]:
    """One line per request whose times (to 1e-6 s), hit or preemptions differ."""
    lines = [] if len(expected) == len(got) else [f"{len(expected)} requests, got {len(got)}"]
    for wanted, found in zip(expected, got, strict=False):
        if not all(map(_same, wanted, found)):
            lines.append(f"expected {wanted}, got {found}")
    return lines


def _same(wanted: float | None, found: float | None) -> bool:
    if wanted is None or found is None:
        return wanted is found
    return abs(wanted - found) <= 1e-6
