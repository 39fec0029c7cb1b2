"""Runs the measuring client for tests: one job a line on stdin, its results as a line on stdout.

A process of its own, because pytest's must not import gevent.
"""

from gevent import monkey

monkey.patch_all()

import json  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from dataclasses import asdict  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import gevent  # noqa: E402

from agentload.client.body import PromptBody  # noqa: E402
from agentload.client.errors import RequestFailure  # noqa: E402
from agentload.client.preflight import (  # noqa: E402
    PreflightError,
    check_target,
    count_tokens,
)
from agentload.client.reader import HubReader  # noqa: E402
from agentload.client.result import StreamResult  # noqa: E402
from agentload.client.settings import load_settings  # noqa: E402
from agentload.client.tokenizers import (  # noqa: E402
    NoTokenizerError,
    local_encoder,
    server_encoder,
)
from agentload.client.transport import Client, prepare_process  # noqa: E402
from agentload.scenario import load  # noqa: E402
from agentload.swarm.plan import InputError  # noqa: E402
from agentload.swarm.token_check import examine_tokenizer  # noqa: E402
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


def check(client: Client, longest_tokens: int | None) -> list[Any]:
    """Model, its window, number of warnings and a count of tokens; or the fault."""
    try:
        target = check_target(client, longest_tokens)
    except PreflightError as error:
        return [error.error_class, str(error)]
    counted = count_tokens(client, target.model, [b'say \\"hi\\"'])
    count = counted and [counted.tokens, counted.source]
    return [target.model, target.max_model_len, len(target.warnings), count]


def encode(client: Client, name: str, text: str) -> list[Any]:
    """The ids of a text, or what hinders."""
    try:
        return (server_encoder(client, "m") if name == "server" else local_encoder(name))(text)
    except (NoTokenizerError, RequestFailure) as error:
        return [type(error).__name__, str(error)]


def examine(client: Client, scenario: str, overrides: dict[str, object]) -> list[Any]:
    """What a run would find out of its tokenizer, or why there is none."""
    try:
        found = examine_tokenizer(client, load(Path(scenario), overrides), "m")
    except InputError as error:
        return [str(error)]
    return [found.name, found.cuts, list(found.warnings)] if found else []


def pages(client: Client, urls: list[str]) -> list[Any]:
    """Each page's JSON, by one client whose connections stay open between them."""
    found = [client.ask("GET", url).json() for url in urls]
    client.close()
    return found


def ask(client: Client, job: dict[str, Any]) -> list[Any]:
    if "pages" in job:
        return pages(client, **job["pages"])
    if "check" in job:
        return check(client, **job["check"])
    if "encode" in job:
        return encode(client, **job["encode"])
    return examine(client, **job["examine"])


def run(job: dict[str, Any]) -> list[Any]:
    settings, _ = load_settings(job["settings"], {}, None)
    client = Client(settings, HubReader(job.get("reader", "auto")))
    if "turns" not in job:
        return ask(client, job)
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
