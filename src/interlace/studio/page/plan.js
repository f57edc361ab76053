// The page of a plan: lanes, grids, and what one item waits for.

import { ask } from "./api.js";
import { meant } from "./help.js";
import { Lanes, colours } from "./lanes.js";
import { pixels } from "./raster.js";
import { $, legend, many, percent, row, svg, time as us } from "./shapes.js";

const TENSOR = 64; // pixels of the longer side of a tensor
const GRID = 180; // pixels of the longer side of a grid
const PREPARING = 300; // ms until a plan that is being simulated is asked for again
// What to say, by the kind of a fault, of items that should come before those that go wrong.
const LATE = {
  DeadlockError: "waits for what is dispatched later",
  IntraOpRaceError: "touches what is written, before it or after it, by",
  ThresholdError: "posted by",
};
let plan = null;
let lanes = null;
let chosen = 0;
let asked = 0; // items so far, of which only the last one counts
let grids = [];

async function begin() {
  while ((plan = await ask("plan", {})).preparing) {
    $("about").textContent = plan.preparing;
    await new Promise((resolve) => setTimeout(resolve, PREPARING));
  }
  if (!plan.name) {
    $("about").textContent = "There is no plan here. Write one, and begin with it: interlace plan ffn --out plan.json, then interlace studio plan.json";
    for (const id of ["lanes-tools", "lanes", "proof"]) $(id).hidden = true;
    document.querySelector(".side").hidden = true;
    return done();
  }
  $("lanes-title").textContent = plan.name;
  const { workers, dispatch, policy, order, device } = plan;
  $("about").textContent = `${many(plan.op.length, "item")}, ${many(workers, "worker")}, ${dispatch} dispatch, ${policy}; ${order}; simulated on ${device}`;
  $("proof").textContent = plan.proved ? `Proved: ${plan.proof}.` : `Not proved. ${plan.proof}`;
  $("proof").classList.toggle("error", !plan.proved);
  if (plan.fault) $("fault").replaceChildren(...faultParts(plan.fault));
  $("item").max = plan.op.length - 1;
  $("op").append(new Option("all", ""), ...plan.ops.map((op, number) => new Option(op.name, number)));
  $("legend").replaceChildren(...legend(plan.ops.map((op, number) => [op.name, colours({ ...plan, op: [number] }, "op")(0)])));
  if (plan.worker) {
    lanes = new Lanes($("lanes"), plan, choose);
    lanes.fault = plan.fault && { items: plan.fault.items.items, producers: plan.fault.producers.items };
    $("time").textContent = `${us(plan.span_ns)} in all`;
    summary();
  } else {
    $("lanes").hidden = $("summary").hidden = true;
    $("time").textContent = `No times: ${plan.why}`;
    plan.worker = plan.op.map(() => 0);
  }
  makeGrids();
  recolour();
  await choose(plan.fault?.items.items[0] ?? 0);
  done();
}

// Which items go wrong, what should come before them, and a tile that has no item.
function faultParts({ kind, items, producers, tile }) {
  const parts = [];
  const told = (text, found) => {
    const line = document.createElement("div");
    line.append(Object.assign(document.createElement("span"), { textContent: text }));
    if (found) line.append(list(found));
    parts.push(line);
  };
  const late = LATE[kind] ?? "nothing makes it wait for";
  if (items.items.length) told("goes wrong:", items);
  if (producers.items.length) told(`${late}:`, producers);
  if (tile) told(`no item runs op '${plan.ops[tile[0]].name}', tile number ${tile[1]}: it is crossed out in the grid`);
  $("fault").hidden = !parts.length;
  return parts;
}

function done() {
  document.documentElement.dataset.busy = "false";
}

function summary() {
  const { busy, waiting, idle, ops } = plan.summary;
  $("counters").tBodies[0].append(row(["busy", percent(busy)]), row(["waiting", percent(waiting)]), row(["idle", percent(idle)]));
  $("ops").tBodies[0].append(...ops.map((op) => row([op.op, op.items.toLocaleString("en"), op.waves.toFixed(1), percent(op.tail)])));
}

// ------------------------------------------------------------ grids

