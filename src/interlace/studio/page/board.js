// The picture of the grid: panels at its sides, tiles, the path and the ghost's; clicks, drags and arrow keys.

import { panelName, svg } from "./shapes.js";

const SIDE = 64; // of the panels, with the captions
const WHOLE = 480; // of the tiles, wherever they are neither too small nor too large
const NUMBERED = 22; // the smallest tile that has room for the number of its step
const MOST_ARROWS = 300;

export class Board {
  #game;
  #root;
  #svg = null;
  #tiles = [];
  #panels = [];
  #shown = [];
  #focus = 0;
  #hint = null;
  #painting = null;
  #cell = 0;

  constructor(root, game, say) {
    this.#game = game;
    this.#root = root;
    this.say = say;
    game.addEventListener("setting", () => this.#build());
    game.addEventListener("step", () => this.#update());
    game.addEventListener("position", () => this.#update());
  }

  hint(step) {
    this.#hint = step === null ? null : step >> 2;
    this.#update();
  }

  #build() {
    const { rows, columns } = this.#game.setting;
    const cell = Math.max(12, Math.min(110, WHOLE / Math.max(rows, columns)));
    this.#cell = cell;
    const [width, height] = [SIDE + columns * cell + 6, SIDE + rows * cell + 6];
    this.#svg = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Tiles and panels" });
    this.#svg.append(
      svg("text", { class: "caption", x: SIDE + (columns * cell) / 2, y: 10 }, "column panels"),
      svg("text", { class: "caption", transform: `translate(10 ${SIDE + (rows * cell) / 2}) rotate(-90)` }, "row panels"),
    );
    this.#panels = Array.from({ length: rows + columns }, (_, panel) => this.#panel(panel, rows));
    const grid = svg("g", { role: "grid", "aria-label": `${rows} by ${columns} tiles` });
    this.#tiles = [];
    for (let row = 0; row < rows; row += 1) {
      const line = svg("g", { role: "row" });
      for (let column = 0; column < columns; column += 1) {
        const at = { transform: `translate(${SIDE + column * cell} ${SIDE + row * cell})` };
        const tile = svg("g", { class: "tile", role: "gridcell", tabindex: -1, ...at });
        tile.dataset.tile = this.#tiles.length;
        tile.append(svg("rect", { x: 1.5, y: 1.5, width: cell - 3, height: cell - 3, rx: cell / 10 }));
        this.#tiles.push(tile);
        line.append(tile);
      }
      grid.append(line);
    }
    this.trails = svg("g", { "aria-hidden": "true" });
    this.#svg.append(svg("g", { "aria-hidden": "true" }, ...this.#panels), grid, this.trails);
    this.#root.replaceChildren(this.#svg);
    this.#shown = this.#tiles.map(() => "");
    this.#hint = null;
    this.#focus = 0;
    this.#tiles[0].setAttribute("tabindex", 0);
    this.#listen();
    this.#update();
  }

  #panel(panel, rows) {
    const cell = this.#cell;
    const along = panel < rows ? { x: SIDE - 42, y: SIDE + panel * cell + 1.5, width: 36, height: cell - 3 } : {
      x: SIDE + (panel - rows) * cell + 1.5, y: SIDE - 42, width: cell - 3, height: 36,
    };
    const [x, y] = [along.x + along.width / 2, along.y + along.height / 2];
    const narrow = cell < NUMBERED;
    const shift = { label: narrow ? [0, 0] : [0, -7], count: [0, 8] };
    return svg("g", { class: "panel" },
      svg("rect", { ...along, rx: 4 }),
      svg("text", { x: x + shift.label[0], y: y + shift.label[1] }, narrow ? "" : panelName(panel, rows)),
      svg("text", { class: "count", x: x + shift.count[0], y: y + shift.count[1] }),
    );
  }

  // ------------------------------------------------------------ showing

