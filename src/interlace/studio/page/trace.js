// The page of traces: lanes, hand-overs and tails, and where the time went; two traces are on one axis.

import { ask } from "./api.js";
import { meant } from "./help.js";
import { Lanes, colours } from "./lanes.js";
import { $, legend, many, percent, row, time } from "./shapes.js";

let all = []; // each trace with its lanes: { trace, lanes }
let current = null; // the one of which an item is chosen
let chosen = 0;

async function begin() {
  const { timelines } = await ask("timeline", {});
  if (!timelines) {
    $("about").textContent = "There is no trace here. Write one, and begin with it: interlace trace ffn --out trace.json, then interlace studio trace.json";
    $("lanes-tools").hidden = true;
    document.querySelector(".side").hidden = true;
    return done();
  }
  const names = [...new Set(timelines.flatMap((trace) => trace.ops.map((op) => op.name)))];
  const span = Math.max(...timelines.map((trace) => trace.span_ns));
  all = timelines.map((trace, at) => laned(numbered(trace, names), at, span));
  for (const { lanes } of all) lanes.moved = (view) => all.forEach((other) => other.lanes !== lanes && other.lanes.follow(view));
  current = all[0];
  $("about").textContent = timelines.length > 1 ? "Two traces on one axis, each from its first arrival." : "";
  $("names").replaceChildren(...names.map((name) => new Option(name)));
  $("legend").replaceChildren(...legend(names.map((name, number) => [name, color(number)])));
  $("summaries").replaceChildren(...all.flatMap(({ trace }) => summary(trace)));
  choose(current, 0);
  done();
}

function done() {
  document.documentElement.dataset.busy = "false";
}

const color = (number) => colours({ op: [number] }, "op")(0);

// Ops by their numbers among those of all traces, so that one op has one colour.
function numbered(trace, names) {
  const number = trace.ops.map((op) => names.indexOf(op.name));
  trace.names = names;
  trace.op = trace.op.map((op) => number[op]);
  trace.handed = new Map();
  trace.after.forEach((producer, item) => {
    if (producer < 0) return;
    if (!trace.handed.has(producer)) trace.handed.set(producer, []);
    trace.handed.get(producer).push(item);
  });
  return trace;
}

function laned(trace, at, span) {
  const heading = Object.assign(document.createElement("h3"), { textContent: trace.title });
  const about = Object.assign(document.createElement("p"), { className: "quiet" });
  about.textContent = `${many(trace.op.length, "item")} on ${many(trace.lanes.length, "lane")}, ${time(trace.span_ns, trace.unit)} in all`;
  const canvas = Object.assign(document.createElement("canvas"), { className: "lanes", tabIndex: 0 });
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", `Lanes over time of trace ${at + 1}; its items are told by number`);
  $("traces").append(heading, about, canvas);
  const one = { trace };
  one.lanes = new Lanes(canvas, trace, (item) => choose(one, item), span);
  one.lanes.tails = trace.summary.ops.map((op) => ({ from: op.tail_from, to: op.end, color: color(trace.names.indexOf(op.op)) }));
  return one;
}

function summary(trace) {
  const { busy, waiting, idle, handed, ops } = trace.summary;
  const table = (heads, rows, kind) => {
    const made = Object.assign(document.createElement("table"), { className: kind });
    if (heads) {
      const head = made.createTHead().insertRow();
      head.append(...heads.map((text) => Object.assign(document.createElement("th"), { scope: "col", textContent: text })));
    }
    made.createTBody().append(...rows.map(row));
    return made;
  };
  const heading = Object.assign(document.createElement("h3"), { textContent: trace.title, hidden: all.length < 2 });
  const shares = [["busy", percent(busy)], ["waiting", percent(waiting)], ["idle", percent(idle)]];
  shares.push(["hand-overs waited for", handed.count.toLocaleString("en")]);
  if (handed.count) shares.push(["each, median", time(handed.median, trace.unit)]);
  const lines = ops.map((op) => [op.op, op.items.toLocaleString("en"), op.waves.toFixed(1), percent(op.tail), time(op.waiting_ns, trace.unit)]);
  return [heading, table(null, shares, "counters"), table(["op", "items", "waves", "tail idle", "waits"], lines, "ops")];
}

// ------------------------------------------------------------ one item

