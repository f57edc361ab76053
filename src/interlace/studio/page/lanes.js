// Items of a plan or a trace over time, a lane for each worker; only what is visible is drawn.

import { Raster } from "./raster.js";

const RULER = 18;
const MOST_LANE = 22;
const LEAST_LANE = 3;
const MOST_ARROWS = 4000; // of a frame; those near the one before on their lane are left out

// Okabe and Ito's colours, which the colour-blind tell apart.
export const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a900", "#7f7f7f"];

// What each item is coloured by, as a CSS colour.
export function colours(plan, by) {
  const count = plan.op.length;
  const ramp = (part) => `hsl(${270 - 210 * part} 60% ${30 + 45 * part}%)`; // darker is earlier, whoever looks
  const shade = (part) => ramp(Math.round(part * 255) / 255);
  return (item) => {
    if (by === "sequence") return shade(item / Math.max(1, count - 1));
    if (by === "worker") return `hsl(${(plan.worker[item] * 137.5) % 360} 60% ${45 + 15 * (plan.worker[item] % 2)}%)`;
    if (by === "wave") return COLOURS[Math.floor(item / plan.workers) % COLOURS.length];
    return COLOURS[plan.op[item] % COLOURS.length];
  };
}

export class Lanes {
  // Of a span, if it is longer than the plan's own: that of several plans on one axis.
  constructor(canvas, plan, choose, span = plan.span_ns) {
    this.span = span;
    this.moved = () => {};
    this.tails = [];
    this.arrows = false;
    this.fault = null; // items that go wrong, and producers that should come before them
    this.canvas = canvas;
    this.plan = plan;
    this.lanes = [];
    plan.worker.forEach((worker, item) => (this.lanes[worker] ??= []).push(item));
    this.lanes = Array.from(this.lanes, (lane) => (lane ?? []).sort((a, b) => plan.wait[a] - plan.wait[b]));
    this.marks = { item: null, before: new Set(), behind: new Set() };
    this.raster = new Raster(plan, this.lanes);
    this.colour(colours(plan, "op"), () => true);
    this.view = [0, span];
    this.#listen(choose);
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  // What each item is coloured by, and whether it is one of those that are searched for.
  colour(color, only) {
    this.only = only;
    this.raster.colour(color, only);
    this.draw();
  }

  get #height() {
    return Math.max(LEAST_LANE, Math.min(MOST_LANE, 420 / this.lanes.length));
  }

  zoom(by, around = 0.5) {
    const [from, to] = this.view;
    const at = from + (to - from) * around;
    const span = Math.min(this.span, Math.max(100, (to - from) * by));
    this.#show(at - span * around, span);
  }

  pan(by) {
    const [from, to] = this.view;
    this.#show(from + (to - from) * by, to - from);
  }

  all() {
    this.#show(0, this.span);
  }

  // Bring an item into view.
  reveal(item) {
    const [from, to] = this.view;
    if (this.plan.end[item] < from || this.plan.start[item] > to) {
      this.#show(this.plan.start[item] - (to - from) / 2, to - from);
    }
  }

