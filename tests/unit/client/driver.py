"""Runs the measuring client for tests: one job a line on stdin, its results as a line on stdout.

A process of its own, because pytest's must not import gevent.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from dataclasses import asdict  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402

from agentload.client.body import PromptBody  # noqa: E402
from agentload.client.reader import HubReader  # noqa: E402
from agentload.client.result import StreamResult  # noqa: E402
from agentload.client.settings import load_settings  # noqa: E402
from agentload.client.transport import Client, prepare_process  # noqa: E402
from agentload.workload.turn import Message  # noqa: E402


def turn(client: Client, job: dict[str, Any]) -> StreamResult:
    body = PromptBody({"model": "m"})
    body.add([Message("user", (b"x" * job.get("chars", 10),))])
    result = StreamResult()
    greenlet = gevent.spawn(
        client.stream,
        body,
        request_id=job.get("request_id", "test-1"),
        headers=job.get("headers"),
        cancel_after_first_token_s=job.get("cancel_after_first_token_s"),
        into=result,
    )
    if "freeze_at_s" in job:
        gevent.sleep(job["freeze_at_s"])
        until = time.monotonic() + job["freeze_s"]
        while time.monotonic() < until:  # the hub stands still
            pass
    if "kill_after_s" in job:
        gevent.sleep(job["kill_after_s"])
        greenlet.kill()
    else:
        greenlet.get()
    return result


def run(job: dict[str, Any]) -> list[dict[str, Any]]:
    settings, _ = load_settings(job["settings"], {}, None)
    client = Client(settings, HubReader(job.get("reader", "auto")))
    results = []
    start = time.monotonic()
    for planned in job["turns"]:
        wait_s = start + planned.get("at_s", 0.0) - time.monotonic()
        gevent.sleep(max(0.0, wait_s))
        results.append(asdict(turn(client, planned)))
    client.close()
    return results


def main() -> None:
    prepare_process(load_settings({}, {}, None)[0])
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
