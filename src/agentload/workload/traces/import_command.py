"""The command `agentload import-trace`: a recorded trace becomes a session file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from agentload.workload.traces import (
    bailian,
    dialogues,
    mooncake,
    otel,
    own,
    request_csv,
    tracelab,
    weka,
)
from agentload.workload.traces.output import write_whole
from agentload.workload.traces.reading import Report
from agentload.workload.traces.record import TraceCall, TraceError, header, line_of

Reader = Callable[[Path, Report], Iterator[TraceCall]]

READERS: dict[str, tuple[Reader, str]] = {
    "weka": (weka.read, "kv-cache-tester and AgentX sessions, JSON or JSON Lines"),
    "tracelab": (tracelab.read, "TraceLab rounds, JSON Lines"),
    "tracelab-csv": (tracelab.read_csv, "TraceLab's replay CSV"),
    "mooncake": (mooncake.read, "Mooncake JSON Lines, with AIPerf's session_id and delay"),
    "bailian": (bailian.read, "Alibaba Bailian JSON Lines"),
    "azure": (request_csv.read_azure, "Azure 2023 and 2024 CSV"),
    "burstgpt": (request_csv.read_burstgpt, "BurstGPT CSV"),
    "otel": (otel.read, "OpenTelemetry GenAI spans, OTLP JSON or a span a line"),
    "openai-batch": (dialogues.read_batch, "OpenAI batch JSON Lines"),
    "sharegpt": (dialogues.read, "ShareGPT and vLLM multi-turn conversations"),
    "run": (own.read_run, "a run folder of this suite"),
}


def main(argv: Sequence[str]) -> int:
    """0; 2 for a wrong call or a file that cannot be used; 1 when lines were bad."""
    options = _parser().parse_args(argv)
    report = Report(lambda problem: print(f"{options.file}: {problem}", file=sys.stderr))
    reader, _ = READERS[options.format]
    try:
        written = write_whole(
            options.output,
            session_lines(options.format, reader(options.file, report)),
            lambda: report.calls > 0 and (options.skip_bad or not report.bad),
        )
    except (TraceError, OSError) as error:
        print(f"agentload import-trace: {error}", file=sys.stderr)
        return 2
    print(summary(report))
    if not written:
        why = f"{report.bad} bad lines" if report.bad else "no call in it"
        print(f"agentload import-trace: {why}; {options.output} not written", file=sys.stderr)
        return 1
    print(f"written: {options.output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {name:<13} {what}" for name, (_, what) in READERS.items())
    parser = argparse.ArgumentParser(
        prog="agentload import-trace",
        description=f"Make a session file of a recorded trace.\n\nformats:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("format", choices=list(READERS), metavar="FORMAT")
    add("file", type=Path, help="the trace (.gz too), or a run folder")
    add("output", type=Path, help="the session file to write")
    add("--skip-bad", action="store_true", help="write what is good even if lines are bad")
    return parser


def session_lines(source: str, calls: Iterable[TraceCall]) -> Iterator[bytes]:
    """The lines of a session file."""
    yield header(source)
    for call in calls:
        yield line_of(call)


def summary(report: Report) -> str:
    """What was read and what could not be carried over."""
    lines = [f"{report.sessions} sessions, {report.calls} calls, {report.bad} bad lines"]
    lines += [f"not carried over: {what} ({count}x)" for what, count in report.lost.items()]
    return "\n".join(lines)