  #update() {
    if (!this.#svg) return;
    const { path, at, position, setting } = this.#game;
    const steps = new Map(path.slice(0, at).map((step, index) => [step >> 2, index]));
    const costs = position?.costs ?? [];
    this.#tiles.forEach((tile, number) => this.#show(tile, number, steps.get(number), costs, at));
    if (position) this.#showPanels(position, setting);
    this.#draw(at);
  }

  #show(tile, number, step, costs, at) {
    const { columns, chunks } = this.#game.setting;
    const cell = this.#cell;
    const cost = step === undefined ? "" : costs[step] ?? "";
    const hinted = this.#hint === number && step === undefined;
    const now = [step ?? "", cost, step === at - 1, hinted].join();
    if (this.#shown[number] === now) return;
    this.#shown[number] = now;
    tile.classList.toggle("taken", step !== undefined);
    tile.classList.toggle("last", step === at - 1 && step !== undefined);
    tile.classList.toggle("hint", hinted);
    tile.dataset.cost = cost === "" ? "" : Math.ceil(cost / chunks);
    while (tile.childNodes.length > 1) tile.lastChild.remove();
    const corner = Math.max(3, cell / 12);
    const size = { "font-size": Math.min(15, cell * 0.34) };
    const write = (text, y) => tile.append(svg("text", { class: "number", x: corner + 2, y, ...size }, text));
    if (step !== undefined && cell >= NUMBERED) write(String(step + 1), corner + size["font-size"] * 0.6);
    if (hinted) tile.append(svg("text", { class: "star", x: cell / 2, y: cell / 2 }, "★"));
    const radius = Math.max(1.5, cell / 18);
    const circle = (dot) => svg("circle", { cx: cell - (2.2 + 2.8 * dot) * radius - 2, cy: cell - 2.2 * radius - 2, r: radius });
    if (cost !== "" && chunks === 1) {
      for (let dot = 0; dot < cost; dot += 1) tile.append(circle(dot));
    } else if (cost > 0 && cell >= 2 * NUMBERED) {
      write(`+${cost}`, cell - corner - size["font-size"] * 0.6);
    }
    const place = `row ${Math.floor(number / columns)}, column ${number % columns}`;
    const state = step === undefined ? (hinted ? "open, the hint" : "open") : `step ${step + 1}, ${cost} loads`;
    tile.setAttribute("aria-label", `${place}: ${state}`);
  }

