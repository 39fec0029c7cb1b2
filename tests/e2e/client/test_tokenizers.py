"""Where the ids of prompts come from, and what is said when they cannot be had."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.client.driving import Driver
from tests.e2e.client.fake_server import FakeServer, Request

pytestmark = pytest.mark.slow

SMOKE = Path(__file__).parents[3] / "scenarios" / "smoke.yaml"


def tokenizing(page: Any, status: int = 200) -> FakeServer:
    """A server whose `/tokenize` answers with this, or with what it makes of the prompt."""

    def handle(request: Request) -> None:
        assert request.path == "/tokenize"
        asked = json.loads(request.body)
        assert asked["add_special_tokens"] is False
        answer = page(asked["prompt"]) if callable(page) else page
        request.wire.answer(status, json.dumps(answer).encode())

    return FakeServer(handle)


def letters(text: str) -> dict[str, Any]:
    return {"tokens": [*map(ord, text)], "count": len(text)}


def test_ids_of_the_server_and_of_this_machine(driver: Driver) -> None:
    with tokenizing(letters) as server:
        assert driver.ask(server.url, "encode", name="server", text='a"ß') == [97, 34, 223]
        assert driver.ask(server.url, "encode", name="qwen3", text="a b") == [64, 293]
        [kind, text] = driver.ask(server.url, "encode", name="no-such-one", text="a")
    assert kind == "NoTokenizerError"
    assert "no-such-one" in text


@pytest.mark.parametrize(
    "page",
    [[], {}, {"tokens": None}, {"tokens": "abc"}, {"tokens": [1, "2"]}, {"tokens": [1, -2]},
     {"tokens": [1.5]}, {"tokens": [True]}],
)  # fmt: skip
def test_pages_without_ids_are_a_failure(driver: Driver, page: Any) -> None:
    with tokenizing(page) as server:
        [kind, text] = driver.ask(server.url, "encode", name="server", text="a")
    assert (kind, "gave no list of token ids" in text) == ("RequestFailure", True)


def examined(driver: Driver, url: str, tokenizer: str | None, wire: str = "token_ids") -> list[Any]:
    overrides = {"wire": wire, **({"tokenizer": tokenizer} if tokenizer else {})}
    return driver.ask(url, "examine", scenario=str(SMOKE), overrides=overrides)


def test_a_run_tries_its_tokenizer_first(driver: Driver) -> None:
    with tokenizing(letters) as server:
        assert examined(driver, server.url, None, "chat") == []
        assert server.requests == []
        assert examined(driver, server.url, None) == ["server", True, []]
        [name, cuts, [warning]] = examined(driver, server.url, "qwen3")
    assert (name, cuts) == ("qwen3", True)
    assert "other ids than the server's /tokenize" in warning


def test_a_tokenizer_whose_parts_do_not_add_up_is_found_out(driver: Driver) -> None:
    with tokenizing(lambda text: {"tokens": [1, *map(ord, text)]}) as server:
        assert examined(driver, server.url, None) == ["server", False, []]


def test_a_server_without_tokenize_stops_the_run_or_is_not_compared(driver: Driver) -> None:
    with tokenizing({"detail": "Not Found"}, 404) as server:
        [text] = examined(driver, server.url, None)
        [name, cuts, [warning]] = examined(driver, server.url, "llama3")
    assert "http_404" in text
    assert "set tokenizer in the scenario" in text
    assert (name, cuts) == ("llama3", True)
    assert "not compared" in warning
