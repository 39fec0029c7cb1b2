"""The command `agentload export-trace`: sessions of a scenario or of a run, in another format."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from agentload.scenario import load, parse_override
from agentload.workload.content import Corpus
from agentload.workload.plan import plan_session
from agentload.workload.session import Session
from agentload.workload.traces import dialogues, mooncake, own
from agentload.workload.traces.import_command import session_lines, summary
from agentload.workload.traces.output import write_whole
from agentload.workload.traces.reading import Report
from agentload.workload.traces.record import SessionFile, TraceCall, TraceError
from agentload.workload.traces.replay import Replay, load_replay, session_source

_FORMATS = {
    "mooncake": "Mooncake JSON Lines with session_id and delay, which AIPerf replays",
    "vllm-multi-turn": "vLLM's multi-turn conversations, with text",
    "sessions": "a session file of this suite",
}


def main(argv: Sequence[str]) -> int:
    """0; 2 for a wrong call or an unusable source; 1 when lines were bad or nothing is left."""
    options = _parser().parse_args(argv)
    report = Report(lambda problem: print(f"{options.source}: {problem}", file=sys.stderr))
    try:
        parts = _parts(options, report)
        written = write_whole(options.output, parts, lambda: report.calls > 0 and not report.bad)
    except (TraceError, ValueError, OSError) as error:
        print(f"agentload export-trace: {error}", file=sys.stderr)
        return 2
    print(summary(report))
    if not written:
        print(f"agentload export-trace: {options.output} not written", file=sys.stderr)
        return 1
    print(f"written: {options.output}")
    return 0


def _parser() -> argparse.ArgumentParser:
    names = "\n".join(f"  {name:<16} {what}" for name, what in _FORMATS.items())
    parser = argparse.ArgumentParser(
        prog="agentload export-trace",
        description=f"Write sessions in another format.\n\nformats:\n{names}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("format", choices=list(_FORMATS), metavar="FORMAT")
    add("source", type=Path, help="a scenario (.yaml), a run folder, or a session file (.jsonl)")
    add("output", type=Path, help="the file to write")
    add("--scenario", type=Path, help="whose text the sessions of a session file get")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="replace a setting of it")
    add("--count", type=int, default=10, help="sessions of a scenario (10)")
    add("--turns", type=int, default=200, help="turns of a session at most (200)")
    add("--chars-per-token", type=float, help="of the text; default: the scenario's")
    return parser


def _parts(options: argparse.Namespace, report: Report) -> Iterator[bytes]:
    if options.count < 1 or options.turns < 1:
        raise TraceError("--count and --turns have to be 1 or more")
    if options.format == "vllm-multi-turn":
        return dialogues.write(_sessions(options), options.turns, report)
    counting = Report(report.on_bad, lost=report.lost)  # what is read is not counted again
    calls = _calls(options, counting if options.format == "mooncake" else report)
    if options.format == "mooncake":
        return _checked(mooncake.write(calls, report), counting, report)
    return session_lines("agentload", calls)


def _checked(parts: Iterator[bytes], read: Report, report: Report) -> Iterator[bytes]:
    yield from parts
    report.bad = read.bad


def _calls(options: argparse.Namespace, report: Report) -> Iterator[TraceCall]:
    if options.source.is_dir():
        return own.read_run(options.source, report)
    if options.source.suffix in (".yaml", ".yml"):
        plans = (plan_session(session, options.turns) for session in _sessions(options))
        return own.of_plans(plans, report)
    return _counted(_calls_of_file(SessionFile(options.source)), report)


def _counted(calls: Iterator[TraceCall], report: Report) -> Iterator[TraceCall]:
    for call in calls:
        report.calls += 1
        report.sessions += call.call == 0
        yield call


def _calls_of_file(file: SessionFile, names: list[str] | None = None) -> Iterator[TraceCall]:
    """All calls, each child behind its parent."""
    for name in file.roots if names is None else names:
        children: list[str] = []
        for call in file.calls(name):
            yield call
            children += file.children(name, call.call)
        yield from _calls_of_file(file, children)


def _sessions(options: argparse.Namespace) -> Iterator[Session]:
    """Sessions with text, of a scenario or of a session file in the words of one."""
    own_text = options.source.suffix in (".yaml", ".yml")
    path = options.source if own_text else options.scenario
    if path is None:
        raise TraceError("--scenario is needed: its text stands for that of the session file")
    scenario = load(path, dict(parse_override(text) for text in options.set))
    corpus, ratio = Corpus(), options.chars_per_token or scenario.starting_chars_per_token
    if own_text:
        make = session_source(scenario, corpus, ratio, None, replay=load_replay(scenario))
        return map(make, range(options.count))
    replay = Replay(options.source)
    return (replay.session(scenario, i, corpus, ratio, None) for i in range(len(replay)))
