"""Sends the workload of `knob_validation.py` with the project's client and writes what was seen.

    python -m tests.vllm.knob_load BASE_URL [SPACING_S OUT]

A process of its own, since it is gevent's. OUT gets a JSON list of rounds, each a list of objects,
one a request; without it the server is only warmed up, by prompts that fill its largest steps. A
first round is not looked at.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402 - gevent patches first
import sys  # noqa: E402
from dataclasses import asdict  # noqa: E402
from pathlib import Path  # noqa: E402

from agentload.atomic_file import replace_text  # noqa: E402
from agentload.capacity.calibrate.target import LiveTarget  # noqa: E402
from agentload.client.settings import TargetSettings  # noqa: E402
from tests.vllm.knob_workload import ROUNDS, WARM_UPS, warm_up, workload  # noqa: E402
from tests.vllm.server import MODEL  # noqa: E402


def main() -> None:
    base_url, *rest = sys.argv[1:]
    target = LiveTarget(TargetSettings(base_url=base_url, model=MODEL), MODEL)
    target.warm_up()
    for _ in range(WARM_UPS):
        target.play(warm_up())
    if rest:
        spacing_s, out = float(rest[0]), Path(rest[1])
        _, *rounds = [target.play(workload(spacing_s, number)) for number in range(1 + ROUNDS)]
        replace_text(out, json.dumps([[asdict(one) for one in part] for part in rounds]))
    target.close()


if __name__ == "__main__":
    main()
