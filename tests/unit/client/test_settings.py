"""Settings: where each comes from, and all faults at once without a secret in the text."""

import json
from pathlib import Path

import pytest

from agentload.client.base_url import BaseUrlError, normalise_base_url, server_root
from agentload.client.settings import SettingsError, load_settings

KEY = "sk-demo-0001"


def faults(flags: dict[str, str | None], env: dict[str, str], file: Path | None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, env, file)
    return str(caught.value)


def test_flag_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"base_url": "http://file:1", "model": "file", "api_key": KEY}))
    env = {"OPENAI_BASE_URL": "http://env:1", "OPENAI_MODEL": "env"}
    settings, sources = load_settings({"base_url": "http://flag:1", "model": None}, env, file)
    assert (settings.base_url, settings.model) == ("http://flag:1/v1", "env")
    assert sources["base_url"] == "flag --base-url"
    assert sources["model"] == "environment OPENAI_MODEL"
    assert sources["api_key"] == f"file {file}"
    assert sources["total_timeout_s"] == "default"
    assert set(sources) == set(settings.shown())


def test_the_nested_json_form(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    content = {
        "api": {
            "base_url": "http://gw.test", "api_key": KEY, "timeout_seconds": 90, "max_retries": 2
        },
        "model": {"default": "m", "temperature": 0.2, "max_tokens": 512},
        "debug": {"log_request_timing": True, "log_token_count": False},
    }  # fmt: skip
    file.write_text(json.dumps(content))
    settings, _ = load_settings({}, {}, file)
    assert settings.base_url == "http://gw.test/v1"
    assert settings.total_timeout_s == 90
    assert (settings.max_retries, settings.max_tokens, settings.temperature) == (2, 512, 0.2)
    assert settings.model == "m"


def test_the_toml_form(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(
        f'[api]\nbase_url = "https://gw.test/api/v1/"\napi_key = "{KEY}"\ntimeout = 60\n'
        '[model]\nname = "m"\ntemperature = 0\nmax_tokens = 10\n'
        "[observability]\nrecord_ttft = true\nrecord_tokenize_ms = true\nrecord_queue_ms = true\n"
    )
    settings, _ = load_settings({}, {}, file)
    assert settings.base_url == "https://gw.test/api/v1"
    assert (settings.model, settings.total_timeout_s, settings.temperature) == ("m", 60, 0)


def test_the_flat_form_with_headers(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"extra_headers": {"X-Gateway-Key": "hush-hush", "X-Team": "a"}}))
    settings, _ = load_settings({}, {}, file)
    assert [name for name, _ in settings.extra_headers] == ["X-Gateway-Key", "X-Team"]
    assert settings.secrets() == ("hush-hush", "a")
    assert "hush" not in repr(settings) + str(settings.shown())


def test_headers_as_lines_of_a_flag() -> None:
    settings, _ = load_settings({"extra_headers": "X-A: one\nX-B: two: three"}, {}, None)
    assert settings.secrets() == ("one", "two: three")


