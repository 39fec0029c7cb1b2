"""Runs workloads through vLLM's own scheduler classes in virtual time.

Executed by the interpreter of the vLLM environment, never imported by the tests:

    python scheduler_oracle.py MODEL_DIR < workloads.json > results.json

Input: a list of workloads as `tests/sim/workloads.py` describes them. Output: per workload the
number of steps and, per request, [number, first_token_s, last_token_s, cached_tokens,
preemptions], null where a client went away first. No model runs: the step cost of the workload
says how long a step takes.
"""

# mypy: ignore-errors
import heapq
import json
import logging
import os
import random
import sys

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
logging.disable(logging.WARNING)

import torch  # noqa: E402
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash  # noqa: E402
from vllm.v1.core.sched.async_scheduler import AsyncScheduler  # noqa: E402
from vllm.v1.core.sched.scheduler import Scheduler  # noqa: E402
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.outputs import ModelRunnerOutput  # noqa: E402
from vllm.v1.request import Request, RequestStatus  # noqa: E402
from vllm.v1.structured_output import StructuredOutputManager  # noqa: E402

BLOCK = 16
MAX_MODEL_LEN = 200000
init_none_hash(sha256)
HASHER = get_request_block_hasher(BLOCK, sha256)


def make_scheduler(cfg, model_dir):
    """vLLM's scheduler with a workload's settings and no worker behind it."""
    longest = MAX_MODEL_LEN if cfg["chunked"] else min(MAX_MODEL_LEN, cfg["max_batched"])
    model = ModelConfig(
        model=model_dir,
        dtype="bfloat16",
        seed=0,
        skip_tokenizer_init=True,
        max_model_len=MAX_MODEL_LEN,
        hf_overrides={"max_position_embeddings": MAX_MODEL_LEN},
    )
    model.max_model_len = longest
    scheduler = SchedulerConfig(
        max_num_seqs=cfg["max_num_seqs"],
        max_num_batched_tokens=cfg["max_batched"],
        max_model_len=longest,
        long_prefill_token_threshold=cfg["long_prefill_threshold"],
        enable_chunked_prefill=cfg["chunked"],
        async_scheduling=cfg["async_sched"],
        scheduler_reserve_full_isl=cfg["reserve_full_isl"],
        is_encoder_decoder=False,
    )
    cache = CacheConfig(
        block_size=BLOCK,
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        enable_prefix_caching=cfg["prefix_cache"],
    )
    config = VllmConfig(scheduler_config=scheduler, model_config=model, cache_config=cache)
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv = KVCacheConfig(
        num_blocks=cfg["num_blocks"],
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
    )
    cache.num_gpu_blocks = cfg["num_blocks"]
    cls = AsyncScheduler if cfg["async_sched"] else Scheduler
    return cls(
        vllm_config=config,
        kv_cache_config=kv,
        block_size=BLOCK,
        log_stats=True,
        structured_output_manager=StructuredOutputManager(config),
    )


def step_s(cost, prefill, decodes, context, attention):
    return (
        cost["c0"]
        + cost["c1"] * prefill
        + cost["c2"] * decodes
        + cost["c3"] * context
        + cost["c4"] * attention
    )


class Contents:
    """Token ids of every node of the prefix tree, made up as far as they are asked for."""

    def __init__(self):
        self.known = {}

    def tokens(self, node, count):
        rng, ids = self.known.setdefault(node, (random.Random(f"node {node}"), []))
        while len(ids) < count:
            ids.append(rng.randrange(3, 1 << 30))
        return ids[:count]


