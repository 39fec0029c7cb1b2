"""The command `agentload merge`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agentload.recording.merge import Merged, MergeError, MissingShardsError, merge
from agentload.recording.record import TURNS_CSV

EXIT_INPUT = 2
EXIT_MISSING = 3


def main(argv: Sequence[str]) -> int:
    """0; 2 for input that cannot be used; 3 when shards are missing. Only 0 has written."""
    options = _parser().parse_args(argv)
    out = options.output or options.run.with_name(f"{options.run.resolve().name}-merged")
    try:
        merged = merge(
            options.run,
            options.shards,
            out,
            allow_missing=options.allow_missing,
            compress=options.gzip,
        )
    except MergeError as error:
        print(_all("agentload merge", str(error)), file=sys.stderr)
        return EXIT_INPUT
    except MissingShardsError as error:
        print(_all("agentload merge: no shard of", str(error)), file=sys.stderr)
        print(
            "agentload merge: nothing was written; give these shards, or --allow-missing to count "
            "their turns as lost",
            file=sys.stderr,
        )
        return EXIT_MISSING
    print(_summary(merged, out))
    return 0


def _all(begin: str, text: str) -> str:
    return "\n".join(f"{begin}: {line}" for line in text.splitlines())


def _summary(merged: Merged, out: Path) -> str:
    manifest = merged.manifest
    counts, verdict = manifest["counts"], manifest["verdict"]
    lines = [
        f"{shard.shard.name}: {shard.rows[TURNS_CSV]} turns, "
        f"{shard.rows[TURNS_CSV] - shard.before[TURNS_CSV]} of them new"
        + (f"; cut at the end: {', '.join(shard.torn)}" if shard.torn else "")
        for shard in merged.shards
    ]
    lines += [f"{name}: its shard is missing" for name in manifest["merged"]["missing"]]
    lines.append(
        f"{out}: {counts['recorded']} turns recorded, {counts['lost']} lost, {verdict['level']}"
        + (" (was merged before)" if merged.was_there else "")
    )
    return "\n".join([*lines, *(f"  {reason}" for reason in verdict["reasons"])])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="agentload merge",
        description="Make one run folder of a run's folder and the shards of its workers: those of "
        "--record-on worker, and those that a worker which died could not deliver.",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="the run folder of the master")
    parser.add_argument(
        "shards",
        type=Path,
        nargs="*",
        metavar="SHARD",
        help="folder of a shard, or a folder of such; default: RUN/shards",
    )
    parser.add_argument(
        "-o", "--output", type=Path, metavar="OUT", help="the new run folder; default: RUN-merged"
    )
    parser.add_argument(
        "--allow-missing", action="store_true", help="merge although shards are missing"
    )
    parser.add_argument("--gzip", action="store_true", help="write chunks.csv.gz")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
