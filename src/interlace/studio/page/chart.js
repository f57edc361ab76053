// Bytes read as a function of the size of the cache: the path so far, the ghost, and both bounds.

import { ask } from "./api.js";
import { $, bytes, svg } from "./shapes.js";

const [HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [190, 70, 150, 10, 26];
const PAUSE_MS = 250; // a curve costs many replays, so it waits until steps pause

export function chart(game) {
  let timer = 0;
  let last = null;
  new ResizeObserver(() => last && draw(last, game)).observe($("curve"));
  let cancel = new AbortController();
  game.addEventListener("position", () => {
    clearTimeout(timer);
    cancel.abort();
    cancel = new AbortController();
    const { signal } = cancel;
    timer = setTimeout(async () => {
      try {
        last = await ask("curve", game.request(), signal);
        draw(last, game);
      } catch (error) {
        if (error.name !== "AbortError") $("curve-text").textContent = error.message;
      }
    }, PAUSE_MS);
  });
}

function draw(found, { ghost, options, at }) {
  const width = Math.max(400, $("curve").clientWidth);
  const lines = [["leading order", found.leading, "var(--quiet)", "2 4"], ["safe bound", found.safe, "var(--quiet)", ""]];
  if (found.curves.ghost) lines.push([ghost, found.curves.ghost, "var(--ghost)", "6 4"]);
  lines.push(["you", found.curves.path, "var(--load)", ""]);
  const most = Math.max(...found.curves.path, ...(found.curves.ghost ?? []), found.safe[0]) * 1.05 || 1;
  const [low, high] = [found.bytes[0], found.bytes.at(-1)];
  const x = (value) => LEFT + ((width - LEFT - RIGHT) * (value - low)) / Math.max(1, high - low);
  const y = (value) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * value) / most;
  const picture = svg("svg", { width, height: HEIGHT, role: "img" });
  picture.setAttribute("aria-label", "Read from memory by size of the cache; the numbers stand below");
  for (const part of [0, 0.5, 1]) {
    const rule = svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(most * part), y2: y(most * part) });
    rule.style.stroke = "var(--line)";
    picture.append(rule, svg("text", { x: LEFT - 8, y: y(most * part) + 4, "text-anchor": "end" }, bytes(Math.round(most * part))));
  }
  const now = found.sizes.indexOf(options.capacity);
  if (now >= 0) {
    const mark = svg("line", { x1: x(found.bytes[now]), x2: x(found.bytes[now]), y1: TOP, y2: HEIGHT - BOTTOM });
    mark.style.stroke = "var(--hit)";
    mark.style.strokeWidth = 2;
    picture.append(mark);
  }
  const ends = [];
  for (const [name, values, color, dashes] of lines) {
    const points = values.flatMap((value, i) => (value > most ? [] : [`${x(found.bytes[i])},${y(value)}`])).join(" ");
    const line = svg("polyline", { points, fill: "none", "stroke-width": name === "you" ? 3 : 2, "stroke-dasharray": dashes });
    line.style.stroke = color;
    picture.append(line);
    ends.push([y(values.at(-1)), name, color]);
  }
  picture.append(...named(ends, width - RIGHT + 8), ...ticks(found, x));
  $("curve").replaceChildren(picture);
  $("curve-text").textContent = at
    ? `${found.sizes.length <= 16 ? found.sizes.map((size, i) => `${size}: ${bytes(found.curves.path[i])}`).join(" · ") : ""}`
    : "Take tiles, and the curve of what they read is drawn here.";
}

// Names at the ends of lines, moved apart where they would lie on each other.
function named(ends, x) {
  let free = HEIGHT - 12;
  return ends.sort((a, b) => b[0] - a[0]).map(([at, name, color]) => {
    free = Math.min(at + 4, free - 14);
    const text = svg("text", { x, y: free }, name);
    text.style.fill = color;
    return text;
  });
}

function ticks(found, x) {
  const every = Math.ceil(found.sizes.length / 10);
  return found.sizes.flatMap((size, i) => (i % every ? [] : [
    svg("text", { x: x(found.bytes[i]), y: HEIGHT - 8, "text-anchor": "middle" }, size.toLocaleString("en")),
  ]));
}