class Run:
    """One workload: sessions on one side, vLLM's scheduler on the other."""

    def __init__(self, workload, model_dir):
        self.cfg, self.cost = workload["cfg"], workload["cost"]
        self.sessions = workload["sessions"]
        self.scheduler = make_scheduler(self.cfg, model_dir)
        self.contents = Contents()
        self.turn = [0] * len(self.sessions)
        self.arrivals = [(s["t0"], i * 1000, i) for i, s in enumerate(self.sessions)]
        heapq.heapify(self.arrivals)
        self.aborts = []
        self.live, self.stream = {}, {}
        self.result = {}
        self.steps = 0

    def add(self, now):
        """Everything that clients did by now, in the order of time."""
        while True:
            arrival = self.arrivals[0][0] if self.arrivals else float("inf")
            abort = self.aborts[0][0] if self.aborts else float("inf")
            if min(arrival, abort) > now:
                return
            if abort < arrival:
                self.abort_one()
            else:
                self.submit(*heapq.heappop(self.arrivals))

    def submit(self, at, number, session):
        turn = self.sessions[session]["turns"][self.turn[session]]
        prompt = [t for node, count in turn["path"] for t in self.contents.tokens(node, count)]
        leaf, tail = turn["path"][-1]
        self.stream[number] = prompt + self.contents.tokens(leaf, tail + turn["output"])[tail:]
        request = Request(
            request_id=str(number),
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(ignore_eos=True, max_tokens=turn["output"]),
            pooling_params=None,
            block_hasher=HASHER,
        )
        self.live[number] = request
        self.result[number] = [number, None, None, None, 0]
        self.scheduler.add_request(request)
        if turn.get("abort_after_s") is not None:
            heapq.heappush(self.aborts, (at + turn["abort_after_s"], number, session))

    def abort_one(self):
        at, number, session = heapq.heappop(self.aborts)
        if number in self.live:
            self.result[number][2] = None
            self.result[number][4] = self.live.pop(number).num_preemptions
            self.scheduler.finish_requests(str(number), RequestStatus.FINISHED_ABORTED)
            self.next_turn(session, at)

    def next_turn(self, session, at):
        think = self.sessions[session]["turns"][self.turn[session]]["think_s"]
        self.turn[session] += 1
        if self.turn[session] < len(self.sessions[session]["turns"]):
            number = session * 1000 + self.turn[session]
            heapq.heappush(self.arrivals, (at + think, number, session))

    def schedule(self):
        output = self.scheduler.schedule()
        work, prefill, decodes, context, attention = [], 0, 0, 0, 0.0
        for request_id, tokens in output.num_scheduled_tokens.items():
            number = int(request_id)
            request = self.live[number]
            start = request.num_computed_tokens - tokens
            if tokens == 1:
                decodes += 1
                context += start + 1
            else:
                prefill += tokens
                attention += tokens * (start + 0.5 * tokens)
            work.append((number, start, tokens, not request.is_prefill_chunk))
            if self.result[number][3] is None:
                self.result[number][3] = start
        took = step_s(self.cost, prefill, decodes, context, attention) if work else 0.0
        return output, work, took

    def update(self, output, work, now):
        while self.aborts and self.aborts[0][0] <= now:
            self.abort_one()
        ids = [str(entry[0]) for entry in work]
        sampled = [
            [self.stream[number][start + tokens]] if done else []
            for number, start, tokens, done in work
        ]
        outputs = self.scheduler.update_from_output(
            output,
            ModelRunnerOutput(
                req_ids=ids,
                req_id_to_index={x: i for i, x in enumerate(ids)},
                sampled_token_ids=sampled,
                logprobs=None,
                prompt_logprobs_dict={},
                pooler_output=[],
            ),
        )
        self.steps += 1
        for per_client in outputs.values():
            for out in per_client.outputs:
                number = int(out.request_id)
                if out.new_token_ids:
                    if self.result[number][1] is None:
                        self.result[number][1] = now
                    self.result[number][2] = now
                if out.finish_reason is not None:
                    self.result[number][4] = self.live.pop(number).num_preemptions
                    self.next_turn(number // 1000, now)

    def run(self):
        now, queue = 0.0, []  # the queue holds the batches in flight, the executing one first
        depth = 2 if self.cfg["async_sched"] else 1
        while True:
            self.add(now)
            output, work, took = self.schedule()
            if work:
                queue.append((output, work, took))
                if len(queue) < depth:
                    continue
            elif not queue:
                if not self.arrivals:
                    return
                now = max(now, self.arrivals[0][0])
                continue
            output, work, took = queue.pop(0)
            now += took
            self.update(output, work, now)


def main():
    results = []
    for workload in json.load(sys.stdin):
        run = Run(workload, sys.argv[1])
        run.run()
        rows = [
            [n, *(None if t is None else round(t, 9) for t in (first, last)), cached, preemptions]
            for n, first, last, cached, preemptions in (
                run.result[number] for number in sorted(run.result)
            )
        ]
        results.append({"steps": run.steps, "expect": rows})
    json.dump(results, sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main()