def test_all_faults_at_once(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text(json.dumps({"api": {"timeout_seconds": -1}, "modle": "m", "temperature": 9}))
    text = faults({"base_url": "vllm:8000"}, {"OPENAI_API_KEY": "a b"}, file)
    assert "unknown key 'modle'" in text
    # A file with unknown keys gives none of its values; the others are still judged.
    assert "base_url (flag --base-url)" in text
    assert "http://" in text
    assert "api_key (environment OPENAI_API_KEY)" in text


def test_values_out_of_range_name_their_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[api]\ntimeout = -1\n[model]\nmax_tokens = 1.5\ntemperature = true\n")
    lines = faults({}, {}, file).splitlines()
    assert len(lines) == 3
    assert all(f"file {file}" in line for line in lines)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("settings.json", '{"api_key": "sk-demo-0001",'),
        ("config.toml", 'api_key = "sk-demo-0001'),
        ("settings.json", "[1]"),
        ("settings.json", "\xff\xfe"),
        ("settings.yaml", "api_key: sk-demo-0001"),
        ("settings.json", '{"base_url": "http://a", "api": {"base_url": "http://b"}}'),
        ("settings.json", '{"debug": {"log_token_count": 3}}'),
        ("settings.json", "[" * 100_000),
        ("settings.json", '{"model": "a", "api_key": "sk-demo-0001", "model": "b"}'),
        ("settings.json", '{"api": {"timeout_seconds": 1, "timeout_seconds": 2}}'),
        ("settings.json", '{"api": "sk-demo-0001"}'),
        ("settings.json", '{"api": {"key": "sk-demo-0001"}}'),
        ("settings.json", '{"max_retries": 1e999}'),
        ("settings.json", '{"max_retries": 1' + "0" * 400 + "}"),
        ("settings.json", '{"temperature": NaN}'),
        ("settings.json", '{"extra_headers": {"X-A": "sk-demo-0001\\n"}, "trust_env": "maybe"}'),
        ("settings.json", '{"extra_headers": {"X-A": ["sk-demo-0001"]}}'),
        ("settings.json", '{"extra_headers": {"host": "sk-demo-0001"}}'),
        ("settings.json", '{"api_key": 5}'),
        ("settings.json", '{"base_url": ["http://a"]}'),
        ("config.toml", "[api]\ntimeout = inf\n"),
    ],
)
def test_broken_files_are_one_error_without_the_key(
    tmp_path: Path, name: str, content: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode("latin-1"))
    text = faults({}, {}, file)
    assert str(file) in text
    assert "sk-demo" not in text


@pytest.mark.parametrize("name", ["settings.json", "config.toml"])
def test_files_of_other_editors_are_read(tmp_path: Path, name: str) -> None:
    """A byte order mark, and lines that end in CRLF."""
    file, key = tmp_path / name, tmp_path / "key"
    text = '{\r\n"model": "m"}\r\n' if name.endswith("json") else 'model = "m"\r\n'
    file.write_bytes(b"\xef\xbb\xbf" + text.encode())
    key.write_bytes(b"\xef\xbb\xbfsk-demo-0001\r\n")
    settings, _ = load_settings({"api_key_file": str(key)}, {}, file)
    assert settings.model == "m"
    assert settings.secrets() == ("sk-demo-0001",)


@pytest.mark.parametrize(
    "key", ["'sk-demo'", 'sk-demo"', "Bearer sk-demo", "sk-\u00a0demo", "sk-demo\u200b", "sk\ndemo"]
)
def test_keys_that_are_refused(key: str) -> None:
    text = faults({}, {"OPENAI_API_KEY": key}, None)
    assert "one line without quotes" in text
    assert "demo" not in text


def test_a_key_between_no_break_spaces_is_taken() -> None:
    settings, _ = load_settings({}, {"OPENAI_API_KEY": "\u00a0sk-demo-0001\n"}, None)
    assert settings.secrets() == ("sk-demo-0001",)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    assert "No such file" in faults({}, {}, tmp_path / "settings.json")
    assert "No such file" in faults({"api_key_file": str(tmp_path / "key")}, {}, None)


def test_an_unknown_flag_is_an_error() -> None:
    assert "no such setting" in faults({"base-url": "x"}, {}, None)


@pytest.mark.parametrize(
    "text",
    ["", "vllm:8000", "ftp://a", "http://", "http://a:99999", "http://a:0", "http://a b",
     "http://user:sk-demo@host", "http://a/v1?key=1", "http://a/v1#x", "http://[::1"],
)  # fmt: skip
def test_addresses_that_are_refused(text: str) -> None:
    with pytest.raises(BaseUrlError) as caught:
        normalise_base_url(text)
    assert "sk-demo" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a//v1//", "http://a/v1"),
        ("http://a//x", "http://a/x/v1"),
        ("http://a/v1/completions", "http://a/v1"),
        ("http://a/openai/chat/completions/", "http://a/openai"),
        ("HTTP://A:80", "http://A:80/v1"),
        ("http://[::1]:8000", "http://[::1]:8000/v1"),
    ],
)
def test_more_forms_of_addresses(text: str, expected: str) -> None:
    assert normalise_base_url(text) == expected
    assert normalise_base_url(expected) == expected or expected.endswith("openai")


def test_side_endpoints_are_beside_the_version() -> None:
    assert server_root("http://a:8000/v1") == "http://a:8000"
    assert server_root("http://a/openai") == "http://a/openai"
