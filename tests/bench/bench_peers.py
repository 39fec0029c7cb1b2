"""agentload and other load generators on the mock server: what a streamed token costs each.

    python tests/bench/bench_peers.py FOLDER [--only NAME] [--install] [--python PYTHON]

FOLDER holds one virtual environment for each peer, named as the peer; `--install` makes the missing
ones (several GB) with PYTHON, which must be 3.12 or newer for inference-perf. What a peer prints is
kept in FOLDER/NAME.log. 50 requests at a time, 200 tokens each at 50/s, true TTFT 500 ms, true ITL
20 ms. CPU is that of the whole process tree: `marginal` is the difference between a run of 300 and
one of 50 requests, so that start-up does not count, `whole` is the run of 300.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from bench_client import CLIENT_CORE, SERVER_CORE, Bench, quantile, tree_cpu

CONCURRENT, TOKENS = 50, 200
TIMEOUT_S = 900  # of one run; aiperf prepares for minutes on a busy machine
SMALL, LARGE = 50, 300
# aiperf gives its ten processes 30 s to register and five minutes to make its prompts: too little
# for two cores that do other work as well.
PATIENCE = {
    "AIPERF_SERVICE_REGISTRATION_TIMEOUT": "300",
    "AIPERF_DATASET_CONFIGURATION_TIMEOUT": "800",
    "AIPERF_SERVICE_PROFILE_CONFIGURE_TIMEOUT": "800",
}
SNAPSHOT = "0" * 40  # of the tokenizer in the cache
SERVER = {"ttft_ms": 500, "tps": 50, "tokens": TOKENS, "mode": "together"}


ROOT = Path(__file__).parents[2]
CYCLE_S = 0.5 + TOKENS / 50
SCENARIO = """
name: peers
description: Agents without pauses, all answers of one length.
seed: 1
chars_per_token: 4.0
prefix: {{ tools_tokens: 20, system_tokens: 20 }}
start:
  mix: {{ warm: 1.0 }}
  warm_tokens: {{ dist: constant, value: 100 }}
  message_chars: {{ dist: constant, value: 100 }}
turns:
  append_chars: {{ dist: constant, value: 100 }}
  output_tokens: {{ dist: constant, value: {tokens} }}
waits:
  tool: {{ dist: constant, value: 0 }}
content:
  tool_results: {{ log: 1.0 }}
  answers: {{ prose: 1.0 }}
  user_text: {{ prose: 1.0 }}
stages:
  - {{ name: all, duration_s: {seconds}, users: {users} }}
"""


@dataclass(frozen=True, slots=True)
class Run:
    """CPU of the whole process tree, tokens streamed, what the tool says."""

    cpu_s: float
    tokens: int
    says: str


@dataclass
class Peer:
    """A tool: what to install, how to call it, how to read what it says (ms: TTFT, ITL)."""

    requirement: str
    command: Callable[[str, int, Path, Path], list[str]]
    report: Callable[[Path], str]


def find(folder: Path, pattern: str) -> Any:
    """The JSON of the first file that matches."""
    return json.loads(next(folder.rglob(pattern)).read_text())


def aiperf(url: str, requests: int, tokenizer: Path, out: Path) -> list[str]:
    # Offline it reads tokenizers from a Hugging Face cache only, by name, never from a folder.
    repo = tokenizer.parents[1].name.removeprefix("models--").replace("--", "/")
    return [
        "aiperf", "profile", "-m", "mock", "--tokenizer", repo, "-u", url,
        "--endpoint-type", "chat", "--streaming", "--concurrency", str(CONCURRENT),
        "--request-count", str(requests), "--prompt-input-tokens-mean", "100",
        "--prompt-output-tokens-mean", str(TOKENS), "--num-dataset-entries", "50", "--ui", "none",
        "--use-server-token-count", "--output-artifact-dir", str(out),
    ]  # fmt: skip


def aiperf_report(out: Path) -> str:
    page = find(out, "profile_export_aiperf.json")
    page = page.get("records", page)
    ttft, itl = page["time_to_first_token"], page["inter_token_latency"]
    return f"TTFT p50 {ttft['p50']:.1f}, ITL mean {itl['avg']:.2f}"


def guidellm(url: str, requests: int, tokenizer: Path, out: Path) -> list[str]:
    return [
        "guidellm", "run", "--backend",
        f"kind=openai_http,target={url},model=mock,request_format=/v1/chat/completions",
        "--profile", f"kind=concurrent,streams={CONCURRENT}",
        "--constraint", f"kind=max_requests,count={requests}",
        "--data", f"kind=synthetic_text,prompt_tokens=100,output_tokens={TOKENS}",
        "--tokenizer", f"kind=huggingface_auto,model={tokenizer}",
        "--output", f"kind=json,path={out}/report.json", "--disable-console",
    ]  # fmt: skip


def guidellm_report(out: Path) -> str:
    metrics = find(out, "report.json")["benchmarks"][0]["metrics"]
    ttft = metrics["time_to_first_token_ms"]["successful"]
    itl = metrics["inter_token_latency_ms"]["successful"]
    return f"TTFT p50 {ttft['median']:.1f}, ITL mean {itl['mean']:.2f} (means of requests)"


def genai_bench(url: str, requests: int, tokenizer: Path, out: Path) -> list[str]:
    return [
        "genai-bench", "benchmark", "--api-backend", "vllm", "--api-base", url, "--api-key", "x",
        "--api-model-name", "mock", "--model-tokenizer", str(tokenizer), "--task", "text-to-text",
        "--max-time-per-run", "3", "--max-requests-per-run", str(requests),
        "--num-concurrency", str(CONCURRENT), "--traffic-scenario", f"D(100,{TOKENS})",
        "--experiment-base-dir", str(out), "--log-dir", str(out),
    ]  # fmt: skip


def genai_bench_report(out: Path) -> str:
    pages = [path for path in out.rglob("*.json") if "metadata" not in path.name]
    stats = json.loads(pages[0].read_text())["aggregated_metrics"]["stats"]
    ttft, tpot = stats["ttft"]["p50"] * 1e3, stats["tpot"]["mean"] * 1e3
    return f"TTFT p50 {ttft:.1f}, TPOT mean {tpot:.2f} (no gaps)"


def inference_perf(url: str, requests: int, tokenizer: Path, out: Path) -> list[str]:
    config = f"""api: {{type: chat, streaming: true}}
