"""Every planted fault is found, and nothing else: the confusion table."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import planted
import pytest

from agentload.recording.record import LoadgenSample, RunEvent
from analysis import diagnosis
from analysis.diagnosis import diagnose
from analysis.results import analyse


def server(**given: Any) -> planted.Server:
    """A healthy server and load: cached prefixes, small chunks, slots and memory to spare."""
    healthy: dict[str, Any] = {
        "sessions": 9,
        "turns_each": 14,
        "stagger_s": 4.0,
        "prefill_s_per_token": 1 / 40_000,
        "budget": 1024,
        "wait_s": 2.0,
        "seed": 3,
    }
    return planted.Server(**(healthy | given)).run()


def evicts(prompt: int, rng: Any) -> int:
    return prompt - 400 if rng.random() < 0.7 else 0


def loses_the_tail(prompt: int, _: Any) -> int:
    return int(prompt * 0.94)


def keeps(tokens: int) -> Callable[[int, Any], int]:
    return lambda *_: tokens


def forgets_the_slow() -> planted.Server:
    """Most turns lose their history, but those that come back within 25 s do not."""
    found = server(wait_s=30.0, stagger_s=9.0, budget=512)
    ended = {(r.session_id, r.turn_index): r.end_s for r in found.rows}
    for i, r in enumerate(found.rows):
        before = ended.get((r.session_id, r.turn_index - 1))
        if before is not None and r.call_start_s - before > 25.0:
            found.rows[i] = replace(r, cached_tokens=0)
    return found


def forgets_three() -> planted.Server:
    """Three turns of a hundred find nothing of their history."""
    found = server()
    for i, r in enumerate(found.rows):
        if r.turn_index == 7 and r.session_id in {"s1", "s4", "s6"}:
            found.rows[i] = replace(r, cached_tokens=0)
    return found


def shares_more_than_planned() -> planted.Server:
    found = server()
    found.rows = [
        replace(r, planned_prefix_tokens=r.prompt_tokens // 2) if r.turn_index else r
        for r in found.rows
    ]
    return found


def refused(share: float, error_class: str) -> planted.Server:
    found = server()
    every = round(1 / share)
    found.rows = [
        planted.failed(r.session_id, int(r.turn_index), error_class, start=r.call_start_s)
        if i % every == 0
        else r
        for i, r in enumerate(found.rows)
    ]
    return found


def with_rows(**fields: Any) -> planted.Server:
    found = server()
    found.rows = [replace(row, **fields) for row in found.rows]
    return found


def warm_start() -> planted.Server:
    found = server()
    found.rows = [
        replace(r, cached_tokens=r.prompt_tokens - 400) if r.turn_index == 0 else r
        for r in found.rows
    ]
    return found


def preempting() -> planted.Server:
    found = server(kv_slots=6.0)
    for t in range(60):
        found.scrape.append(planted.gauge(t, "vllm:num_preemptions_total", 3.0 * t))
        found.scrape.append(planted.gauge(t, "vllm:request_success_total", 2.0 * t))
    return found


def restarting() -> planted.Server:
    found = server()
    for t in range(60):
        found.scrape.append(planted.gauge(t, "vllm:generation_tokens_total", 100.0 * (t % 40)))
    return found


def starved_client() -> planted.Server:
    found = server()
    found.loadgen = [LoadgenSample(float(t), "w0", 0.99, 0.02, 0.4, 9, 5, 0, 0) for t in range(60)]
    return found


def missing_worker() -> planted.Server:
    found = server()
    found.events = [
        RunEvent(10.0, "worker_missing", None, "host_w1"),
        RunEvent(25.0, "worker_returned", None, "host_w1"),
    ]
    return found


def stalls_on_the_way() -> planted.Server:
    """Gaps of a second at the client; the server's own histogram has none above 0.3 s."""
    found = server()
    found.traces = [
        replace(t, gaps_us=(*t.gaps_us[:5], 1_000_000, *t.gaps_us[6:])) for t in found.traces
    ]
    for t, count in ((0.0, 0.0), (70.0, 9000.0)):
        for bound in ("0.1", "0.3", "+Inf"):
            name = "vllm:inter_token_latency_seconds"
            found.scrape.append(planted.gauge(t, f"{name}_bucket", count, le=bound))
        found.scrape.append(planted.gauge(t, f"{name}_sum", count * 0.02))
        found.scrape.append(planted.gauge(t, f"{name}_count", count))
    return found


SET = {"settings": {"enable_chunked_prefill": True, "max_num_batched_tokens": 1024}}

