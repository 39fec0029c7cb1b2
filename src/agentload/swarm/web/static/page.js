// The live page: asks for the figures once a second and puts them in place. It makes elements only
// when there is something new to show, so that a page may stay open for days.
"use strict";

const EVERY_MS = 1000;
const byId = (id) => document.getElementById(id);
const token = document.querySelector("meta[name=agentload-token]").content;
const STATES = { idle: "no run yet", warm_up: "warm-up", running: "running", stopping: "stopping", complete: "complete", interrupted: "interrupted" };
const page = { history: null, runId: null, charts: [], busy: false, seen: "", timer: null, window: "recent", wasBusy: null };

// -- small helpers -------------------------------------------------------------------------------

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function light(element, value) {
  element.dataset.light = value || "unknown";
  element.title = value || "unknown";
}

// Rows of a table, put into the cells that are there. A row: {cells: [...], sum: bool}.
function fill(table, heads, rows) {
  if (!table.tHead) {
    const row = table.createTHead().insertRow();
    for (const head of heads) {
      const cell = document.createElement("th");
      cell.scope = "col";
      cell.textContent = head;
      row.append(cell);
    }
    table.createTBody();
  }
  const body = table.tBodies[0];
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((row, r) => {
    const line = body.rows[r] || body.insertRow();
    line.classList.toggle("sum", Boolean(row.sum));
    row.cells.forEach((cell, c) => {
      let place = line.cells[c];
      if (!place) {
        place = document.createElement(c ? "td" : "th");
        if (!c) place.scope = "row";
        line.append(place);
      }
      if (typeof cell === "object" && cell) {
        const lamp = place.querySelector(".lamp") || place.insertBefore(document.createElement("i"), place.firstChild);
        lamp.className = "lamp";
        light(lamp, cell.light);
        if (!place.lastChild || place.lastChild === lamp) place.append("");
        if (place.lastChild.nodeValue !== ` ${cell.text}`) place.lastChild.nodeValue = ` ${cell.text}`;
      } else {
        put(place, String(cell));
      }
    });
  });
}

function tile(id, value, small, lamp) {
  const element = byId(id);
  put(element.querySelector(".value"), value);
  put(element.querySelector(".small"), small);
  if (lamp !== undefined) light(element.querySelector(".lamp"), lamp);
}

function figuresOf(run, name) {
  return run.classes.find((c) => c.turn_class === name);
}

// T2+ where several classes go into it, else the only one that is not cold, else cold.
function laterTurns(run) {
  const others = run.classes.filter((c) => !["cold", "all"].includes(c.turn_class));
  return figuresOf(run, "T2+") || others[0] || figuresOf(run, "cold");
}

// -- the parts of the page -------------------------------------------------------------------------

function showHead(run, answer) {
  const chip = byId("state");
  const state = run ? run.state : "idle";
  chip.dataset.state = state;
  put(chip, STATES[state]);
  put(byId("stage"), run && run.stage && run.state === "running" ? `stage ${run.stage}` : "");
  put(byId("elapsed"), format.clock(run && run.now_s));
  put(byId("eta"), format.clock(run && run.eta_s));
  put(byId("users"), run ? `${run.users} / ${run.target_users}` : format.none);
  put(byId("in-flight"), run ? String(run.in_flight) : format.none);
  byId("stop").hidden = !answer.busy;
  byId("stop").disabled = Boolean(run) && run.state === "stopping";
  byId("new").disabled = answer.busy;
  byId("go").disabled = answer.busy;
  byId("report").disabled = answer.busy || page.reporting;
}

