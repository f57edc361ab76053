// Items of a plan or a trace over time, a lane for each worker; only what is visible is drawn.

const RULER = 18;
const MOST_LANE = 22;
const LEAST_LANE = 3;

// Okabe and Ito's colours, which the colour-blind tell apart.
export const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#b5a900", "#7f7f7f"];

// What each item is coloured by, as a CSS colour.
export function colours(plan, by) {
  const count = plan.op.length;
  const ramp = (part) => `hsl(${270 - 210 * part} 60% ${30 + 45 * part}%)`; // darker is earlier, whoever looks
  return (item) => {
    if (by === "sequence") return ramp(item / Math.max(1, count - 1));
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
    this.canvas = canvas;
    this.plan = plan;
    this.lanes = [];
    plan.worker.forEach((worker, item) => (this.lanes[worker] ??= []).push(item));
    this.lanes = Array.from(this.lanes, (lane) => (lane ?? []).sort((a, b) => plan.wait[a] - plan.wait[b]));
    this.marks = { item: null, before: new Set(), behind: new Set() };
    this.color = colours(plan, "op");
    this.only = () => true;
    this.view = [0, span];
    this.#listen(choose);
    new ResizeObserver(() => this.draw()).observe(canvas);
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
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.globalAlpha = 1;
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(canvas);
    const [text, load, ghost] = ["--text", "--load", "--ghost"].map((name) => style.getPropertyValue(name));
    this.#rule(pen, width, text);
    const [from, to] = this.view;
    const x = (time) => ((time - from) / (to - from)) * width;
    let filled = "";
    this.lanes.forEach((lane, worker) => {
      const y = RULER + worker * this.#height;
      const tall = Math.max(1, this.#height - (this.#height > 5 ? 1 : 0));
      let painted = -1;
      for (let at = this.#first(lane, from); at < lane.length && plan.wait[lane[at]] <= to; at += 1) {
        const item = lane[at];
        const [wait, start, end] = [x(plan.wait[item]), x(plan.start[item]), x(plan.end[item])];
        const marked = item === this.marks.item || this.marks.before.has(item) || this.marks.behind.has(item);
        if (!marked && end < painted + 0.5) continue; // within a pixel that is painted
        painted = end;
        const color = this.color(item);
        if (color !== filled) pen.fillStyle = filled = color;
        const shade = this.only(item) ? 1 : 0.15;
        if (start - wait > 0.5) {
          pen.globalAlpha = 0.35 * shade;
          pen.fillRect(wait, y, start - wait, tall);
        }
        pen.globalAlpha = shade;
        pen.fillRect(start, y, Math.max(0.5, end - start - 0.5), tall);
        if (!marked) continue;
        pen.globalAlpha = 1;
        pen.strokeStyle = item === this.marks.item ? text : this.marks.before.has(item) ? load : ghost;
        pen.lineWidth = item === this.marks.item ? 3 : 2;
        pen.strokeRect(start, y, Math.max(2, end - start), tall);
      }
    });
    this.#mark(pen, x, text);
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
    for (const item of shown) {
      const producer = plan.after?.[item] ?? -1;
      if (producer < 0 || (this.arrows && plan.end[producer] <= plan.wait[item])) continue;
      if (plan.end[producer] > to || plan.start[item] < from || !this.only(item)) continue;
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

  // The first item of a lane that may reach into view: lanes are in the order of time.
  #first(lane, from) {
    let [low, high] = [0, lane.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.plan.end[lane[middle]] < from) low = middle + 1;
      else high = middle;
    }
    return Math.max(0, low - 1);
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