function makeGrids() {
  const itemsOf = plan.ops.map(() => []);
  plan.op.forEach((op, item) => itemsOf[op].push(item));
  grids = plan.ops.map((op, number) => {
    const figure = document.createElement("figure");
    const canvas = document.createElement("canvas");
    const caption = document.createElement("figcaption");
    const columns = op.grid.at(-1);
    const rows = op.grid.slice(0, -1).reduce((all, n) => all * n, 1);
    const cell = Math.max(1, Math.min(18, GRID / Math.max(rows, columns)));
    canvas.width = Math.ceil(columns * cell);
    canvas.height = Math.ceil(rows * cell);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `Tiles of ${op.name}: ${rows} by ${columns}`);
    caption.textContent = `${op.name}, ${op.grid.join(" × ")}`;
    figure.append(canvas, caption);
    const grid = { canvas, rows, columns, cell, items: itemsOf[number], tiles: new OffscreenCanvas(columns, rows) };
    canvas.addEventListener("click", (event) => {
      const tile = Math.floor(event.offsetY / cell) * columns + Math.floor(event.offsetX / cell);
      const item = grid.items.find((candidate) => plan.tile[candidate] === tile);
      if (item !== undefined) choose(item);
    });
    return grid;
  });
  $("grids").replaceChildren(...grids.map(({ canvas }) => canvas.parentElement));
}

// Tiles by their colours, a pixel each.
function colourGrids(color, only) {
  for (const { tiles, columns, rows, items } of grids) {
    const shades = [0.15, 1].map((alpha) => pixels([...new Set(items.map(color))], alpha));
    const image = new ImageData(columns, rows);
    const words = new Uint32Array(image.data.buffer);
    for (const item of items) words[plan.tile[item]] = shades[Number(only(item))].get(color(item));
    tiles.getContext("2d").putImageData(image, 0, 0);
  }
}

function drawGrids() {
  const marks = lanes?.marks ?? { before: new Set(), behind: new Set() };
  const style = getComputedStyle(document.body);
  const [text, load, ghost] = ["--text", "--load", "--ghost"].map((name) => style.getPropertyValue(name));
  const error = style.getPropertyValue("--error");
  const wrong = plan.fault ? [...plan.fault.items.items, ...plan.fault.producers.items] : [];
  const framed = [[marks.behind, ghost], [marks.before, load], [[chosen], text]];
  grids.forEach(({ canvas, tiles, columns, rows, cell }, op) => {
    const pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = false;
    pen.clearRect(0, 0, canvas.width, canvas.height);
    pen.drawImage(tiles, 0, 0, columns * cell, rows * cell);
    const gap = cell > 3 ? 1 : 0;
    for (let column = 1; gap && column <= columns; column += 1) pen.clearRect(column * cell - gap, 0, gap, canvas.height);
    for (let row = 1; gap && row <= rows; row += 1) pen.clearRect(0, row * cell - gap, canvas.width, gap);
    pen.lineWidth = 2;
    for (const [items, color] of framed) {
      pen.strokeStyle = color;
      for (const item of items) {
        if (plan.op[item] !== op) continue;
        const side = Math.max(1, cell - gap - 2);
        pen.strokeRect((plan.tile[item] % columns) * cell + 1, Math.floor(plan.tile[item] / columns) * cell + 1, side, side);
      }
    }
    pen.strokeStyle = error;
    for (const item of wrong) {
      if (plan.op[item] !== op) continue;
      if (plan.tile[item] < 0 || plan.tile[item] >= rows * columns) {
        pen.strokeRect(1, 1, canvas.width - 2, canvas.height - 2); // it lies outside, so the whole grid has the frame
        continue;
      }
      const inset = Math.min(4, cell / 4);
      pen.strokeRect((plan.tile[item] % columns) * cell + inset, Math.floor(plan.tile[item] / columns) * cell + inset, cell - gap - 2 * inset, cell - gap - 2 * inset);
    }
    if (plan.fault?.tile?.[0] === op) cross(pen, (plan.fault.tile[1] % columns) * cell, Math.floor(plan.fault.tile[1] / columns) * cell, cell);
  });
}

function cross(pen, x, y, side) {
  pen.beginPath();
  for (const [from, to] of [[0, side], [side, 0]]) {
    pen.moveTo(x + from, y);
    pen.lineTo(x + to, y + side);
  }
  pen.stroke();
}

// Whether an item is one of the op, the worker and the tile that are asked for, which are read once for all items.
function filter() {
  const [op, worker, tile] = ["op", "worker", "tile"].map((id) => ($(id).value === "" ? null : Number($(id).value)));
  const one = (wanted, found) => wanted === null || wanted === found;
  return (item) => one(op, plan.op[item]) && one(worker, plan.worker[item]) && one(tile, plan.tile[item]);
}

function recolour() {
  const [color, only] = [colours(plan, $("colours").value), filter()];
  lanes?.colour(color, only);
  colourGrids(color, only);
  drawGrids();
}

// ------------------------------------------------------------ one item

