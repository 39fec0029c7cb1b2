"""What the target is asked before any load is sent."""

import json

import pytest

from agentload.client.models import ServedModels, compare_models
from tests.cases.sse_case import FOLDER, load
from tests.e2e.client.driving import Driver
from tests.e2e.client.fake_server import FakeServer, Request, stream

pytestmark = pytest.mark.slow


def serving(page: str, status: int = 200, tokenize: bool = True) -> FakeServer:
    def handle(request: Request) -> None:
        if request.path == "/v1/models":
            request.wire.answer(status, page.encode())
        elif request.path == "/tokenize" and tokenize:
            assert json.loads(request.body)["prompt"] == 'say "hi"'
            request.wire.answer(200, b'{"count": 5, "tokens": [1, 2, 3, 4, 5]}')
        elif request.path == "/tokenize":
            request.wire.answer(404, b"{}")
        else:
            stream(request, 1)

    return FakeServer(handle)


def test_a_model_that_is_not_served_stops_before_any_load(driver: Driver) -> None:
    case = load(FOLDER / "B08-model-name-mismatch.yaml")
    expected = case["expected"]["values"]
    model, page = case["input"]["client"]["model"], case["input"]["models_response"]
    with serving(page) as server:
        error_class, text = driver.ask(server.url, "check", model, longest_tokens=None)
    assert error_class == "model_not_found"
    assert [r.path for r in server.requests] == ["/v1/models"]
    assert f"served: {expected['served_models'][0]}" in text
    assert compare_models(model, json.loads(page)) == ServedModels(
        served=tuple(expected["served_models"]),
        model=None,
        suggestion=expected["suggestion"],
        max_model_len=expected["max_model_len"],
    )


@pytest.mark.parametrize(
    ("configured", "served", "model", "suggestion"),
    [
        ("a", ["a", "b"], "a", "a"),
        ("A", ["a", "b"], None, "a"),
        ("hub/A", ["x/a", "b"], None, "x/a"),
        ("a", ["x/a", "y/A"], None, None),
        ("c", ["a", "b"], None, None),
        (None, ["a"], "a", "a"),
        (None, ["a", "b"], None, None),
        ("a", [], None, None),
    ],
)
def test_which_name_is_meant(
    configured: str | None, served: list[str], model: str | None, suggestion: str | None
) -> None:
    found = compare_models(configured, {"data": [{"id": name} for name in served]})
    assert (found.model, found.suggestion) == (model, suggestion)


@pytest.mark.parametrize("page", [None, [], {"data": 3}, {"data": [3, {"id": 4}]}])
def test_pages_of_another_shape_serve_nothing(page: object) -> None:
    assert compare_models("m", page) == ServedModels((), None, None, None)


PAGE = '{"data":[{"id":"m","max_model_len":32768}]}'


def test_a_good_target_is_counted_by_tokenize(driver: Driver) -> None:
    with serving(PAGE) as server:
        assert driver.ask(server.url, "check", longest_tokens=None) == [
            "m",
            32768,
            0,
            [5, "tokenize"],
        ]


def test_a_target_that_counts_nothing(driver: Driver) -> None:
    with serving(PAGE, tokenize=False) as server:
        assert driver.ask(server.url, "check", longest_tokens=None) == ["m", 32768, 0, None]


def test_a_context_longer_than_the_model_allows(driver: Driver) -> None:
    with serving(PAGE) as server:
        error_class, text = driver.ask(server.url, "check", longest_tokens=123_000)
    assert error_class == "context_overflow"
    assert "123000" in text
    assert "32768" in text


@pytest.mark.parametrize(
    ("page", "status", "expected"),
    [("no", 401, "auth"), ("{}", 500, "http_500"), ("<html>", 200, "not_json")],
)
def test_each_fault_is_one_error(driver: Driver, page: str, status: int, expected: str) -> None:
    with serving(page, status) as server:
        assert driver.ask(server.url, "check", "m", longest_tokens=None)[0] == expected


def test_a_gateway_without_a_model_list_is_a_warning(driver: Driver) -> None:
    with serving("{}", 404) as server:
        assert driver.ask(server.url, "check", "m", longest_tokens=None)[:3] == ["m", None, 1]


def test_an_unreachable_target(driver: Driver) -> None:
    error_class, text = driver.ask("http://127.0.0.1:9", "check", longest_tokens=None)
    assert error_class == "connect_error"
    assert "to mend: start the server" in text
