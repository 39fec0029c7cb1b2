"""The live page as a person uses it, in a real browser; then what others try with it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.browser.conftest import KEY, WAIT_S, Browser, Live, asked, started, token_of
from tests.e2e.locust_process import until
from tests.e2e.sim_process import Sim

pytestmark = [pytest.mark.slow, pytest.mark.needs("chromium")]

FETCH = """
const [url, done] = arguments;
fetch(url).then(async (a) => done([a.status, Object.fromEntries(a.headers), await a.text()]));
"""


def test_the_form_works_by_keyboard(browser: Browser, live: Live) -> None:
    browser.driver.get(live.url())
    until(lambda: browser.element("new").is_enabled(), "the page is ready", WAIT_S)

    def press(*keys: str) -> str:
        """The id of what has the focus after these keys."""
        ActionChains(browser.driver).send_keys(*keys).perform()
        focused = browser.driver.switch_to.active_element
        return str(focused.get_attribute("id") or focused.get_attribute("class"))

    reached = [press(Keys.TAB) for _ in range(3)]
    assert reached == ["skip", "brand", "new"]
    assert press(Keys.ENTER) == "scenario"
    assert browser.element("new").get_attribute("aria-expanded") == "true"
    reached = [press(Keys.TAB) for _ in range(12)]
    assert reached[-2:] == ["go", "cancel"]
    assert press(Keys.ESCAPE) == "new"
    assert not browser.element("start").is_displayed()


def fetched(browser: Browser, path: str) -> tuple[int, dict[str, str], str]:
    status, headers, text = browser.driver.execute_async_script(FETCH, path)
    return status, headers, text


def test_a_run_from_the_form_to_its_report_and_a_second_one(browser: Browser, fresh: Live) -> None:
    browser.driver.get(fresh.url())
    assert browser.text("state") == "no run yet"
    browser.click("new")

    browser.write(users="0", duration="soon", set="slos.tool.ttft_s=oops")
    browser.click("go")
    until(browser.faults, "faults are shown", WAIT_S)
    faults = browser.faults()
    assert set(faults) == {"users", "duration", "set"}
    assert "a whole number from 1" in faults["users"]
    assert "slos.tool.ttft_s" in faults["set"]
    assert browser.driver.switch_to.active_element.get_attribute("name") == "users"
    assert fresh.bench.folders() == []
    browser.picture("faults")
    browser.write(users="6", duration="10m", model="other", set="slos.tool.ttft_s=0.5")
    browser.click("go")
    until(lambda: "model" in browser.faults(), "the model is not served", WAIT_S)
    assert "'other' is not served" in browser.faults()["model"]

    browser.write(model="", arm="chunked-on")
    browser.click("go")
    browser.wait_state("running")
    first = until(browser.turns, "turns are shown", WAIT_S)
    until(lambda: browser.turns() > first + 100, "the numbers move", WAIT_S)
    assert browser.element("start").get_attribute("hidden")
    assert "chunked-on" in browser.text("classes")
    assert " / 6" in browser.text("users")
    look_at_sizes_and_themes(browser)

    browser.click("stop")
    browser.wait_state("interrupted", "complete")
    folder = fresh.bench.folder()
    assert str(folder.path) == browser.text("folder")
    until(
        lambda: browser.turns() == sum(row["stage"] == "run" for row in folder.rows()),
        "the page counts what the file has",
        WAIT_S,
    )
    link = next(a for a in links(browser, "files") if a.endswith("/turns.csv"))
    status, headers, text = fetched(browser, link)
    assert status == 200
    assert headers["content-disposition"].startswith("attachment; filename=")
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    assert list(csv.DictReader(io.StringIO(text))) == folder.rows()

    browser.click("report")
    until(lambda: browser.element("report-link").is_displayed(), "the report is made", 400.0)
    status, headers, text = fetched(browser, links(browser, "report-link")[0])
    assert (status, "<title>" in text) == (200, True)
    assert headers["content-disposition"].startswith("inline")

    assert asked(fresh, "/stats/reset", "POST")[2] == "ok"
    browser.click("new")
    browser.write(arm="<b>second</b>")
    browser.click("go")
    until(lambda: "<b>second</b>" in browser.text("classes"), "the second run is shown", WAIT_S)
    assert "chunked-on" in browser.text("earlier")
    assert "&lt;b&gt;second" in fresh.page.get("/agentload")
    assert "<b>second" not in fresh.page.get("/agentload")
    browser.click("stop")
    browser.wait_state("interrupted", "complete")
    one, two = fresh.bench.folders()
    assert one.manifest["run_id"] != two.manifest["run_id"]
    assert [f.manifest["state"] for f in (one, two)] == ["interrupted"] * 2
    logged = [entry["message"] for entry in browser.driver.get_log("browser")]
    assert [message for message in logged if "status of 422" not in message] == []


def links(browser: Browser, id_: str) -> list[str]:
    script = (
        "const e = document.getElementById(arguments[0]);"
        "return [e, ...e.querySelectorAll('a')].map((a) => a.href).filter(Boolean)"
    )
    return list(browser.driver.execute_script(script, id_))


def look_at_sizes_and_themes(browser: Browser) -> None:
    """Both themes, laptop and phone: nothing sticks out, nothing vanishes."""
    driver = browser.driver
    for theme in ("light", "dark"):
        if driver.execute_script("return document.documentElement.dataset.theme") != theme:
            browser.click("theme")
        for device, width, height in (("laptop", 1400, 1580), ("phone", 390, 844)):
            size = {"width": width, "height": height, "deviceScaleFactor": 1}
            phone = {**size, "mobile": device == "phone"}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
            fits = "return document.documentElement.scrollWidth <= innerWidth"
            until(lambda f=fits: driver.execute_script(f), f"{device} {theme}: no overflow")
            until(lambda w=width: canvas_fits(browser, w), "charts have the new size")
            browser.picture(f"{device}-{theme}")
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def canvas_fits(browser: Browser, width: int) -> bool:
    script = "return Math.max(...[...document.querySelectorAll('canvas')].map(c => c.clientWidth))"
    return 100 < int(browser.driver.execute_script(script)) <= width


def test_locusts_own_page_has_a_tab_with_the_same_figures(browser: Browser, live: Live) -> None:
    browser.driver.get(live.url("/?tab=agents"))
    body = "return document.body.innerText"
    until(lambda: "TTFT P99" in browser.driver.execute_script(body), "the tab is there", WAIT_S)
    until(lambda: "tool" in browser.driver.execute_script(body), "rows are there", WAIT_S)
    browser.picture("tab")
    page = live.page.get("/")
    assert "./agentload" in page
    rows = json.loads(live.page.get("/stats/requests"))["extended_stats"][0]["data"]
    shown = json.loads(live.page.get("/agentload/snapshot"))["run"]["classes"]
    assert [(r["turn_class"], r["turns"]) for r in rows[: len(shown)]] == [
        (c["turn_class"], str(c["turns"])) for c in shown
    ]


def test_half_an_hour_of_page_life_takes_no_more_memory(browser: Browser, live: Live) -> None:
    driver = browser.driver
    driver.get(live.url())
    until(browser.turns, "figures are shown", WAIT_S)
    quiet = "clearTimeout(agentload.page.timer); window.fetch = () => new Promise(() => {})"
    driver.execute_script(quiet)
    feed = """
    const [from, to, done] = arguments;
    (async () => {
      const answer = await window.stub;
      for (let i = from; i < to; i += 1) {
        const run = structuredClone(answer.run);
        run.run_id = "life";
        run.history = [run.history_fields.map((_, k) => (k ? (i * 7 + k) % 13 : i))];
        run.classes.forEach((c) => { c.turns += i; });
        agentload.update({ ...answer, run, busy: true });
        if (i % 50 === 0) await new Promise((r) => setTimeout(r));
      }
      done(agentload.page.history.length);
    })();
    """
    answer = live.page.get("/agentload/snapshot")
    driver.execute_script("window.stub = Promise.resolve(JSON.parse(arguments[0]))", answer)
    assert driver.execute_async_script(feed, 0, 600) == 600
    early = memory(driver)
    points = driver.execute_async_script(feed, 600, 1800)
    late = memory(driver)
    assert 600 <= points <= 1200
    assert late["nodes"] <= early["nodes"] + 20
    assert late["jsEventListeners"] <= early["jsEventListeners"] + 5
    assert late["heap"] <= early["heap"] + 1_500_000, (early, late)


def memory(driver: Any) -> dict[str, int]:
    """After garbage collection: bytes of the JavaScript heap, nodes, listeners."""
    driver.execute_cdp_cmd("HeapProfiler.enable", {})
    driver.execute_cdp_cmd("HeapProfiler.collectGarbage", {})
    counters = driver.execute_cdp_cmd("Memory.getDOMCounters", {})
    heap = driver.execute_cdp_cmd("Runtime.getHeapUsage", {})["usedSize"]
    return {**counters, "heap": int(heap)}


@pytest.mark.parametrize("action", ["start", "stop", "report/x"])
def test_nothing_is_started_or_stopped_but_by_the_page_itself(live: Live, action: str) -> None:
    path, token = f"/agentload/{action}", token_of(live)
    assert asked(live, path)[0] == 405
    assert asked(live, path, "POST")[0] == 403
    assert asked(live, path, "POST", token="x" * len(token))[0] == 403
    assert asked(live, path, "POST", token=token, Origin="https://evil.example")[0] == 403
    assert asked(live, path, "POST", token=token, Sec_Fetch_Site="cross-site")[0] == 403


@pytest.mark.parametrize("path", ["/swarm", "/stop", "/stats/reset"])
def test_pages_of_other_origins_cannot_use_locusts_own_routes(live: Live, path: str) -> None:
    assert asked(live, path, "POST", Origin="https://evil.example")[0] == 403


def test_options_that_are_not_shown_cannot_be_set_by_a_form(live: Live) -> None:
    for name in ("api_key_file", "run_dir", "settings", "agentload_run", "web_port"):
        answer = live.page.post("/swarm", **{name: "/etc/passwd"})
        assert not answer["success"]
        assert name in answer["message"]


def test_answers_hold_no_key_and_stay_with_their_origin(live: Live) -> None:
    paths = ["/", "/agentload", "/agentload/snapshot", "/stats/requests", "/logs"]
    for path in paths:
        status, headers, text = asked(live, path, Origin="https://evil.example")
        assert status == 200
        assert KEY not in text
        if path.startswith("/agentload"):
            assert "Access-Control-Allow-Origin" not in headers
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "default-src 'none'" in headers["Content-Security-Policy"]
            assert headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "{run}/../../../etc/passwd",
        "{run}/..%2f..%2f..%2fetc%2fpasswd",
        "{run}/%2e%2e/%2e%2e/etc/passwd",
        "{run}/..%252fmanifest.json",
        "../{run}/manifest.json",
        "..%2f..%2f/manifest.json",
        "{run}/spool.txt",
        "{run}/manifest.json%00.csv",
        "{run}//etc/passwd",
        "nobody/manifest.json",
    ],
)
def test_downloads_stay_in_the_run_folder(live: Live, path: str) -> None:
    run_id = json.loads(asked(live, "/agentload/snapshot")[2])["run"]["run_id"]
    assert asked(live, f"/agentload/files/{run_id}/manifest.json")[0] == 200
    status, _, text = asked(live, "/agentload/files/" + path.format(run=run_id))
    assert status in (301, 308, 404)
    assert "root:" not in text


def test_all_is_behind_the_login(server: Sim, tmp_path: Path) -> None:
    login = {"AGENTLOAD_WEB_USER": "me", "AGENTLOAD_WEB_PASSWORD": "secret-word"}
    live = started(tmp_path, server, "--web-login", env=login)
    try:
        for path in ("", "/snapshot", "/assets/page.js", "/files/x/turns.csv"):
            status, headers, text = asked(live, f"/agentload{path}")
            assert (status, "agentload-token" in text) == (302, False)
            assert "/login" in headers["Location"]
        for path in ("start", "stop", "report/x"):
            assert asked(live, f"/agentload/{path}", "POST")[0] in (302, 401, 403)
    finally:
        live.bench.close()


def test_the_page_takes_nothing_from_elsewhere() -> None:
    web = Path(__file__).parents[2] / "src/agentload/swarm/web"
    for name in ("templates/page.html.j2", "static/page.css", "static/page.js", "static/charts.js"):
        text = (web / name).read_text(encoding="utf-8")
        assert "https://" not in text
        assert "http://" not in text.replace("http://127.0.0.1", "")
    assert "Permission is hereby granted" in (web / "static/uPlot.LICENSE.txt").read_text("utf-8")
