"""Which requests may change something, by what the browser says of their page."""

from __future__ import annotations

import pytest
from werkzeug.datastructures import Headers

from agentload.swarm.web.guard import TOKEN_HEADER, has_token, is_same_origin, new_token

HOST = "10.0.0.5:8089"


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),  # a program
        ({"Origin": f"http://{HOST}"}, True),
        ({"Origin": "http://10.0.0.5:8090"}, False),
        ({"Origin": "http://10.0.0.5"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": ""}, False),
        ({"Origin": f"http://{HOST}.evil.example"}, False),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://load.example"}, True),  # a proxy
        ({"Sec-Fetch-Site": "same-site", "Origin": f"http://{HOST}"}, False),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "none"}, True),
    ],
)
def test_only_our_own_page_or_no_page_at_all(headers: dict[str, str], allowed: bool) -> None:
    assert is_same_origin(Headers(headers), HOST) is allowed


def test_the_token_is_another_for_each_process_and_has_to_be_whole() -> None:
    token = new_token()
    assert len(token) >= 32
    assert token != new_token()
    assert has_token(Headers({TOKEN_HEADER: token}), token)
    for wrong in ("", token[:-1], token + "x", "ü"):
        assert not has_token(Headers({TOKEN_HEADER: wrong}), token)
    assert not has_token(Headers(), token)
