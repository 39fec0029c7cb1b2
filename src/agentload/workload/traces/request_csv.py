"""Azure's and BurstGPT's CSV files: one request a row, without sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentload.workload.traces.fields import LineError, instant_s, integer, number
from agentload.workload.traces.reading import Report, csv_rows
from agentload.workload.traces.record import TraceCall
from agentload.workload.traces.sequence import Request, Sequence


def read_azure(path: Path, report: Report) -> Iterator[TraceCall]:
    """Columns TIMESTAMP, ContextTokens, GeneratedTokens."""
    return _read(path, report, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))


def read_burstgpt(path: Path, report: Report) -> Iterator[TraceCall]:
    """Columns Timestamp (in seconds), Request tokens, Response tokens."""
    return _read(path, report, ("Timestamp", "Request tokens", "Response tokens"))


def _read(path: Path, report: Report, columns: tuple[str, str, str]) -> Iterator[TraceCall]:
    sequence = Sequence(report)
    when, prompt, output = columns
    for count, (place, row) in enumerate(csv_rows(path, report, columns)):
        session = f"request-{count}"
        try:
            iso = "-" in row[when]
            yield sequence.next(
                Request(
                    session=session,
                    prompt_tokens=integer(row, prompt, low=1),
                    output_tokens=integer(row, output),
                    start_s=instant_s(row[when], when) if iso else number(row, when),
                )
            )
        except LineError as error:
            report.reject(place, str(error))
        sequence.forget(session)
        report.lose("which requests belong together: each is a session of one call")
