// The page of records: speedups by size with their limits, what counters saw, and tables of the same rows.

import { ask } from "./api.js";
import { meant } from "./help.js";
import { COLOURS } from "./lanes.js";
import { $, bytes, legend, percent, row, svg } from "./shapes.js";

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [300, 48, 24, 10, 30];
// One of each record, around (0, 0).
const MARKS = ["M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "M-4-4h8v8h-8z", "M0-5L5 4H-5z", "M0-6L6 0L0 6L-6 0z"];

let records = [];
let series = []; // names of lines, which have a colour each

async function begin() {
  const found = await ask("records", {});
  if (found.name) {
    records = found.records.map((record, at) => ({ ...record, at, hidden: false, mark: MARKS[at % MARKS.length] }));
    series = [...new Set(records.flatMap(({ rows }) => rows.map((one) => one.series)))];
    $("plot-title").textContent = records.length > 1 ? `${records.length} records` : records[0].title;
    files();
    $("filter").hidden = false;
    $("search").addEventListener("input", show);
    new ResizeObserver(draw).observe($("plot"));
    show();
  } else {
    $("about").textContent = "There is no record here. Write one on a GPU, and begin with it: interlace bench ffn --out record.json, then interlace studio record.json";
  }
  document.documentElement.dataset.busy = "false";
}

// A box for each record, with what measured it.
function files() {
  $("files").hidden = false;
  for (const record of records) {
    const label = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
    const mark = svg("svg", { viewBox: "-7 -7 14 14", class: "mark", "aria-hidden": "true" }, svg("path", { d: record.mark }));
    const told = [record.command, record.protocol].filter(Boolean).join("; ");
    label.append(box, mark, `${record.title} `, Object.assign(document.createElement("span"), { className: "quiet", textContent: told }));
    $("files").append(label);
    box.addEventListener("change", () => {
      record.hidden = !box.checked;
      show();
    });
  }
}

// Rows of the records that are shown, of the names that are searched for; each with its record.
function visible(kind) {
  const text = $("search").value.trim().toLowerCase();
  const open = records.filter((record) => !record.hidden);
  return open.flatMap((record) => record[kind].filter((one) => one.series.toLowerCase().includes(text)).map((one) => ({ ...one, record })));
}

function show() {
  const [rows, counted] = [visible("rows"), visible("counted")];
  const lines = series.filter((name) => rows.some((one) => one.series === name));
  $("legend").replaceChildren(...legend(lines.map((name) => [name, color(name)])));
  $("rows").tBodies[0].replaceChildren(...rows.map((one) => row(cells(one))));
  $("timed-card").hidden = !series.length;
  $("plot").hidden = !series.length;
  const most = (size) => Math.max(...counted.filter((one) => one.size === size).map((one) => one.read_bytes));
  $("counted").tBodies[0].replaceChildren(...counted.map((one) => countedRow(one, most(one.size))));
  $("counted-card").hidden = records.every((record) => !record.counted.length);
  draw();
}

const color = (name) => COLOURS[series.indexOf(name) % COLOURS.length];
const us = (value) => value.toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });

function cells(one) {
  const ratio = (value) => (value === null ? "" : value.toFixed(3));
  const { size, floor_us, library, library_us, executor, executor_us } = one;
  return [one.series, size.toLocaleString("en"), us(floor_us), library, us(library_us), executor, us(executor_us), ratio(one.ratio), ratio(one.limit), ratio(one.target), ratio(one.layer), one.record.title];
}

// Bytes and hits have bars beside their numbers, bytes as a part of the most of that size.
function countedRow(one, most) {
  const expected = one.expected_bytes === null ? "" : bytes(Math.round(one.expected_bytes));
  const line = row([one.series, one.size, us(one.us), bytes(one.read_bytes), expected, bytes(one.written_bytes), percent(one.hit_rate), one.verdict, one.record.title]);
  for (const [at, share, fill] of [[3, one.read_bytes / most, "var(--load)"], [6, one.hit_rate, "var(--hit)"]]) {
    const bar = svg("svg", { viewBox: "0 0 60 8", class: "bar", "aria-hidden": "true" }, svg("rect", { width: 60 * share, height: 8, rx: 2 }));
    bar.lastChild.style.fill = fill;
    line.children[at].prepend(bar);
  }
  return line;
}

// Sizes double from tick to tick.
function draw() {
  const rows = visible("rows");
  if (!rows.length) return $("plot").replaceChildren();
  const width = Math.max(400, $("plot").clientWidth);
  const sizes = [...new Set(rows.map((one) => one.size))].sort((a, b) => a - b);
  const values = rows.flatMap((one) => [one.ratio, one.limit, one.target ?? 1]);
  const [low, high] = [Math.min(1, ...values) * 0.95, Math.max(1, ...values) * 1.05];
  const [first, last] = [sizes[0], sizes.at(-1)].map(Math.log2);
  const x = (size) => LEFT + ((width - LEFT - RIGHT) * (Math.log2(size) - first)) / (last - first || 1);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * (value - low)) / (high - low);
  const picture = svg("svg", { width, height: HEIGHT, role: "img", "aria-label": "Speedup by size; the numbers stand below" });
  for (const value of ruled(low, high)) {
    const line = svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: value === 1 ? "one" : "rule" });
    picture.append(line, svg("text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  }
  let free = -Infinity;
  for (const size of sizes) {
    if (x(size) < free) continue;
    picture.append(svg("text", { x: x(size), y: HEIGHT - 8, "text-anchor": "middle" }, size.toLocaleString("en")));
    free = x(size) + 40;
  }
  for (const record of records) {
    for (const name of series) picture.append(...curve(rows.filter((one) => one.record === record && one.series === name), x, y));
  }
  return $("plot").replaceChildren(picture);
}

// One line of one record: speedups with the record's mark, limits, and targets.
function curve(rows, x, y) {
  if (!rows.length) return [];
  const { record, series: name } = rows[0];
  const [stroke, mine] = [color(name), rows.toSorted((a, b) => a.size - b.size)];
  const path = (what) => mine.map((one) => `${x(one.size)},${y(one[what])}`).join(" ");
  const parts = [
    svg("polyline", { points: path("limit"), fill: "none", stroke, "stroke-dasharray": "5 4" }),
    svg("polyline", { points: path("ratio"), fill: "none", stroke, "stroke-width": 2.5 }),
  ];
  for (const one of mine) {
    const told = `${name}, ${one.size}: ${one.ratio.toFixed(3)}, at most ${one.limit.toFixed(3)}; ${record.title}`;
    const place = `translate(${x(one.size)} ${y(one.ratio)})`;
    parts.push(svg("path", { d: record.mark, transform: place, fill: stroke }, svg("title", {}, told)));
    parts.push(svg("line", { x1: x(one.size) - 5, x2: x(one.size) + 5, y1: y(one.limit), y2: y(one.limit), stroke, "stroke-width": 2 }));
    if (one.target !== null) parts.push(svg("circle", { cx: x(one.size), cy: y(one.target), r: 5, fill: "none", stroke, "stroke-width": 1.5 }));
  }
  return parts;
}

// Round values of an axis, some six of them.
function ruled(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 6));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= (high - low) / 6);
  const count = Math.floor(high / step) - Math.ceil(low / step) + 1;
  return Array.from({ length: count }, (_, at) => Number(((Math.ceil(low / step) + at) * step).toPrecision(6)));
}

addEventListener("keydown", (event) => {
  if (event.key !== "/" || !meant(event) || !records.length) return;
  $("search").focus();
  event.preventDefault();
});

begin();
