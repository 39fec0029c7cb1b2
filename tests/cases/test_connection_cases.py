"""Public failures around addresses, keys, proxies and error texts (kind B, C09)."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentload.client.base_url import normalise_base_url
from agentload.client.errors import normal_form
from agentload.client.route import proxy_for
from agentload.client.settings import SettingsError, load_settings
from tests.cases.sse_case import FOLDER, load


def case(name: str) -> dict[str, Any]:
    return load(FOLDER / f"{name}.yaml")


def test_base_url_forms() -> None:
    data = case("B01-base-url-forms")
    urls = [normalise_base_url(row[0]) + "/chat/completions" for row in data["input"]["rows"]]
    assert urls == data["expected"]["values"]["request_urls"]
    assert not [url for url in urls if "/v1/v1" in url or "//" in url.partition("://")[2]]


def test_api_key_with_white_space(tmp_path: Path) -> None:
    data = case("B02-api-key-with-newline")
    settings, _ = load_settings({}, data["input"]["env"], None)
    assert authorization(settings) == data["expected"]["values"]["authorization_header"]
    results = [result_of_key(key, tmp_path) for key in data["input"]["other_inputs"]]
    assert results == data["expected"]["values"]["other_results"]
    assert "sk-demo" not in repr(settings) + str(settings.shown())


def result_of_key(key: str, folder: Path) -> str:
    """What a key gives, by environment and by file alike."""
    file = folder / "key"
    file.write_bytes(key.encode())
    results = set()
    for flags, env in (({}, {"OPENAI_API_KEY": key}), ({"api_key_file": str(file)}, {})):
        try:
            results.add(authorization(load_settings(flags, env, None)[0]))
        except SettingsError as error:
            results.add("shows the key" if "sk-demo" in str(error) else "config_error")
    assert len(results) == 1
    return results.pop()


def authorization(settings: Any) -> str:
    return f"Bearer {settings.api_key.get_secret_value()}"


def test_proxy_variables() -> None:
    data = case("B06-proxy-environment-and-localhost")
    env = data["input"]["env"]
    via = ["direct" if proxy_for(row[0], env) is None else "proxy" for row in data["input"]["rows"]]
    assert via == data["expected"]["values"]["via"]
    assert all(proxy_for(row[0], env, trust_env=False) is None for row in data["input"]["rows"])


def test_error_texts_are_grouped() -> None:
    data = case("C09-error-texts-with-ids")
    groups = Counter(normal_form(text) for text in data["input"]["error_texts"])
    assert len(groups) == data["expected"]["values"]["groups"]
    assert list(groups.values()) == data["expected"]["values"]["group_counts"]


@pytest.mark.parametrize(
    ("excluded", "direct"),
    [
        ("internal.test", True),
        (".internal.test", True),
        ("*.internal.test", True),
        ("gw.internal.test:8000", True),
        ("gw.internal.test:9000", False),
        ("ternal.test", False),
        ("*", True),
        ("", False),
        ("10.0.0.0/8", False),
    ],
)
def test_no_proxy_forms(excluded: str, direct: bool) -> None:
    env = {"http_proxy": "http://proxy.test:3128", "no_proxy": excluded}
    assert (proxy_for("http://gw.internal.test:8000/v1", env) is None) is direct


def test_no_proxy_networks() -> None:
    env = {"HTTP_PROXY": "proxy.test:3128", "NO_PROXY": "10.0.0.0/8"}
    assert proxy_for("http://10.1.2.3:8000/v1", env) is None
    assert proxy_for("http://11.1.2.3:8000/v1", env) == "http://proxy.test:3128"


@pytest.mark.parametrize(
    "address", ["0.0.0.0", "127.8.8.8", "[::1]", "[::]", "[::ffff:127.0.0.1]", "LOCALHOST"]
)
def test_this_machine_is_never_asked_through_a_proxy(address: str) -> None:
    env = {"http_proxy": "http://proxy.test:3128", "ALL_PROXY": "socks5://proxy.test:1080"}
    assert proxy_for(f"http://{address}:8000/v1", env) is None
    assert proxy_for("http://10.0.0.1:8000/v1", env) is not None


@pytest.mark.parametrize("proxy", ["socks5://u:hush@proxy.test:1080", "http://", "http://p:99999"])
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(proxy: str) -> None:
    env = {"ALL_PROXY": proxy}
    with pytest.raises(SettingsError) as caught:
        load_settings({"base_url": "http://gw.test:8000"}, env, None)
    assert "gw.test" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert load_settings({"base_url": "http://127.0.0.1:8000"}, env, None)
    without = {"base_url": "http://gw.test:8000", "trust_env": "false"}
    assert load_settings(without, env, None)