function showTiles(run) {
  const every = figuresOf(run, "all");
  const later = laterTurns(run);
  const { load, server } = run;
  const lag = `loop lag P99 ${format.seconds(load.loop_lag_p99_s)}, CPU ${format.share(load.cpu_share)}`;
  tile("tile-load", load.level || format.none, load.workers > 1 ? `${load.workers} workers, ${lag}` : lag, load.light);
  const judged = run.slos.reduce((sum, slo) => sum + slo.judged, 0);
  const goodput = every && every.goodput_per_s !== null ? `goodput ${format.number(every.goodput_per_s)} turns/s` : "";
  const limits = run.slos.length ? goodput || `${judged} turns judged` : "no limits in the scenario";
  tile("tile-slo", judged && every ? format.share(every.slo_share) : format.none, limits, run.goodput_light);
  const pair = (f) => (f ? `${format.seconds(f.p50_s)} / ${format.seconds(f.p99_s)}` : format.none);
  tile("tile-ttft", pair(later && later.ttft), later ? `${later.turn_class}, ${later.ttft.samples.toLocaleString("en")} turns` : "");
  tile("tile-itl", pair(later && later.itl), later ? `${later.itl.samples.toLocaleString("en")} gaps, longest ${format.seconds(later.itl.max_s)}` : "");
  tile("tile-tokens", format.number(every && every.output_tokens_per_s), every ? `${every.output_tokens.toLocaleString("en")} tokens in ${format.clock(run.measured_s)}` : "");
  const hit = every && every.cache_hit_ratio !== null ? every.cache_hit_ratio : server.prefix_hit_ratio;
  const source = every && every.cache_hit_ratio !== null ? "of prompt tokens, by usage" : hit !== null ? "by /metrics" : "not measured";
  tile("tile-cache", format.share(hit), source);
  const queue = server.running === null ? format.none : `${format.number(server.running)} / ${format.number(server.waiting)}`;
  const more = server.preemptions ? `, ${format.number(server.preemptions)} preemptions` : "";
  tile("tile-server", queue, server.kv_usage === null ? "no /metrics" : `KV in use ${format.share(server.kv_usage)}${more}`);
  const kinds = every ? Object.entries(every.errors_by_class).map(([name, n]) => `${name} ${n}`).join(", ") : "";
  const rate = every && every.errors ? "bad" : every && every.successes ? "good" : "unknown";
  tile("tile-errors", every ? String(every.errors) : format.none, kinds, rate);
  const reasons = byId("reasons");
  const text = load.reasons.join("\n");
  reasons.hidden = !load.reasons.length;
  if (page.reasons !== text) {
    page.reasons = text;
    reasons.replaceChildren(...load.reasons.map((reason) => {
      const item = document.createElement("li");
      item.textContent = reason;
      return item;
    }));
  }
}

const HEADS = ["Class", "Arm", "Turns", "In flight", "TTFT P50", "P90", "P99", "ITL P50", "P99", "Jitter P50", "Stalls", "Tokens/s", "Cache hit", "SLO met", "Errors"];

function classRow(f) {
  const kinds = Object.entries(f.errors_by_class).map(([name, n]) => `${name} ${n}`).join(", ");
  return { sum: ["T2+", "all"].includes(f.turn_class), cells: [
    f.turn_class, f.arm, f.turns.toLocaleString("en"), f.in_flight,
    format.seconds(f.ttft.p50_s), format.seconds(f.ttft.p90_s), format.seconds(f.ttft.p99_s),
    format.seconds(f.itl.p50_s), format.seconds(f.itl.p99_s), format.seconds(f.jitter.p50_s),
    f.stalls === null ? format.none : f.stalls, format.number(f.output_tokens_per_s),
    format.share(f.cache_hit_ratio), format.share(f.slo_share), kinds || "0"] };
}

