// What stands beside the grid: counters, bounds, and the cache.

import { $, bytes, many, panelName, svg } from "./shapes.js";

const MOST_FREE = 24; // places that are drawn while they are empty

export function beside(game) {
  game.addEventListener("setting", () => {
    $("least_loads").textContent = (game.setting.least_loads / game.setting.chunks).toLocaleString("en");
    $("safe_bytes").textContent = bytes(game.setting.safe_bytes);
    $("leading_bytes").textContent = bytes(game.setting.leading_bytes);
    $("bounds").title = game.setting.source;
  });
  game.addEventListener("position", () => {
    counters(game);
    bar(game);
    cache(game);
  });
}

function counters({ position, ghost }) {
  for (const name of ["loads", "hits"]) $(name).textContent = position[name].toLocaleString("en");
  $("load_bytes").textContent = bytes(position.load_bytes);
  for (const cell of document.querySelectorAll(".ghost-column")) {
    cell.hidden = !position.ghost;
    if (!position.ghost) continue;
    const value = position.ghost[cell.dataset.ghost];
    if (cell.tagName === "TH") cell.textContent = ghost;
    else cell.textContent = cell.dataset.ghost === "load_bytes" ? bytes(value) : value.toLocaleString("en");
  }
}

// Bytes read so far, of the path and of the ghost, against the bounds of the whole product.
function bar({ position, setting, ghost }) {
  const bounds = [["safe", setting.safe_bytes], ["leading order", setting.leading_bytes]];
  const rows = [["you", position.load_bytes, "var(--load)"]];
  if (position.ghost) rows.push([ghost, position.ghost.load_bytes, "var(--ghost)"]);
  const most = Math.max(...bounds.map(([, value]) => value), ...rows.map(([, value]) => value)) * 1.02;
  const x = (value) => (280 * value) / most;
  const picture = svg("svg", { viewBox: "0 0 280 34", preserveAspectRatio: "none", "aria-hidden": "true" });
  rows.forEach(([, value, color], row) => {
    const height = 14 / rows.length;
    const shape = svg("rect", { x: 0, y: 2 + row * height, width: x(value), height: height - 1, rx: 2 });
    shape.style.fill = color;
    picture.append(shape);
  });
  for (const [, value] of bounds) {
    const line = svg("line", { x1: x(value), x2: x(value), y1: 0, y2: 20 });
    line.style.stroke = "var(--text)";
    line.style.strokeWidth = 1.5;
    picture.append(line);
  }
  picture.append(...labels(bounds, x));
  const said = [...rows, ...bounds].map(([name, value]) => `${name} ${bytes(value)}`).join(", ");
  $("bar").setAttribute("aria-label", `Read from memory beside the bounds: ${said}`);
  $("bar").replaceChildren(picture);
}

function labels(bounds, x) {
  const same = Math.abs(x(bounds[0][1]) - x(bounds[1][1])) < 60;
  const shown = same ? [["bounds", Math.max(bounds[0][1], bounds[1][1])]] : bounds;
  return shown.map(([name, value]) => {
    const anchor = x(value) > 200 ? "end" : x(value) < 30 ? "start" : "middle";
    return svg("text", { x: x(value), y: 30, "text-anchor": anchor }, name);
  });
}

function cache({ position, setting, options }) {
  const { rows, chunks } = setting;
  const last = new Map(position.last.map(([panel, , loads]) => [panel, loads]));
  const items = position.held.map(([panel, units]) => {
    const item = document.createElement("li");
    const name = panelName(panel, rows);
    item.textContent = units === chunks ? name : `${name} ${units}/${chunks}`;
    if (last.has(panel)) item.classList.add(last.get(panel) ? "load" : "hit");
    if (panel === position.next_out) item.classList.add("out");
    return item;
  });
  const panels = options.unit === "panels" && options.cache === "lru" ? options.capacity : 0;
  for (let free = items.length; free < Math.min(panels, MOST_FREE); free += 1) {
    const item = document.createElement("li");
    item.className = "free";
    item.textContent = "free";
    items.push(item);
  }
  $("cache").replaceChildren(...items);
  $("cache-use").textContent = `${options.capacity.toLocaleString("en")} ${options.unit}, last used first`;
  $("cache-next").textContent = next(position, options, rows);
}

function next(position, options, rows) {
  if (!position.at) return "Empty: the first tile loads both of its panels.";
  if (options.cache === "opt") {
    const listed = position.held.length > options.capacity && options.unit === "panels";
    return `OPT decides with hindsight: any of these may still be there${listed ? `, at most ${options.capacity} at once` : ""}.`;
  }
  if (position.next_out === null) return "There is room for one more.";
  return `Next out: ${panelName(position.next_out, rows)}, used longest ago.`;
}

export const summary = (position) =>
  `${many(position.at, "tile")}: ${many(position.loads, "load")}, ${many(position.hits, "hit")}, ${bytes(position.load_bytes)} read`;
