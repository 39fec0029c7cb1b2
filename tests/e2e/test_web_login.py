"""Locust's page behind its login, as a browser and a program come to it."""

from __future__ import annotations

import base64
import http.cookiejar
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.e2e.locust_process import DEADLINE_S, Bench, free_port, until

pytestmark = pytest.mark.slow
PASSWORD = "canary-password-5"
LOGIN = {"AGENTLOAD_WEB_USER": "operator", "AGENTLOAD_WEB_PASSWORD": PASSWORD}


class Browser:
    """Keeps cookies and follows redirects; `open` gives status, address at the end, body."""

    def __init__(self, port: int, trusted: ssl.SSLContext) -> None:
        self.root = f"https://127.0.0.1:{port}"
        self.cookies = http.cookiejar.CookieJar()
        jar = urllib.request.HTTPCookieProcessor(self.cookies)
        tls = urllib.request.HTTPSHandler(context=trusted)
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), jar, tls)

    def open(
        self, path: str, headers: dict[str, str] | None = None, **form: str
    ) -> tuple[int, str, str]:
        data = urllib.parse.urlencode(form).encode() if form else None
        request = urllib.request.Request(self.root + path, data, headers or {})
        try:
            with self._opener.open(request, timeout=DEADLINE_S) as answer:
                return answer.status, answer.url.removeprefix(self.root), answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, path, error.read().decode()

    def is_up(self) -> bool:
        try:
            return self.open("/login")[0] == 200
        except OSError:
            return False


def basic(user: str, password: str) -> dict[str, str]:
    word = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {word}"}


@pytest.fixture
def no_target(tmp_path: Path) -> Iterator[Bench]:
    """Locust processes with an address where nothing is: no run is started here."""
    made = Bench(tmp_path, "http://127.0.0.1:1/v1")
    yield made
    made.close()


def test_nothing_is_open_before_the_login(no_target: Bench, tmp_path: Path) -> None:
    port, authority, trusted = free_port(), trustme.CA(), ssl.create_default_context()
    authority.configure_trust(trusted)
    issued, chain, key = authority.issue_cert("127.0.0.1"), tmp_path / "chain", tmp_path / "key"
    issued.cert_chain_pems[0].write_to_path(chain)
    issued.private_key_pem.write_to_path(key)
    web = ("--web-host", "127.0.0.1", "--web-port", str(port), "--web-login")
    locust = no_target.owner(*web, "--tls-cert", str(chain), "--tls-key", str(key), env=LOGIN)
    browser = Browser(port, trusted)
    until(browser.is_up, "the login page")
    assert browser.open("/")[1].startswith("/login")
    assert browser.open("/stats/requests")[1].startswith("/login")
    assert browser.open("/no/such/page")[1].startswith("/login")
    assert browser.open("/agentload/metrics")[1].startswith("/login")
    assert browser.open("/swarm", scenario="x.yaml")[0] == 401
    assert browser.open("/stats/requests", basic("operator", "wrong"))[0] == 401

    assert browser.open("/agentload/login", username="operator", password="wrong")[1] == "/login"
    assert "Wrong user or password" in browser.open("/login")[2]
    assert browser.open("/stats/requests")[1].startswith("/login")

    program = Browser(port, trusted)
    stats = program.open("/stats/requests", basic("operator", PASSWORD))
    assert stats[:2] == (200, "/stats/requests")
    status, where, page = program.open("/agentload/metrics", basic("operator", PASSWORD))
    assert (status, where, page) == (200, "/agentload/metrics", "# EOF\n")  # before any run
    assert program.open("/stats/requests")[1].startswith("/login")

    status, where, page = browser.open("/agentload/login", username="operator", password=PASSWORD)
    assert (status, where) == (200, "/")
    assert PASSWORD not in page
    assert browser.open("/stats/requests")[0] == 200
    refused = browser.open("/swarm", scenario="x.yaml")  # the form is examined only now
    assert "x.yaml" in refused[2]
    (cookie,) = browser.cookies
    assert cookie.secure
    assert cookie.has_nonstandard_attr("HttpOnly")
    assert cookie.get_nonstandard_attr("SameSite") == "Strict"
    locust.process.terminate()
    locust.wait()
    assert PASSWORD not in locust.output


def test_a_login_without_a_password_does_not_start(no_target: Bench) -> None:
    web = ("--web-host", "127.0.0.1", "--web-port", str(free_port()), "--web-login")
    locust = no_target.owner(*web, env={"AGENTLOAD_WEB_USER": "operator"})
    assert locust.wait() == 2
    assert "needs AGENTLOAD_WEB_USER and AGENTLOAD_WEB_PASSWORD" in locust.output