function showTables(run, earlier) {
  fill(byId("classes"), HEADS, run.classes.map(classRow));
  const warm = run.state === "warm_up" ? "Warm-up: these turns do not count. " : "";
  const left = run.classes.length ? "" : "No turn was measured yet.";
  put(byId("classes-note"), warm + left);
  byId("slo-card").hidden = !run.slos.length;
  const names = { ttft_s: "TTFT", tpot_s: "TPOT", itl_p99_s: "ITL P99", e2e_s: "E2E", failed: "failed" };
  fill(byId("slos"), ["Class", "Limits", "Judged", "Met", "Missed by"], run.slos.map((slo) => ({ cells: [
    { light: slo.light, text: slo.turn_class },
    Object.entries(slo.limits).map(([name, limit]) => `${names[name]} ${format.seconds(limit)}`).join(", "),
    slo.judged.toLocaleString("en"), format.share(slo.share),
    Object.entries(slo.misses).filter(([, n]) => n).map(([name, n]) => `${names[name]} ${n}`).join(", ") || "0"] })));
  byId("earlier-card").hidden = !earlier.length;
  fill(byId("earlier"), ["Run", "Arm", "State", "Turns", "TTFT P50", "P99", "ITL P50", "P99", "Cache hit", "SLO met", "Errors", "Turns as CSV"], earlier.map((old) => {
    const every = figuresOf(old, "all");
    const later = laterTurns(old);
    return { cells: [old.run_id, old.arm, `${old.state}, ${old.load.level || format.none}`, every ? every.turns.toLocaleString("en") : 0,
      format.seconds(later && later.ttft.p50_s), format.seconds(later && later.ttft.p99_s),
      format.seconds(later && later.itl.p50_s), format.seconds(later && later.itl.p99_s),
      format.share(every && every.cache_hit_ratio), format.share(every && every.slo_share), every ? every.errors : 0, ""] };
  }));
  linkEarlier(earlier);
}

function linkEarlier(earlier) {
  earlier.forEach((old, r) => {
    const place = byId("earlier").tBodies[0].rows[r].cells[11];
    let link = place.querySelector("a");
    if (!link) {
      link = document.createElement("a");
      place.replaceChildren(link);
    }
    put(link, "turns.csv");
    const href = fileUrl(old.run_id, "turns.csv");
    if (link.getAttribute("href") !== href) link.setAttribute("href", href);
  });
}

function fileUrl(runId, name) {
  return `agentload/files/${encodeURIComponent(runId)}/${encodeURIComponent(name)}`;
}

