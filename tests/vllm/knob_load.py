"""Sends the workload of `knob_validation.py` with the project's client and writes what was seen.

    python -m tests.vllm.knob_load BASE_URL [SPACING_S OUT]

A process of its own, since it is gevent's. OUT gets one JSON list, an object a request; without it
the server is only warmed up, by prompts as long as the workload's longest.
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
from tests.vllm.knob_workload import WARM_UPS, warm_up, workload  # noqa: E402
from tests.vllm.server import MODEL  # noqa: E402


def main() -> None:
    base_url, *rest = sys.argv[1:]
    target = LiveTarget(TargetSettings(base_url=base_url, model=MODEL), MODEL)
    target.warm_up()
    for _ in range(WARM_UPS):
        target.play(warm_up())
    if rest:
        spacing_s, out = float(rest[0]), Path(rest[1])
        heard = target.play(workload(spacing_s))
        replace_text(out, json.dumps([asdict(one) for one in heard]))
    target.close()


if __name__ == "__main__":
    main()