async function choose(item) {
  const mine = (asked += 1);
  chosen = Math.max(0, Math.min(item, plan.op.length - 1));
  $("item").value = chosen;
  document.documentElement.dataset.busy = "true";
  const found = await ask("plan/item", { item: chosen });
  if (mine !== asked) return;
  done();
  const before = new Set(found.waits.flatMap((wait) => wait.items));
  const behind = new Set(found.dependants.items);
  if (lanes) {
    lanes.marks = { item: chosen, before, behind };
    lanes.reveal(chosen);
  }
  $("detail").replaceChildren(...described(found));
  lanes?.draw();
  drawGrids();
}

function described(found) {
  const line = (text, kind) => Object.assign(document.createElement("p"), { textContent: text, className: kind ?? "" });
  const parts = [line(found.name, "name")];
  if (lanes) {
    const [wait, start, end, worker] = ["wait", "start", "end", "worker"].map((name) => plan[name][found.item]);
    parts.push(line(`worker ${worker}; waits ${us(start - wait)}, works ${us(end - start)}, from ${us(start)}`));
  }
  const texts = (regions) => regions.map(({ text }) => text).join(", ") || "nothing";
  parts.push(line(`reads ${texts(found.reads)}`), line(`writes ${texts(found.writes)}`), pictures(found));
  parts.push(line(found.posts < 0 ? "posts nothing" : `posts semaphore ${found.posts}`));
  if (!found.waits.length) parts.push(line("waits for nothing"));
  for (const wait of found.waits) {
    const which = wait.count === 1 ? `semaphore ${wait.first}` : `${wait.count} semaphores from ${wait.first}`;
    parts.push(line(`waits for ${which} to reach ${wait.threshold}${wait.k ? `, before k = ${wait.k}` : ""}; posted by`, "before"), list(wait));
  }
  if (found.dependants.items.length) parts.push(line("what waits for its semaphore", "behind"), list(found.dependants));
  return parts;
}

// Each tensor as a box, the last dimension across and the one before down, with what the item touches of it.
function pictures({ reads, writes }) {
  const all = Object.assign(document.createElement("div"), { className: "tensors" });
  for (const [regions, kind] of [[reads, "read"], [writes, "written"]]) {
    for (const { tensor, shape, lo, hi } of regions) {
      const [rows, columns] = [shape.at(-2) ?? 1, shape.at(-1) ?? 1];
      const scale = TENSOR / Math.max(rows, columns);
      const [height, width] = [rows, columns].map((extent) => Math.max(5, extent * scale));
      const along = (at, extent, size) => [(lo.at(at) ?? 0) / extent, (hi.at(at) ?? 1) / extent].map((part) => part * size);
      const [[left, right], [top, bottom]] = [along(-1, columns, width), along(-2, rows, height)];
      const box = svg("rect", { x: 0.5, y: 0.5, width, height });
      const region = svg("rect", { class: kind, x: left + 0.5, y: top + 0.5, width: Math.max(2, right - left), height: Math.max(2, bottom - top) });
      const figure = document.createElement("figure");
      figure.append(svg("svg", { width: width + 1, height: height + 1, "aria-hidden": "true" }, box, region));
      figure.append(Object.assign(document.createElement("figcaption"), { textContent: `${tensor} ${shape.join(" × ")}, ${kind}` }));
      all.append(figure);
    }
  }
  return all;
}

function list({ items, names, more }) {
  const shownItems = document.createElement("ul");
  shownItems.append(...items.map((item, at) => {
    const entry = document.createElement("li");
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: names[at] });
    button.addEventListener("click", () => choose(item));
    entry.append(button);
    return entry;
  }));
  if (more) shownItems.append(Object.assign(document.createElement("li"), { textContent: `and ${more} more` }));
  return shownItems;
}

// ------------------------------------------------------------ controls

for (const id of ["op", "colours"]) $(id).addEventListener("change", recolour);
for (const id of ["worker", "tile"]) $(id).addEventListener("input", recolour);
$("item").addEventListener("change", () => choose($("item").valueAsNumber || 0));
$("previous").addEventListener("click", () => choose(chosen - 1));
$("next").addEventListener("click", () => choose(chosen + 1));
$("in").addEventListener("click", () => lanes?.zoom(0.5));
$("out").addEventListener("click", () => lanes?.zoom(2));
$("all").addEventListener("click", () => lanes?.all());

const keys = { n: () => choose(chosen + 1), b: () => choose(chosen - 1), "+": () => lanes?.zoom(0.5), "-": () => lanes?.zoom(2), 0: () => lanes?.all() };
const along = { ArrowLeft: () => lanes?.pan(-0.2), ArrowRight: () => lanes?.pan(0.2) };
addEventListener("keydown", (event) => {
  if (!meant(event)) return;
  const act = keys[event.key] ?? (event.target === $("lanes") ? along[event.key] : undefined);
  if (!act || !plan?.name) return;
  act();
  event.preventDefault();
});

begin();