function size(bytes) {
  return bytes < 1e3 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} KB` : `${(bytes / 1e6).toFixed(1)} MB`;
}

function showFiles(run, files) {
  put(byId("folder"), run.run_dir);
  const list = byId("files");
  while (list.children.length > files.length) list.lastChild.remove();
  files.forEach((file, i) => {
    const item = list.children[i] || list.appendChild(document.createElement("li"));
    if (!item.firstChild) {
      const link = document.createElement("a");
      link.setAttribute("download", "");
      const note = document.createElement("span");
      note.className = "small";
      item.append(link, " ", note);
    }
    put(item.firstChild, file.name);
    put(item.lastChild, size(file.size_bytes));
    const href = fileUrl(run.run_id, file.name);
    if (item.firstChild.getAttribute("href") !== href) item.firstChild.setAttribute("href", href);
  });
  const link = byId("report-link");
  link.hidden = !files.some((file) => file.name === "report.html");
  link.href = `${fileUrl(run.run_id, "report.html")}?show`;
}

function showCharts() {
  if (!page.charts.length) page.charts = CHARTS.map((spec) => new Chart(byId("charts"), spec));
  for (const chart of page.charts) chart.show(page.history, page.window);
}

// One answer of the server. The only way figures come onto the page.
function update(answer) {
  const run = answer.run;
  if (page.wasBusy && !answer.busy) put(byId("report-note"), "");
  page.wasBusy = answer.busy;
  showHead(run, answer);
  byId("empty").hidden = Boolean(run);
  byId("run").hidden = !run;
  if (!run) return;
  if (run.run_id !== page.runId) {
    page.runId = run.run_id;
    page.history = new History(run.history_fields);
    put(byId("report-note"), "");
  }
  page.history.add(run.history.filter((row) => row[0] > page.history.lastSecond));
  put(byId("error"), String(run.relative_error * 100));
  showTiles(run);
  showTables(run, answer.earlier);
  showFiles(run, answer.files);
  showCharts();
  document.title = `${STATES[run.state]} – Agents`;
}

// -- talking to the server -------------------------------------------------------------------------

async function ask() {
  const after = page.history ? `?after=${encodeURIComponent(`${page.runId}@${page.history.lastSecond}`)}` : "";
  const answer = await fetch(`agentload/snapshot${after}`, { cache: "no-store" });
  if (answer.redirected) location.reload();
  if (!answer.ok) throw new Error(`status ${answer.status}`);
  update(await answer.json());
}

async function tick() {
  clearTimeout(page.timer);
  try {
    if (!document.hidden) await ask();
    byId("offline").hidden = true;
  } catch (error) {
    byId("offline").hidden = false;
  }
  clearTimeout(page.timer);
  page.timer = setTimeout(tick, EVERY_MS);
}

function post(path, body) {
  return fetch(`agentload/${path}`, { method: "POST", body, headers: { "X-Agentload-Token": token } });
}

function showFaults(form, faults) {
  const texts = {};
  for (const fault of faults) texts[fault.field] = [texts[fault.field], fault.message].filter(Boolean).join("\n");
  let first = null;
  for (const field of form.elements) {
    if (!field.name) continue;
    const text = texts[field.name] || "";
    put(byId(`${field.name}-fault`), text);
    if (text) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
    if (text && !first) first = field;
  }
  put(byId("form-fault"), texts[""] || "");
  if (first) first.focus();
}

async function start(event) {
  event.preventDefault();
  const form = byId("start");
  const go = byId("go");
  go.disabled = true;
  put(go, "Asking the server …");
  try {
    const answer = await post("start", new URLSearchParams(new FormData(form)));
    const said = await answer.json();
    showFaults(form, said.faults || [{ field: "", message: said.message }]);
    if (answer.ok) {
      openForm(false);
      await tick();
    }
  } catch (error) {
    showFaults(form, [{ field: "", message: `Locust did not answer: ${error.message}` }]);
  } finally {
    put(go, "Start");
    go.disabled = false;
  }
}

async function report() {
  page.reporting = true;
  byId("report").disabled = true;
  put(byId("report-note"), "Reading all rows of the run …");
  try {
    const answer = await post(`report/${encodeURIComponent(page.runId)}`);
    const said = await answer.json();
    put(byId("report-note"), answer.ok ? "The report is made." : said.message);
  } catch (error) {
    put(byId("report-note"), `Locust did not answer: ${error.message}`);
  } finally {
    page.reporting = false;
    tick();
  }
}

function openForm(open) {
  byId("start").hidden = !open;
  byId("new").setAttribute("aria-expanded", String(open));
  if (open) byId("scenario").focus();
}

// Locust's own page keeps the theme under the same name.
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  for (const chart of page.charts) chart.draw();
}

function begin() {
  const wished = localStorage.getItem("theme");
  const dark = wished ? wished === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  setTheme(dark ? "dark" : "light");
  byId("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", theme);
    setTheme(theme);
  });
  byId("new").addEventListener("click", () => openForm(byId("start").hidden));
  byId("cancel").addEventListener("click", () => { openForm(false); byId("new").focus(); });
  byId("start").addEventListener("submit", start);
  byId("start").addEventListener("keydown", (event) => { if (event.key === "Escape") byId("cancel").click(); });
  byId("stop").addEventListener("click", () => { byId("stop").disabled = true; post("stop").then(tick, tick); });
  byId("report").addEventListener("click", report);
  for (const radio of document.querySelectorAll("input[name=window]")) {
    radio.addEventListener("change", () => { page.window = radio.value; if (page.history) showCharts(); });
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) tick(); });
  tick();
}

window.agentload = { page, update };
begin();