FAULTS: list[tuple[str, str, Callable[[], planted.Server], dict[str, Any]]] = [
    ("healthy", "", server, {}),
    ("healthy, another seed", "", lambda: server(seed=11), {}),
    ("healthy, other sizes", "", lambda: server(context=(20_000, 60_000), sessions=7,
                                                turns_each=20), {}),
    ("healthy, sparse", "", lambda: server(wait_s=6.0, sessions=8, turns_each=16), {}),
    ("slow tokenizer", "tokenization-bound", lambda: server(frontend_s_per_token=5e-6), {}),
    ("far away", "network-bound", lambda: server(frontend_base_s=0.4), {}),
    ("gaps on the way", "network-bound", stalls_on_the_way, {}),
    ("two slots", "queue-bound", lambda: server(max_seqs=2, wait_s=0.5), {}),
    ("slow prefill", "prefill-bound",
     lambda: server(prefill_s_per_token=1 / 6000, budget=128, stagger_s=30.0), {}),
    ("cache off", "cache-off",
     lambda: server(prefix_cache=False, wait_s=60.0, stagger_s=9.0, budget=512), {}),
    ("date in front", "cache-dynamic-prefix",
     lambda: server(keeps=keeps(16), wait_s=60.0, stagger_s=9.0, budget=512), {}),
    ("evictions", "cache-eviction",
     lambda: server(keeps=evicts, wait_s=30.0, stagger_s=9.0, budget=512), {}),
    ("slow turns evicted", "cache-eviction", forgets_the_slow, {}),
    ("three turns evicted", "hits-below-plan", forgets_three, {}),
    ("a tail re-encoded", "hits-below-plan", lambda: server(keeps=loses_the_tail), {}),
    ("another's prompts", "hits-above-plan", shares_more_than_planned, {}),
    ("large blocks", "cache-block-too-large",
     lambda: server(keeps=keeps(0), context=(300, 500)), {"settings": {"block_size": 16_384}}),
    ("not chunked", "chunking-off", lambda: server(chunked=False), {}),
    ("chunks of 32K", "chunk-too-large", lambda: server(budget=32_768), {}),
    ("chunking does not act", "not-in-force", lambda: server(chunked=False), SET),
    ("slow decode", "decode-bound", lambda: server(step_s=0.08, budget=4096), {}),
    ("KV nearly full", "kv-cliff-near", lambda: server(kv_slots=6.0), {}),
    ("preemptions", "preemption-storm", preempting, {}),
    ("429 from a gateway", "rate-limited", lambda: refused(0.1, "rate_limited"), {}),
    ("streams cut", "many-errors", lambda: refused(0.1, "stream_cut"), {}),
    ("buffered", "buffering-proxy", lambda: with_rows(flags="buffered_stream"), {}),
    ("no cached tokens", "cache-unknown", lambda: with_rows(cached_tokens=None), {}),
    ("starved client", "client-bound", starved_client, {}),
    ("worker missing", "workers-missing", missing_worker, {}),
    ("server restarted", "server-restarted", restarting, {}),
    ("arm before filled the cache", "warm-start", warm_start, {}),
    ("short run", "too-few-samples", lambda: server(sessions=4, turns_each=6), {}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expected", "plant", "manifest"),
    [f[1:] for f in FAULTS],
    ids=[f[0].replace(" ", "-") for f in FAULTS],
)
def test_a_planted_fault_is_the_only_finding(
    tmp_path: Path,
    expected: str,
    plant: Callable[[], planted.Server],
    manifest: dict[str, Any],
) -> None:
    folder = plant().write(tmp_path / "run", "base", **manifest)
    found = diagnose(analyse([folder]))
    assert [f.name for f in found] == ([expected] if expected else []), [f.evidence for f in found]
    for finding in found:
        assert finding.evidence
        assert finding.advice
        assert any(char.isdigit() for char in finding.evidence) or expected == "cache-unknown"


def test_every_finding_has_a_planted_fault() -> None:
    """Names stand in the sources as the first argument of a finding or of a reason."""
    sources = (Path(diagnosis.__file__).parent).glob("*.py")
    text = "".join(path.read_text(encoding="utf-8") for path in sources)
    said = set(re.findall(r'^\s+"([a-z]+(?:-[a-z]+)+)",$', text, re.MULTILINE))
    said |= set(re.findall(r'name, title = "([a-z-]+)"', text))
    assert said == {name for _, name, _, _ in FAULTS if name}
