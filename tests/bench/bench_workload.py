"""CPU time of turns and memory of sessions: `python tests/bench/bench_workload.py [SESSIONS]`.

Prints the CPU of the first and of later turns of full-size sessions, and the resident memory that
they add, beside what one copy of each session's text would take.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
from pathlib import Path
from statistics import median

from agentload.scenario import load
from agentload.workload.content import Corpus
from agentload.workload.session import Session

SCENARIO = Path(__file__).parents[2] / "scenarios" / "steady-append.yaml"
LATER_TURNS = 5


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sessions", type=int, nargs="?", default=1000)
    count = parser.parse_args().sessions
    scenario = load(SCENARIO)
    before_s = time.process_time()
    corpus = Corpus()
    corpus.build_all()
    built_s = time.process_time() - before_s
    Session(scenario, count, corpus, 3.6, None).next_turn()  # what all sessions share
    base_mb = resident_mb()

    first_ms, later_us, kept, text_bytes = [], [], [], 0
    for index in range(count):
        at = time.process_time_ns()
        session = Session(scenario, index, corpus, 3.6, None)
        turn = session.next_turn()
        first_ms.append((time.process_time_ns() - at) / 1e6)
        messages = []
        for _ in range(LATER_TURNS):
            if turn is None:
                break
            messages += turn.append
            at = time.process_time_ns()
            messages += session.completed(
                turn, prompt_tokens=turn.planned_prompt_tokens + 7, output_tokens=1, text=None
            )
            turn = session.next_turn()
            later_us.append((time.process_time_ns() - at) / 1e3)
        text_bytes += sum(len(piece) for message in messages for piece in message.pieces)
        kept.append((session, messages))  # as the body of a request would

    first_ms.sort()
    later_us.sort()
    print(f"corpus: {built_s:.2f} s of CPU, {base_mb:.0f} MB resident with it")
    print(f"first turn: P50 {median(first_ms):.2f} ms, P99 {first_ms[int(0.99 * count)]:.2f} ms")
    tail = later_us[int(0.99 * len(later_us))]
    print(f"later turn: P50 {median(later_us):.0f} us, P99 {tail:.0f} us")
    added = resident_mb() - base_mb
    print(
        f"{len(kept)} sessions: +{added:.0f} MB resident ({1000 * added / count:.0f} KB each),"
        f" their text {text_bytes / 1e6:.0f} MB"
    )
    print(f"peak: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