// Whether an item is of the ops whose names have what is searched for.
function filter(trace) {
  const text = $("op").value.trim().toLowerCase();
  const shown = trace.names.map((name) => name.toLowerCase().includes(text));
  return (item) => shown[trace.op[item]];
}

function choose(one, item) {
  const { trace, lanes } = one;
  for (const other of all) other.lanes.marks = { item: null, before: new Set(), behind: new Set() };
  current = one;
  chosen = Math.max(0, Math.min(item, trace.op.length - 1));
  $("item").value = chosen;
  $("item").max = trace.op.length - 1;
  const before = trace.after[chosen] < 0 ? [] : [trace.after[chosen]];
  const behind = trace.handed.get(chosen) ?? [];
  lanes.marks = { item: chosen, before: new Set(before), behind: new Set(behind) };
  lanes.reveal(chosen);
  $("detail").replaceChildren(...described(one, before, behind));
  for (const other of all) other.lanes.draw();
}

const named = (trace, item) => `${trace.names[trace.op[item]]}, tile ${trace.tile[item]}`;

function described(one, before, behind) {
  const { trace } = one;
  const line = (text, kind) => Object.assign(document.createElement("p"), { textContent: text, className: kind ?? "" });
  const [wait, start, end] = ["wait", "start", "end"].map((name) => trace[name][chosen]);
  const parts = [line(named(trace, chosen), "name")];
  if (all.length > 1) parts.push(line(trace.title, "quiet"));
  parts.push(line(`${trace.lanes[trace.worker[chosen]]}; waits ${time(start - wait, trace.unit)}, works ${time(end - start, trace.unit)}, from ${time(start, trace.unit)}`));
  if (before.length) parts.push(line(`waited for, which ended ${time(start - trace.end[before[0]], trace.unit)} before its start`, "before"), list(one, before));
  else if (trace.handed.size) parts.push(line("waited for nothing"));
  if (behind.length) parts.push(line("handed over to", "behind"), list(one, behind));
  return parts;
}

function list(one, items) {
  const most = 64;
  const shown = document.createElement("ul");
  shown.append(...items.slice(0, most).map((item) => {
    const entry = document.createElement("li");
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: named(one.trace, item) });
    button.addEventListener("click", () => choose(one, item));
    entry.append(button);
    return entry;
  }));
  if (items.length > most) shown.append(Object.assign(document.createElement("li"), { textContent: `and ${items.length - most} more` }));
  return shown;
}

// The nearest item of those searched for, before the chosen one or behind it.
function step(by) {
  const shown = filter(current.trace);
  for (let item = chosen + by; item >= 0 && item < current.trace.op.length; item += by) {
    if (shown(item)) return choose(current, item);
  }
  return undefined;
}

function recolour() {
  let count = 0;
  for (const { trace, lanes } of all) {
    lanes.colour(colours(trace, $("colours").value), filter(trace));
    count += trace.op.reduce((sum, _, item) => sum + lanes.only(item), 0);
  }
  $("found").textContent = $("op").value ? `${many(count, "item")} found` : "";
}

// ------------------------------------------------------------ controls

const zoom = (by) => current?.lanes.zoom(by);
$("colours").addEventListener("change", recolour);
$("op").addEventListener("input", recolour);
$("arrows").addEventListener("change", () => {
  for (const { lanes } of all) {
    lanes.arrows = $("arrows").checked;
    lanes.draw();
  }
});
$("item").addEventListener("change", () => choose(current, $("item").valueAsNumber || 0));
$("previous").addEventListener("click", () => step(-1));
$("next").addEventListener("click", () => step(1));
$("in").addEventListener("click", () => zoom(0.5));
$("out").addEventListener("click", () => zoom(2));
$("all").addEventListener("click", () => current?.lanes.all());

const keys = { n: () => step(1), b: () => step(-1), "+": () => zoom(0.5), "-": () => zoom(2), 0: () => current.lanes.all() };
const along = { ArrowLeft: -0.2, ArrowRight: 0.2 };
addEventListener("keydown", (event) => {
  if (!meant(event)) return;
  const act = keys[event.key] ?? (event.target.matches(".lanes") && along[event.key] ? () => current.lanes.pan(along[event.key]) : undefined);
  if (!act || !current) return;
  act();
  event.preventDefault();
});

begin();
