"""A vLLM log file read for people who have nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from agentload.client.errors import normal_form
from agentload.client.findings import Finding

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STATS = re.compile(
    r"Avg prompt throughput: (?P<prompt>[\d.]+) tokens/s, "
    r"Avg generation throughput: (?P<output>[\d.]+) tokens/s, "
    r"Running: (?P<running>\d+) reqs, Waiting: (?P<waiting>\d+) reqs"
)
_KV_USE = re.compile(r"KV cache usage: ([\d.]+)%")
_HIT_RATE = re.compile(r"Prefix cache hit rate: ([\d.]+)%")
_KV_SIZE = re.compile(r"KV cache size: ([\d,]+) tokens")
_SETTING = re.compile(
    r"['\"]?(enable_chunked_prefill|chunked_prefill_enabled|enable_prefix_caching|max_num_seqs|"
    r"max_num_batched_tokens|max_model_len|max_seq_len|long_prefill_token_threshold)['\"]?[=:]\s*(\w+)"
)
_VERSION = re.compile(r"vLLM (?:API server )?version v?(\d[\w.+-]*)")
_FAULT = re.compile(r"\b(?:ERROR|CRITICAL)\b(?:\s+\S+\s+\S+\s+\[[^\]]*\])?\s*(.*)")
MAX_LINE_CHARS = 20_000


class ServerLogError(ValueError):
    """The file cannot be read; the text names it."""


@dataclass(slots=True)
class ServerLog:
    """What the lines say; empty where they say nothing. Shares are from 0 to 1."""

    stats_lines: int = 0
    most_running: int = 0
    most_waiting: int = 0
    waiting_lines: int = 0
    most_kv_use: float | None = None
    last_hit_rate: float | None = None
    kv_cache_tokens: int | None = None
    version: str | None = None
    preemptions: int = 0
    aborts: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    faults: Counter[str] = field(default_factory=Counter)


def read_server_log(file: Path) -> ServerLog:
    """Raises `ServerLogError`."""
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            return parse_server_log(lines)
    except OSError as error:
        raise ServerLogError(f"{file}: {error.strerror}") from None


def parse_server_log(lines: Iterable[str]) -> ServerLog:
    log = ServerLog()
    for line in lines:
        _take(log, _ANSI.sub("", line[:MAX_LINE_CHARS]))
    return log


def _take(log: ServerLog, line: str) -> None:
    stats = _STATS.search(line)
    if stats is not None:
        _take_stats(log, stats, line)
        return
    version, size = _VERSION.search(line), _KV_SIZE.search(line)
    if version is not None:
        log.version = version[1]
    if size is not None:
        log.kv_cache_tokens = int(size[1].replace(",", ""))
    log.settings.update(_SETTING.findall(line))
    log.preemptions += "preempted" in line
    log.aborts += "Aborted request" in line
    fault = _FAULT.search(line)
    if fault is not None:
        log.faults[normal_form(fault[1])] += 1


def _take_stats(log: ServerLog, stats: re.Match[str], line: str) -> None:
    waiting = int(stats["waiting"])
    log.stats_lines += 1
    log.most_running = max(log.most_running, int(stats["running"]))
    log.most_waiting = max(log.most_waiting, waiting)
    log.waiting_lines += waiting > 0
    use, rate = _KV_USE.search(line), _HIT_RATE.search(line)
    if use is not None:
        log.most_kv_use = max(log.most_kv_use or 0.0, float(use[1]) / 100)
    if rate is not None:
        log.last_hit_rate = float(rate[1]) / 100


def of_server_log(log: ServerLog) -> list[Finding]:
    """One finding a question that a log can answer."""
    if not log.stats_lines:
        mend = "start vLLM without --disable-log-stats and let it serve for ten seconds"
        return [Finding("log", "warn", "no stats line of vLLM in the file", mend)]
    seen = f"vLLM {log.version or 'of unknown version'}, {log.stats_lines} stats lines"
    findings = [Finding("log", "ok", seen), _settings(log), _queue(log), _kv_cache(log), _hits(log)]
    if log.faults:
        text = "; ".join(f"{count} x {text}" for text, count in log.faults.most_common(3))
        findings.append(Finding("log: errors", "warn", text, "look these up in the log"))
    return findings


def _settings(log: ServerLog) -> Finding:
    if not log.settings:
        mend = "give the log from the server's start: it has the settings"
        return Finding("log: settings", "warn", "not in this part of the log", mend)
    text = ", ".join(f"{name}={value}" for name, value in sorted(log.settings.items()))
    return Finding("log: settings", "ok", text)


def _queue(log: ServerLog) -> Finding:
    share = log.waiting_lines / log.stats_lines
    seen = f"at most {log.most_running} running, {log.most_waiting} waiting ({share:.0%} of lines)"
    if share > 0.1:
        mend = "raise --max-num-seqs if the KV cache has room, else add replicas"
        return Finding("log: queue", "warn", seen, mend)
    return Finding("log: queue", "ok", seen)


def _kv_cache(log: ServerLog) -> Finding:
    size = f"{log.kv_cache_tokens:,} tokens" if log.kv_cache_tokens else "unknown size"
    if log.most_kv_use is None:
        return Finding("log: KV cache", "warn", f"{size}, use not in the log")
    seen = f"{size}, at most {log.most_kv_use:.0%} used, {log.preemptions} preemption lines"
    if log.most_kv_use > 0.95 or log.preemptions:
        mend = "fewer sessions per replica, more KV memory, or a smaller --max-num-seqs"
        return Finding("log: KV cache", "warn", seen, mend)
    return Finding("log: KV cache", "ok", seen)


def _hits(log: ServerLog) -> Finding:
    if log.last_hit_rate is None:
        mend = "start vLLM with --enable-prefix-caching"
        return Finding("log: prefix cache", "warn", "no hit rate in the log", mend)
    return Finding("log: prefix cache", "ok", f"hit rate {log.last_hit_rate:.1%} at the end")