server: {{type: vllm, model_name: mock, base_url: "{url}", ignore_eos: true}}
tokenizer: {{pretrained_model_name_or_path: {tokenizer}}}
data: {{type: mock}}
load:
  type: concurrent
  num_workers: 1
  worker_max_concurrency: 100
  stages: [{{num_requests: {requests}, concurrency_level: {CONCURRENT}}}]
report: {{request_lifecycle: {{summary: true, per_stage: true, per_request: false}}}}
storage: {{local_storage: {{path: {out}/out}}}}
"""
    (out / "config.yaml").write_text(config)
    return ["inference-perf", "-c", str(out / "config.yaml")]


def inference_perf_report(out: Path) -> str:
    latency = find(out, "summary_lifecycle_metrics.json")["successes"]["latency"]
    ttft, itl = latency["time_to_first_token"], latency["inter_token_latency"]
    return f"TTFT p50 {ttft['median'] * 1e3:.1f}, ITL p50 {itl['median'] * 1e3:.2f}"


PEERS = {
    "genai-bench": Peer("genai-bench==0.0.5", genai_bench, genai_bench_report),
    "inference-perf": Peer("inference-perf==0.7.0", inference_perf, inference_perf_report),
    "guidellm": Peer("guidellm==0.8.1", guidellm, guidellm_report),
    "aiperf": Peer("aiperf==0.13.0", aiperf, aiperf_report),
}


def make_tokenizer(hf_home: Path, python: Path) -> Path:
    """A small byte-level BPE in a Hugging Face cache, made by a peer's own packages; its folder."""
    repo = hf_home / "hub" / "models--local--mock"
    folder = repo / "snapshots" / SNAPSHOT
    folder.mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(SNAPSHOT)
    script = (
        "import sys, json, pathlib\n"
        "from tokenizers import ByteLevelBPETokenizer\n"
        "from transformers import PreTrainedTokenizerFast\n"
        "t = ByteLevelBPETokenizer()\n"
        "t.train_from_iterator([pathlib.Path(json.__file__).read_text()], vocab_size=2000)\n"
        "p = PreTrainedTokenizerFast(tokenizer_object=t._tokenizer, eos_token='<|end|>')\n"
        "p.chat_template = '{% for m in messages %}{{ m.content }}{% endfor %}'\n"
        "p.save_pretrained(sys.argv[1])\n"
    )
    subprocess.run([python, "-c", script, str(folder)], check=True)
    return folder


