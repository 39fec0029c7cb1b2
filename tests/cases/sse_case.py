"""A case of type `sse` as a finished exchange, and a result as the words of the cases."""

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from agentload.client.deadlines import Deadlines
from agentload.client.errors import RequestFailure
from agentload.client.measure import measure
from agentload.client.result import StreamResult
from agentload.client.stamps import Reads

FOLDER = Path(__file__).with_name("client")
NO_LIMIT_S = 1e6


def load(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return case


def py_bytes(value: str | list[str]) -> bytes:
    text = "".join(value) if isinstance(value, list) else value
    return text.encode("ascii").decode("unicode_escape").encode("latin-1")


def ns(seconds: float) -> int:
    return round(seconds * 1e9)


@dataclass
class Played:
    """The reads of a case, as the hub would have made them."""

    reads: Reads = field(default_factory=Reads)
    late_reads: set[int] = field(default_factory=set)
    body: bytearray = field(default_factory=bytearray)
    headers: list[tuple[str, str]] = field(default_factory=list)
    headers_read: int | None = None
    end_ns: int = 0
    error: RequestFailure | None = None
    clean_end: bool = False


def played(data: dict[str, Any]) -> Played:
    """Everything up to the end or the first deadline, in virtual time."""
    limits = data.get("client", {})
    deadlines = Deadlines(
        NO_LIMIT_S,
        limits.get("first_token_timeout_s", NO_LIMIT_S),
        limits.get("read_timeout_s", NO_LIMIT_S),
        limits.get("total_timeout_s", NO_LIMIT_S),
    )
    exchange = Played(headers=list(data["response"]["headers"].items()))
    first_token_ns = None
    for segment in data["segments"]:
        last_ns = exchange.reads.at_ns[-1] if len(exchange.reads) else 0
        due_ns, error_class = deadlines.next_due(0, first_token_ns, last_ns)
        at_ns = ns(segment["t"])
        if at_ns > due_ns:
            exchange.end_ns = due_ns
            exchange.error = RequestFailure(error_class, "")
            return exchange
        payload = py_bytes(segment["py"])
        if first_token_ns is None and (b'"content":"t' in payload):
            first_token_ns = at_ns
        exchange.body += payload
        exchange.reads.add(at_ns, b"", len(exchange.body))
    exchange.end_ns = ns(data["end"]["t"])
    how = data["end"]["how"]
    exchange.clean_end = how == "clean"
    if how == "reset":
        exchange.error = RequestFailure("connection_reset", "")
    return exchange


def measured(exchange: Played) -> StreamResult:
    result = StreamResult(send_start_ns=0)
    measure(exchange, result, (0, 0))
    return result


def words(result: StreamResult) -> dict[str, Any]:
    """The result under the names the cases use; formulas as in the cases' definitions."""
    stamps = result.chunk_ns
    tokens = result.output_tokens
    window_s = (stamps[-1] - stamps[0]) / 1e9 if stamps else None
    assert result.end_ns is not None
    return {
        "outcome": result.status,
        "error": result.error_class,
        "ttft_s": stamps[0] / 1e9 if stamps else None,
        "ttft_content_s": result.first_output_ns and result.first_output_ns / 1e9,
        "gaps_s": [(b - a) / 1e9 for a, b in pairwise(stamps)],
        "tpot_s": window_s / (tokens - 1)
        if window_s is not None and tokens and tokens > 1
        else None,
        "e2e_s": result.end_ns / 1e9,
        "token_events": len(stamps),
        "output_tokens": tokens,
        "output_tokens_source": result.token_source,
        "tokens_per_event": tokens / len(stamps) if tokens and stamps else None,
        "prompt_tokens": result.prompt_tokens,
        "text": result.text,
        "reasoning_text": result.reasoning_text,
        "finish_reason": result.finish_reason,
        "tool_calls": list(result.tool_calls),
        "flags": list(result.flags),
        "itl_usable": "buffered_stream" not in result.flags,
    }
