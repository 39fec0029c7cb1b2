"""`agentload doctor` against the embedded server, and with wrong calls."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client.driving import NO_PROXY_ENV
from tests.e2e.client.fake_server import FakeServer

pytestmark = pytest.mark.slow

LOG = Path(__file__).parents[2] / "goldens" / "vllm-0.32.0" / "server-log-0.32.0.txt"
SMOKE = Path(__file__).parents[3] / "scenarios" / "smoke.yaml"
RUN = "import sys; from agentload.cli import main; sys.exit(main())"
ALL_ON = ["--enable-prompt-tokens-details", "--enable-per-request-metrics"]
ALL_OFF = [
    "--no-enable-chunked-prefill", "--no-enable-prefix-caching",
    "--max-num-batched-tokens", "40000", "--api-key", "sk-demo-0001",
]  # fmt: skip


@contextmanager
def simulator(*flags: str) -> Iterator[str]:
    command = [sys.executable, "-m", "agentload.sim.server", "--port", "0", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(b'{"event":"ready"'):
                yield json.loads(line)["url"]
                break
        process.terminate()


def doctor(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN, "doctor", *words],
        capture_output=True,
        text=True,
        env={**NO_PROXY_ENV, **env},
        timeout=60,
        check=False,
    )


def levels(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    report = json.loads(done.stdout)
    return {finding["name"]: finding["level"] for finding in report["findings"]}


def test_a_server_with_everything_on(tmp_path: Path) -> None:
    scenario = tmp_path / "ids.yaml"
    scenario.write_text(SMOKE.read_text(encoding="utf-8") + "wire: token_ids\n", encoding="utf-8")
    with simulator(*ALL_ON) as url:
        done = doctor("--base-url", url, "--json", "--scenario", str(scenario))
    assert done.returncode == 0, done.stdout + done.stderr
    found = levels(done)
    assert len(found) == 18
    assert found.pop("tokenizer") == "warn"  # the simulator's: four bytes from the text's start
    # On a machine without a free core the simulator is late, and its chunks come joined.
    busy = {found.pop("streaming"), found.pop("round trip")}
    assert "fail" not in busy
    assert set(found.values()) == {"ok"}
    settings = json.loads(done.stdout)["settings"]
    assert settings["base_url"] == {"value": f"{url}/v1", "source": "flag --base-url"}


def test_a_server_with_everything_off() -> None:
    with simulator(*ALL_OFF) as url:
        done = doctor("--json", OPENAI_BASE_URL=url, OPENAI_API_KEY="sk-demo-0001\n")
        wrong = doctor("--base-url", url, OPENAI_API_KEY="sk-demo-0002")
    found = levels(done)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in ("cached tokens", "per-request times", "prefix cache", "chunked prefill"):
        assert found[name] == "warn"
    assert found["request"] == "ok"
    assert found["streaming"] != "fail"
    assert wrong.returncode == 1
    assert "fail  reachable" in wrong.stdout
    assert "auth" in wrong.stdout
    assert "sk-demo" not in done.stdout + done.stderr + wrong.stdout + wrong.stderr


def test_one_line_a_check_and_the_settings() -> None:
    def handle(request: Any) -> None:
        request.wire.answer(200, b'{"data": [{"id": "real-name"}]}')

    with FakeServer(handle) as server:
        done = doctor("--base-url", server.url, "--model", "wished", PYTHONUNBUFFERED="1")
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert [line.split(":")[0] for line in lines[:4]] == [
        "ok    reachable", "ok    round trip", "ok    clock", "fail  model",
    ]  # fmt: skip
    assert "real-name" in lines[3]
    assert "  model = wished  [flag --model]" in lines


def test_a_gateway_without_a_model_list_is_still_asked() -> None:
    def handle(request: Any) -> None:
        if request.method == "GET":
            request.wire.answer(404, b"<html>not here</html>")
        else:
            request.wire.answer(429, b'{"error": "slow down"}', {"retry-after": "7"})

    with FakeServer(handle) as server:
        done = doctor("--base-url", server.url, "--model", "m")
        nameless = doctor("--base-url", server.url)
    assert (done.returncode, nameless.returncode) == (1, 1)
    assert "warn  reachable: no model list" in done.stdout
    assert "fail  request: rate_limited" in done.stdout
    assert "(Retry-After: 7 s) -> wait, or raise the limit of this key" in done.stdout
    assert "fail  reachable" in nameless.stdout
    assert "-> mend base_url" in nameless.stdout


def test_a_log_alone_sends_nothing() -> None:
    done = doctor("--server-log", str(LOG))
    assert done.returncode == 0
    assert "at most 4 running, 5 waiting" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ["--base-url", "vllm:8000"],
        ["--server-log", "no-such-file"],
        ["--base-url", "http://a", "--settings", "no-such-file.json"],
        ["--base-url", "http://a", "--scenario", "no-such-file.yaml"],
        ["--no-such-option"],
    ],
)
def test_wrong_calls(words: list[str]) -> None:
    done = doctor(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.strip()


def test_an_unreachable_target() -> None:
    done = doctor("--base-url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "connect_error" in done.stdout
