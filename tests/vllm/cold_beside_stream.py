"""Measures with the project's client what a cold long prompt does to a stream that is decoding.

    python -m tests.vllm.cold_beside_stream BASE_URL MODEL ROUNDS

Each round streams one long answer and, while it runs, sends a prompt of about 20,000 tokens that
no cache knows. Prints one JSON object a round; seconds. A process of its own, since it is gevent's.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402 - gevent patches first
import sys  # noqa: E402
from dataclasses import asdict, dataclass  # noqa: E402
from random import Random  # noqa: E402

import gevent  # noqa: E402

from agentload.client.body import PromptBody  # noqa: E402
from agentload.client.result import StreamResult  # noqa: E402
from agentload.client.settings import TargetSettings  # noqa: E402
from agentload.client.transport import Client, prepare_process  # noqa: E402
from agentload.clock import NS_PER_S  # noqa: E402
from agentload.workload.turn import Message  # noqa: E402

STREAM_TOKENS = 700  # 4 ms each: about 3 s, of which the prefill takes 0.5 s
COLD_AFTER_S = 0.5  # the stream is decoding by then
COLD_WORDS = 6_500  # three of the tiny model's tokens each


@dataclass(frozen=True, slots=True)
class Round:
    """One cold prompt beside one stream; seconds."""

    cold_prompt_tokens: int
    cold_ttft_s: float
    cold_prefill_s: float  # the server's own figure
    overlap: bool  # the stream was decoding before, during and after the prefill
    largest_gap_s: float  # of the stream, merged chunks left out
    stamp_source: str


def measure(client: Client, model: str, rng: Random) -> Round:
    """Raises RuntimeError when a request failed or the server sent no times."""
    streaming = gevent.spawn(_ask, client, model, _words(rng, 20), STREAM_TOKENS)
    cold_call = gevent.spawn_later(COLD_AFTER_S, _ask, client, model, _words(rng, COLD_WORDS), 1)
    stream, cold = streaming.get(), cold_call.get()
    first, last = cold.send_start_ns, cold.chunk_ns[0]
    if first is None or cold.server_times is None or cold.server_times.prefill_s is None:
        raise RuntimeError(f"not measured: {cold}")
    stamps = stream.chunk_ns
    gaps = [
        (after - before) / NS_PER_S
        for before, after, merged in zip(stamps, stamps[1:], stream.merged[1:], strict=False)
        if not merged
    ]
    return Round(
        cold_prompt_tokens=cold.prompt_tokens or 0,
        cold_ttft_s=(last - first) / NS_PER_S,
        cold_prefill_s=cold.server_times.prefill_s,
        overlap=stamps[0] < first and last < stamps[-1],
        largest_gap_s=max(gaps),
        stamp_source=stream.stamp_source,
    )


def _ask(client: Client, model: str, text: str, output_tokens: int) -> StreamResult:
    exact = {"max_tokens": output_tokens, "min_tokens": output_tokens, "ignore_eos": True}
    body = PromptBody({"model": model, "temperature": 0, **exact})
    body.add([Message("user", (text.encode(),))])
    result = client.stream(body, request_id=f"round-{abs(hash(text)):x}")
    if result.status != "success" or not result.chunk_ns:
        raise RuntimeError(f"{result.error_class}: {result.error_text}")
    return result


def _words(rng: Random, count: int) -> str:
    return " ".join(f"{rng.randrange(36**3):x}" for _ in range(count))


def main() -> None:
    base_url, model, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    settings = TargetSettings(base_url=base_url, model=model)
    prepare_process(settings)
    client = Client(settings)
    rng = Random()  # unseeded: a server that is still up must not know the prompts
    for _ in range(rounds):
        print(json.dumps(asdict(measure(client, model, rng))), flush=True)


if __name__ == "__main__":
    main()