  #showPanels(position, { rows, chunks }) {
    const held = new Map(position.held);
    const last = new Map(position.last.map(([panel, , loads]) => [panel, loads]));
    const most = Math.max(1, ...position.loads_of);
    const reloads = position.loads_of.map((loads) => Math.max(0, loads / chunks - 1) / Math.max(1, most / chunks - 1));
    this.#panels.forEach((element, panel) => {
      const state = last.has(panel) ? (last.get(panel) ? "load" : "hit") : held.has(panel) ? "held" : "";
      element.setAttribute("class", `panel ${state} ${position.next_out === panel ? "out" : ""}`);
      const loads = this.#cell < NUMBERED ? 0 : position.loads_of[panel] / chunks;
      element.lastChild.textContent = loads ? `${Number.isInteger(loads) ? loads : loads.toFixed(1)}×` : "";
      element.style.setProperty("--reloads", reloads[panel]);
    });
    const columns = this.#panels.length - rows;
    if (!this.#svg.classList.contains("heat")) return;
    this.#tiles.forEach((tile, number) => {
      const both = reloads[Math.floor(number / columns)] + reloads[rows + (number % columns)];
      tile.style.setProperty("--reloads", both / 2);
    });
  }

  heat(on) {
    this.#svg.classList.toggle("heat", on);
    this.#update();
  }

  #draw(at) {
    const ghost = this.#game.position?.ghost?.path.slice(0, at) ?? [];
    const of = (path, name, offset) => {
      const points = path.map((step) => this.#centre(step >> 2, offset));
      const trail = svg("polyline", { class: `trail ${name}`, points: points.map(([x, y]) => `${x},${y}`).join(" ") });
      const arrows = points.length > MOST_ARROWS ? points.slice(-2) : points;
      return [trail, ...arrows.slice(1).map((to, index) => arrow(arrows[index], to, name))];
    };
    this.trails.replaceChildren(...of(ghost, "ghost", this.#cell / 8), ...of(this.#game.taken, "", 0));
  }

  #centre(tile, offset) {
    const { columns } = this.#game.setting;
    const cell = this.#cell;
    return [SIDE + ((tile % columns) + 0.5) * cell + offset, SIDE + (Math.floor(tile / columns) + 0.5) * cell + offset];
  }

  // ------------------------------------------------------------ taking tiles

  #listen() {
    const at = (event) => document.elementFromPoint(event.clientX, event.clientY)?.closest?.(".tile");
    this.#svg.addEventListener("pointerdown", (event) => {
      const tile = at(event);
      if (!tile || event.button !== 0) return;
      this.#painting = Number(tile.dataset.tile);
      this.#svg.setPointerCapture(event.pointerId);
      this.#take(this.#painting, event.shiftKey, true);
    });
    this.#svg.addEventListener("pointermove", (event) => {
      const tile = this.#painting === null ? null : at(event);
      if (!tile || Number(tile.dataset.tile) === this.#painting) return;
      for (const crossed of this.#between(this.#painting, Number(tile.dataset.tile))) {
        if (this.#game.stepOf(crossed) < 0) this.#take(crossed, event.shiftKey, false);
      }
      this.#painting = Number(tile.dataset.tile);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      this.#svg.addEventListener(end, () => { this.#painting = null; });
    }
    this.#svg.addEventListener("keydown", (event) => this.#key(event));
  }

  // The tiles that a straight line crosses, so that a fast drag leaves none out.
  #between(from, to) {
    const { columns } = this.#game.setting;
    const [row, column] = [Math.floor(from / columns), from % columns];
    const [down, right] = [Math.floor(to / columns) - row, (to % columns) - column];
    const steps = Math.max(Math.abs(down), Math.abs(right));
    return Array.from({ length: steps }, (_, i) => {
      const part = (i + 1) / steps;
      return (row + Math.round(down * part)) * columns + column + Math.round(right * part);
    });
  }

  #take(tile, columnFirst, told) {
    this.#move(tile);
    if (!this.#game.take(tile, columnFirst ? 1 : 0) && told) {
      this.say(`taken already, as step ${this.#game.stepOf(tile) + 1}`);
    }
  }

  #key(event) {
    const { rows, columns } = this.#game.setting;
    const [row, column] = [Math.floor(this.#focus / columns), this.#focus % columns];
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) {
      const [down, right] = moves[event.key];
      const to = [Math.min(Math.max(row + down, 0), rows - 1), Math.min(Math.max(column + right, 0), columns - 1)];
      this.#move(to[0] * columns + to[1]);
    } else if (event.key === " " || event.key === "Enter") {
      this.#take(this.#focus, event.shiftKey, true);
    } else {
      return;
    }
    event.preventDefault();
  }

  #move(tile) {
    this.#tiles[this.#focus].setAttribute("tabindex", -1);
    this.#focus = tile;
    this.#tiles[tile].setAttribute("tabindex", 0);
    this.#tiles[tile].focus({ preventScroll: true });
  }
}

// A head in the middle of a step, or nothing for a step to the same place.
function arrow([x, y], [toX, toY], name) {
  const angle = (Math.atan2(toY - y, toX - x) * 180) / Math.PI;
  const place = `translate(${(x + toX) / 2} ${(y + toY) / 2}) rotate(${angle})`;
  return svg("path", { class: `arrow ${name}`, d: "M-4 -4.5L5 0L-4 4.5L-2 0Z", transform: place });
}
