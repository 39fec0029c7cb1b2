"""A simulator, Locust with its web page, and a real browser, shared by the tests of this folder."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from tests.e2e.locust_process import SCENARIO, Bench, Locust, WebPage, free_port, until
from tests.e2e.sim_process import Sim

KEY = "canary-key-4711"
FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--window-size=1400,1000"),
)
WAIT_S = 150.0


@dataclass
class Live:
    """Locust's web server with the suite's page."""

    bench: Bench
    locust: Locust
    port: int

    @property
    def page(self) -> WebPage:
        return WebPage(self.port)

    def url(self, path: str = "/agentload") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


class Browser:
    """Chromium, by what a person does with the live page."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def element(self, id_: str) -> WebElement:
        return self.driver.find_element(By.ID, id_)

    def text(self, id_: str) -> str:
        return str(self.element(id_).text)

    def click(self, id_: str) -> None:
        until(lambda: self.element(id_).is_enabled(), f"{id_} can be clicked", WAIT_S)
        self.element(id_).click()

    def write(self, **fields: str) -> None:
        """Put text into fields by their names; the old text goes."""
        for name, text in fields.items():
            field = self.driver.find_element(By.NAME, name)
            field.clear()
            field.send_keys(text)

    def faults(self) -> dict[str, str]:
        """Field -> the fault that is shown beside it."""
        shown = self.driver.find_elements(By.CSS_SELECTOR, "#start .fault")
        return {e.get_attribute("id").removesuffix("-fault"): e.text for e in shown if e.text}

    def wait_state(self, *states: str) -> None:
        until(lambda: self.text("state") in states, f"the page says {states}", WAIT_S)

    def turns(self) -> int:
        """All measured turns by the table."""
        rows = self.driver.find_elements(By.CSS_SELECTOR, "#classes tbody tr:last-child td")
        return int(rows[1].text.replace(",", "")) if rows else 0

    def picture(self, name: str) -> None:
        """Keep what is shown, where pictures for the documentation are wanted."""
        folder = os.environ.get("AGENTLOAD_PICTURES")
        if folder:
            self.driver.save_screenshot(str(Path(folder) / f"live-{name}.png"))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('chromium')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    driver.set_page_load_timeout(WAIT_S)
    driver.set_script_timeout(WAIT_S)
    try:
        yield Browser(driver)
    finally:
        driver.quit()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sim]:
    log = tmp_path_factory.mktemp("target") / "requests.jsonl"
    faults = ("--fault", "status:code=500,every=25")
    with Sim("--enable-prompt-tokens-details", *faults, log=log) as sim:
        yield sim


def started(folder: Path, server: Sim, *args: str, env: dict[str, str] | None = None) -> Live:
    """Locust with a web page, ready to be asked."""
    bench = Bench(folder, f"http://127.0.0.1:{server.port}")
    port = free_port()
    at = ("--web-host", "127.0.0.1", "--web-port", str(port), "--stop-timeout", "5")
    locust = bench.owner(*at, *args, env={"OPENAI_API_KEY": KEY, **(env or {})})
    live = Live(bench, locust, port)
    live.page.wait_up()
    return live


def asked(
    live: Live,
    path: str,
    method: str = "GET",
    form: dict[str, str] | None = None,
    token: str | None = None,
    **headers: str,
) -> tuple[int, dict[str, str], str]:
    """One request as a program sends it, redirects not followed."""
    data = urllib.parse.urlencode(form or {}).encode() if method == "POST" else None
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    if token is not None:
        named["X-Agentload-Token"] = token
    request = urllib.request.Request(live.url(path), data, named, method=method)

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay())
    try:
        answer = opener.open(request, timeout=WAIT_S)
    except urllib.error.HTTPError as error:
        answer = error
    with answer:
        return answer.status, dict(answer.headers), answer.read().decode("utf-8", "replace")


def token_of(live: Live) -> str:
    return asked(live, "/agentload")[2].split('name="agentload-token" content="')[1].split('"')[0]


@pytest.fixture
def fresh(server: Sim, tmp_path: Path) -> Iterator[Live]:
    """Before its first run."""
    made = started(tmp_path, server)
    try:
        yield made
    finally:
        made.bench.close()


@pytest.fixture(scope="session")
def live(server: Sim, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """After a short run, which a program started as the page does."""
    made = started(tmp_path_factory.mktemp("live"), server)
    try:
        form = {"scenario": str(SCENARIO), "users": "4", "after_turns": "40"}
        status, _, text = asked(made, "/agentload/start", "POST", form, token_of(made))
        assert (status, json.loads(text)) == (202, {"faults": []})
        until(lambda: is_over(made), "the run is over", WAIT_S)
        yield made
    finally:
        made.bench.close()


def is_over(live: Live) -> bool:
    answer = json.loads(asked(live, "/agentload/snapshot")[2])
    return answer["run"] is not None and answer["run"]["state"] == "complete"
