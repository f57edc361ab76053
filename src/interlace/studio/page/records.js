// The page of a record: speedups by size with their limits, and a table of the same rows.

import { ask } from "./api.js";
import { COLOURS } from "./lanes.js";
import { $, legend, row, svg } from "./shapes.js";

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [300, 48, 24, 10, 30];

async function begin() {
  const record = await ask("records", {});
  if (record.name) {
    $("plot-title").textContent = record.name;
    $("about").textContent = record.command;
    $("protocol").textContent = record.protocol;
    const series = [...new Set(record.rows.map((one) => one.series))];
    $("legend").replaceChildren(...legend(series.map((name, at) => [name, COLOURS[at % COLOURS.length]])));
    $("rows").tBodies[0].append(...record.rows.map((one) => row(cells(one))));
    new ResizeObserver(() => draw(record.rows, series)).observe($("plot"));
  } else {
    $("about").textContent = "There is no record here. Write one on a GPU, and begin with it: interlace bench ffn --out record.json, then interlace studio record.json";
    $("table-card").hidden = true;
  }
  document.documentElement.dataset.busy = "false";
}

function cells(one) {
  const us = (value) => value.toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 });
  const ratio = (value) => (value === null ? "" : value.toFixed(3));
  const { series, size, floor_us, library, library_us, executor, executor_us } = one;
  return [series, size.toLocaleString("en"), us(floor_us), library, us(library_us), executor, us(executor_us), ratio(one.ratio), ratio(one.limit), ratio(one.target), ratio(one.layer)];
}

// Sizes double from tick to tick.
function draw(rows, series) {
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
  series.forEach((name, at) => {
    const color = COLOURS[at % COLOURS.length];
    const mine = rows.filter((one) => one.series === name).sort((a, b) => a.size - b.size);
    const path = (what) => mine.map((one) => `${x(one.size)},${y(one[what])}`).join(" ");
    picture.append(svg("polyline", { points: path("limit"), fill: "none", stroke: color, "stroke-dasharray": "5 4" }));
    picture.append(svg("polyline", { points: path("ratio"), fill: "none", stroke: color, "stroke-width": 2.5 }));
    for (const one of mine) {
      picture.append(svg("circle", { cx: x(one.size), cy: y(one.ratio), r: 4, fill: color }, svg("title", {}, `${name}, ${one.size}: ${one.ratio.toFixed(3)}, at most ${one.limit.toFixed(3)}`)));
      picture.append(svg("line", { x1: x(one.size) - 5, x2: x(one.size) + 5, y1: y(one.limit), y2: y(one.limit), stroke: color, "stroke-width": 2 }));
      if (one.target !== null) picture.append(svg("circle", { cx: x(one.size), cy: y(one.target), r: 5, fill: "none", stroke: color, "stroke-width": 1.5 }));
    }
  });
  $("plot").replaceChildren(picture);
}

// Round values of an axis, some six of them.
function ruled(low, high) {
  const power = 10 ** Math.floor(Math.log10((high - low) / 6));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= (high - low) / 6);
  const count = Math.floor(high / step) - Math.ceil(low / step) + 1;
  return Array.from({ length: count }, (_, at) => Number(((Math.ceil(low / step) + at) * step).toPrecision(6)));
}

begin();
