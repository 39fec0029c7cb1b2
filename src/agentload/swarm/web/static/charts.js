// Charts of the live page: uPlot, with the page's colours and units.
"use strict";

const MAX_POINTS = 1200;

const format = {
  none: "–",
  seconds(value) {
    if (value === null || value === undefined) return this.none;
    if (value < 0.1) return `${Number((value * 1e3).toPrecision(3))} ms`;
    if (value < 1) return `${Math.round(value * 1e3)} ms`;
    return value < 100 ? `${value.toFixed(2)} s` : `${value.toFixed(0)} s`;
  },
  share(value) {
    return value === null || value === undefined ? this.none : `${(value * 100).toFixed(1)} %`;
  },
  number(value) {
    if (value === null || value === undefined) return this.none;
    return Number.isInteger(value) ? value.toLocaleString("en") : value.toFixed(value < 100 ? 1 : 0);
  },
  clock(seconds) {
    if (seconds === null || seconds === undefined) return this.none;
    const whole = Math.max(0, Math.round(seconds));
    const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
    const two = (n) => String(n).padStart(2, "0");
    return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
  },
};

// Columns of one run's history; thinned out when there are too many points for a screen.
class History {
  constructor(fields) {
    this.fields = fields;
    this.columns = Object.fromEntries(fields.map((name) => [name, []]));
  }

  add(rows) {
    for (const row of rows) this.fields.forEach((name, i) => this.columns[name].push(row[i]));
    while (this.length > MAX_POINTS) {
      const last = this.length - 1;
      for (const name of this.fields) {
        this.columns[name] = this.columns[name].filter((_, i) => i % 2 === last % 2);
      }
    }
  }

  get length() {
    return this.columns.time_s.length;
  }

  get lastSecond() {
    return this.length ? this.columns.time_s[this.length - 1] : -1;
  }
}

// Colours that people with any kind of colour vision tell apart, lighter on dark ground.
const COLOURS = {
  light: { a: "#0072b2", b: "#d55e00", c: "#009e73", d: "#cc79a7", e: "#6b6f76" },
  dark: { a: "#56b4e9", b: "#ff9d4d", c: "#2fd3a3", d: "#e69ac4", e: "#aab0b7" },
};

const CHARTS = [
  { title: "TTFT, all classes but cold", unit: "seconds", series: [
    { name: "ttft_p50_s", label: "P50", colour: "a" },
    { name: "ttft_p90_s", label: "P90", colour: "c", dash: [6, 4] },
    { name: "ttft_p99_s", label: "P99", colour: "b" }] },
  { title: "ITL, all classes but cold", unit: "seconds", series: [
    { name: "itl_p50_s", label: "P50", colour: "a" },
    { name: "itl_p99_s", label: "P99", colour: "b" }] },
  { title: "Requests at the server", unit: "number", whole: true, series: [
    { name: "running", label: "running", colour: "c" },
    { name: "waiting", label: "waiting", colour: "b", dash: [6, 4] }] },
  { title: "KV cache in use and cache hits", unit: "share", range: [0, 1], series: [
    { name: "kv_usage", label: "KV in use", colour: "d" },
    { name: "cache_hit_ratio", label: "cache hit", colour: "c", dash: [6, 4] }] },
  { title: "Users", unit: "number", whole: true, series: [
    { name: "users", label: "users", colour: "a" },
    { name: "in_flight", label: "turns in flight", colour: "e", dash: [6, 4] }] },
  { title: "Output tokens a second, by ended turns", unit: "number", series: [
    { name: "output_tokens_per_s", label: "tokens/s", colour: "a" }] },
];

function tickText(unit, value) {
  if (unit === "share") return `${Math.round(value * 100)} %`;
  return value === 0 ? "0" : format[unit](value);
}

class Chart {
  constructor(parent, spec) {
    this.spec = spec;
    this.figure = document.createElement("figure");
    this.figure.className = "chart";
    const caption = document.createElement("figcaption");
    caption.textContent = spec.title;
    const key = document.createElement("ul");
    key.className = "key";
    this.keys = spec.series.map((series) => {
      const item = document.createElement("li");
      const line = document.createElement("i");
      if (series.dash) line.className = "dash";
      const value = document.createElement("b");
      value.textContent = format.none;
      item.append(line, `${series.label} `, value);
      key.append(item);
      return { line, value };
    });
    this.plot = document.createElement("div");
    this.plot.className = "plot";
    this.plot.setAttribute("role", "img");
    this.figure.append(caption, key, this.plot);
    parent.append(this.figure);
    this.data = [[], ...spec.series.map(() => [])];
    new ResizeObserver(() => this.resize()).observe(this.plot);
    this.draw();
  }

  // Made anew when the theme changes: uPlot takes colours once.
  draw() {
    const style = getComputedStyle(document.documentElement);
    const colours = COLOURS[document.documentElement.dataset.theme] || COLOURS.light;
    const grid = { stroke: style.getPropertyValue("--line"), width: 1 };
    const axis = { stroke: style.getPropertyValue("--soft"), grid, ticks: { ...grid, size: 4 }, font: "12px Roboto, Arial, sans-serif" };
    const unit = this.spec.unit;
    if (this.uplot) this.uplot.destroy();
    this.uplot = new uPlot({
      width: Math.max(this.plot.clientWidth, 120),
      height: 180,
      legend: { show: false },
      cursor: { sync: { key: "time" }, drag: { x: false, y: false }, y: false },
      scales: {
        x: { time: false },
        y: { range: (_, low, high) => this.spec.range || [0, high > 0 ? high * 1.08 : 1] },
      },
      axes: [
        { ...axis, size: 30, values: (_, ticks) => ticks.map((t) => format.clock(t)) },
        { ...axis, size: 62, incrs: this.spec.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000] : undefined,
          values: (_, ticks) => ticks.map((t) => tickText(unit, t)) },
      ],
      series: [{}, ...this.spec.series.map((series, i) => {
        this.keys[i].line.style.borderColor = colours[series.colour];
        return { stroke: colours[series.colour], width: 2, dash: series.dash, points: { show: false }, spanGaps: false };
      })],
      hooks: { setCursor: [() => this.tell()] },
    }, this.data, this.plot);
  }

  resize() {
    const width = this.plot.clientWidth;
    if (width && width !== this.uplot.width) this.uplot.setSize({ width, height: 180 });
  }

  show(history, window_) {
    const prefix = (name) => (window_ === "run" && `run_${name}` in history.columns ? `run_${name}` : name);
    this.data = [history.columns.time_s, ...this.spec.series.map((s) => history.columns[prefix(s.name)])];
    this.uplot.setData(this.data);
    this.tell();
  }

  // The values under the pointer, else the last ones.
  tell() {
    const at = this.uplot ? this.uplot.cursor.idx : null;
    const last = this.data[0].length - 1;
    const index = at === null || at === undefined ? last : at;
    const said = this.spec.series.map((series, i) => {
      const value = index >= 0 ? this.data[i + 1][index] : null;
      const text = format[this.spec.unit](value);
      if (this.keys[i].value.textContent !== text) this.keys[i].value.textContent = text;
      return `${series.label} ${text}`;
    });
    if (index === last) this.plot.setAttribute("aria-label", `${this.spec.title}, now: ${said.join(", ")}`);
  }
}