def run_peer(bench: Bench, name: str, folder: Path, requests: int, tokenizer: Path) -> Run:
    """Raises what the tool says when it fails."""
    peer = PEERS[name]
    with tempfile.TemporaryDirectory() as out, bench.server(False, **SERVER) as base_url:
        words = peer.command(base_url.removesuffix("/v1"), requests, tokenizer, Path(out))
        words[0] = str(folder / name / "bin" / words[0])
        env = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(tokenizer.parents[3]),
            "TOKENIZERS_PARALLELISM": "false",
            **PATIENCE,
        }
        with tree_cpu() as spent, (folder / f"{name}.log").open("w") as log:
            subprocess.run(
                words, cwd=out, env=env, check=True, timeout=TIMEOUT_S, stdout=log, stderr=log
            )
        return Run(spent[0], requests * TOKENS, peer.report(Path(out)))


def run_client(bench: Bench, requests: int) -> Run:
    """The measuring client by itself, whose every gap is held against the server's log."""
    rounds = requests // CONCURRENT
    measured = bench.load(
        "agentload", SERVER, sessions=CONCURRENT, turns=rounds, edge_s=0.1,
        seconds=rounds * CYCLE_S, freezes=False,
    )  # fmt: skip
    ttft = quantile(measured.ttft_errors_ms(), 0.5)
    itl = quantile(measured.gap_errors_ms(), 0.99)
    says = f"TTFT p50 {500 + ttft:.1f}, ITL error p99 {itl:.3f}"
    return Run(measured.process_cpu_s, rounds * CONCURRENT * TOKENS, says)


def run_locust(bench: Bench, requests: int) -> Run:
    """The whole product, as its users run it: Locust, live figures, every gap in the files."""
    seconds = requests // CONCURRENT * CYCLE_S
    with tempfile.TemporaryDirectory() as out, bench.server(False, **SERVER) as base_url:
        scenario = Path(out) / "peers.yaml"
        scenario.write_text(SCENARIO.format(tokens=TOKENS, users=CONCURRENT, seconds=seconds))
        words = [
            *("taskset", "-c", str(CLIENT_CORE), sys.executable, "-m", "locust", "--headless"),
            *("-f", str(ROOT / "locustfiles" / "coding_agents.py"), "--host", base_url),
            *("--scenario", str(scenario), "--model", "mock", "--run-dir", f"{out}/runs"),
        ]
        with tree_cpu() as spent:
            subprocess.run(words, cwd=ROOT, check=True, capture_output=True, timeout=TIMEOUT_S)
        (folder,) = Path(out, "runs").iterdir()
        turns = pd.read_csv(folder / "turns.csv")
        gaps = pd.read_csv(folder / "chunks.csv")["gaps_us"].str.split().explode().astype(float)
        ttft = turns["ttft_s"].median() * 1e3
        says = f"TTFT p50 {ttft:.1f}, ITL p50 {gaps.median() / 1e3:.2f}"
        return Run(spent[0], int(turns["output_tokens"].sum()), says)


def row(name: str, small: Run, large: Run) -> str:
    marginal = (large.cpu_s - small.cpu_s) / (large.tokens - small.tokens) * 1e3
    return f"| {name} | {marginal:.3f} | {large.cpu_s / large.tokens * 1e3:.3f} | {large.says} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", choices=PEERS, action="append")
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--python", default=sys.executable, help="makes the environments")
    given = parser.parse_args()
    print(f"server on core {SERVER_CORE}, agentload on core {CLIENT_CORE}, load {os.getloadavg()}")
    print("| tool | CPU s / 1,000 tokens, marginal | whole | says (truth: 500 ms, 20 ms) |")
    print("|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(Path(scratch), False)
        ours = {"agentload, the whole run": run_locust, "agentload, its client": run_client}
        for name, measure in ours.items():
            print(row(name, measure(bench, SMALL), measure(bench, LARGE)), flush=True)
        for name in given.only or PEERS:
            python = given.folder / name / "bin" / "python"
            if not python.exists() and given.install:
                subprocess.run([given.python, "-m", "venv", given.folder / name], check=True)
                requirement = PEERS[name].requirement
                subprocess.run([python, "-m", "pip", "install", "-q", requirement], check=True)
            if not python.exists():
                print(f"| {name} | not installed in {given.folder} | | |", flush=True)
                continue
            try:
                tokenizer = make_tokenizer(Path(scratch) / name, python)
                runs = [run_peer(bench, name, given.folder, n, tokenizer) for n in (SMALL, LARGE)]
                print(row(name, *runs), flush=True)
            except (subprocess.SubprocessError, OSError, KeyError, StopIteration) as error:
                print(f"| {name} | failed: {type(error).__name__}: {error} | | |", flush=True)


if __name__ == "__main__":
    main()
