"""Which CPUs a server has to itself, so that it and the load do not starve one another."""

from __future__ import annotations

import os
import re

_PART = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def parse_cpus(text: str) -> frozenset[int]:
    """`0`, `2-5` or `0,2-5`, as `taskset --cpu-list` has it; raises ValueError with the mend."""
    found: set[int] = set()
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError(f"{text!r} is no list of CPUs; write it like 0 or 0,2-5")
        found |= set(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)


def of_this_process() -> frozenset[int]:
    """The CPUs this process may run on; empty where the system cannot tell."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


def split(text: str | None) -> tuple[frozenset[int], frozenset[int]] | None:
    """(the server's CPUs, the load's: all the others); None when nothing is pinned.

    Raises ValueError when this machine has not the CPUs, or none would be left for the load.
    """
    if text is None:
        return None
    server, have = parse_cpus(text), of_this_process()
    if not have:
        raise ValueError("this system cannot pin processes to CPUs; leave it out")
    if not server <= have:
        missing = ", ".join(map(str, sorted(server - have)[:10]))
        raise ValueError(f"{text!r}: no CPU {missing} here; there are {shown(have)}")
    if server == have:
        raise ValueError(f"{text!r} are all CPUs there are: none is left for the load")
    return server, have - server


def shown(cpus: frozenset[int]) -> str:
    return ",".join(map(str, sorted(cpus)))