  #show(from, span) {
    const begin = Math.max(0, Math.min(from, this.span - span));
    this.view = [begin, begin + span];
    this.draw();
    this.moved(this.view);
  }

  // The same part of time as other lanes show.
  follow(view) {
    this.view = view;
    this.draw();
  }

  draw() {
    if (this.drawing) return;
    this.drawing = requestAnimationFrame(() => {
      this.drawing = 0;
      this.#paint();
    });
  }

  #paint() {
    const { canvas, plan } = this;
    const scale = devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const height = Math.ceil(RULER + this.lanes.length * this.#height);
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.style.height = `${height}px`;
      [canvas.width, canvas.height] = [wide, high];
    }
    const pen = canvas.getContext("2d");
    const image = pen.createImageData(wide, high);
    const free = this.#height > 5 ? 1 : 0;
    this.raster.paint(image, this.view, { top: RULER * scale, pitch: this.#height * scale, free: Math.round(free * scale) });
    pen.putImageData(image, 0, 0);
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.globalAlpha = 1;
    const style = getComputedStyle(canvas);
    const [text, load, ghost] = ["--text", "--load", "--ghost"].map((name) => style.getPropertyValue(name));
    this.#rule(pen, width, text);
    const [from, to] = this.view;
    const x = (time) => ((time - from) / (to - from)) * width;
    const frame = (item, color, lineWidth) => {
      if (plan.end[item] < from || plan.start[item] > to) return;
      Object.assign(pen, { strokeStyle: color, lineWidth });
      const [left, right] = [x(plan.start[item]), x(plan.end[item])].map(Math.round);
      const top = Math.round(RULER + plan.worker[item] * this.#height);
      pen.strokeRect(left, top, Math.max(2, right - left), Math.round(this.#height - free));
    };
    for (const item of this.marks.behind) frame(item, ghost, 2);
    for (const item of this.marks.before) frame(item, load, 2);
    if (this.marks.item !== null) frame(this.marks.item, text, 3);
    if (this.fault) this.#wrong(pen, frame, x, style.getPropertyValue("--error"));
    this.#mark(pen, x, text);
  }

  // Items of a fault, and the edges between them that nothing enforces.
  #wrong(pen, frame, x, error) {
    const { items, producers } = this.fault;
    const middle = (item) => RULER + (this.plan.worker[item] + 0.5) * this.#height;
    for (const item of [...producers, ...items]) frame(item, error, 2);
    pen.setLineDash([6, 4]);
    pen.beginPath();
    for (const producer of producers) {
      pen.moveTo(x(this.plan.end[producer]), middle(producer));
      pen.lineTo(x(this.plan.start[items[0]]), middle(items[0]));
    }
    pen.stroke();
    pen.setLineDash([]);
  }

  // The last wave of each op, as a line under the ruler, and hand-overs, from a producer's end to a consumer's start:
  // those of the chosen item, or all for which a consumer waited.
  #mark(pen, x, text) {
    pen.globalAlpha = 1;
    for (const { from, to, color } of this.tails) {
      pen.fillStyle = color;
      pen.fillRect(x(from), RULER - 4, Math.max(1, x(to) - x(from)), 3);
    }
    const { plan } = this;
    const middle = (item) => RULER + (plan.worker[item] + 0.5) * this.#height;
    const shown = this.arrows ? plan.op.keys() : [...this.marks.behind, this.marks.item ?? -1];
    const [from, to] = this.view;
    pen.strokeStyle = text;
    pen.lineWidth = 1;
    pen.globalAlpha = this.arrows ? 0.4 : 0.9;
    pen.beginPath();
    const apart = this.arrows ? (this.lanes.length * (to - from)) / MOST_ARROWS : 0;
    const last = this.lanes.map(() => -Infinity);
    for (const item of shown) {
      const producer = plan.after?.[item] ?? -1;
      if (producer < 0 || (this.arrows && plan.end[producer] <= plan.wait[item])) continue;
      if (plan.end[producer] > to || plan.start[item] < from || !this.only(item)) continue;
      if (plan.start[item] - last[plan.worker[item]] < apart) continue;
      last[plan.worker[item]] = plan.start[item];
      pen.moveTo(x(plan.end[producer]), middle(producer));
      pen.lineTo(x(plan.start[item]), middle(item));
    }
    pen.stroke();
  }

  #rule(pen, width, text) {
    const [from, to] = this.view;
    const rough = ((to - from) / width) * 110;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
    pen.fillStyle = text;
    pen.font = "11px system-ui, sans-serif";
    for (let at = Math.ceil(from / step) * step; at <= to; at += step) {
      const x = ((at - from) / (to - from)) * width;
      pen.fillRect(x, 12, 1, 5);
      pen.fillText(`${Number((at / 1000).toPrecision(6))} ${this.plan.unit}`, x + 3, 11);
    }
  }

  itemAt(x, y) {
    const lane = this.lanes[Math.floor((y - RULER) / this.#height)] ?? [];
    const [from, to] = this.view;
    const time = from + ((to - from) * x) / this.canvas.clientWidth;
    return lane.findLast((item) => this.plan.wait[item] <= time && time <= this.plan.end[item]);
  }

  #listen(choose) {
    let dragged = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      dragged = { x: event.offsetX, from: this.view[0], moved: false };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!dragged) return;
      const away = event.offsetX - dragged.x;
      dragged.moved ||= Math.abs(away) > 4;
      const span = this.view[1] - this.view[0];
      if (dragged.moved) this.#show(dragged.from - (away / this.canvas.clientWidth) * span, span);
    });
    this.canvas.addEventListener("pointerup", (event) => {
      const item = dragged && !dragged.moved ? this.itemAt(event.offsetX, event.offsetY) : undefined;
      dragged = null;
      if (item !== undefined) choose(item);
    });
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.deltaY) return;
      event.preventDefault();
      this.zoom(event.deltaY < 0 ? 0.8 : 1.25, event.offsetX / this.canvas.clientWidth);
    }, { passive: false });
  }
}
