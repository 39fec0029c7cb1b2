"""Sends the workload of `knob_validation.py` with the project's client and writes what was seen.

    python -m tests.vllm.knob_load BASE_URL SPACING_S OUT

A process of its own, since it is gevent's. OUT gets one JSON list, an object a request.
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
from tests.vllm.knob_workload import workload  # noqa: E402
from tests.vllm.server import MODEL  # noqa: E402


def main() -> None:
    base_url, spacing_s, out = sys.argv[1], float(sys.argv[2]), Path(sys.argv[3])
    target = LiveTarget(TargetSettings(base_url=base_url, model=MODEL), MODEL)
    target.warm_up()
    heard = target.play(workload(spacing_s))
    target.close()
    replace_text(out, json.dumps([asdict(one) for one in heard]))


if __name__ == "__main__":
    main()
