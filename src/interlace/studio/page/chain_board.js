// Two grids side by side: the tiles of both products, what is locked, and where y is.

import { svg } from "./shapes.js";

const SIDE = 30;
const GAP = 54;
const HIGH = 420; // of the taller grid, wherever tiles are neither too small nor too large

export class ChainBoard {
  #game;
  #root;
  #tiles = [];
  #strips = {};
  #missing = new Set();
  #focus = [0, 0];
  #cell = 0;

  constructor(root, game, tell) {
    this.#game = game;
    this.#root = root;
    this.tell = tell;
    game.addEventListener("setting", () => this.#build());
    game.addEventListener("step", () => {
      this.#missing.clear();
      this.tell("");
      this.#update();
    });
    game.addEventListener("position", () => this.#update());
  }

  #build() {
    const { rows, hidden, columns } = this.#game.options;
    const cell = Math.max(20, Math.min(80, HIGH / rows, (2 * HIGH) / (hidden + columns)));
    this.#cell = cell;
    const second = SIDE + hidden * cell + GAP;
    const size = { width: second + columns * cell + 4, height: SIDE + 18 + rows * cell + 4 };
    const picture = svg("svg", { viewBox: `0 0 ${size.width} ${size.height}`, role: "group", "aria-label": "Both products" });
    this.#strips = { x: [], a: [], b: [] };
    const strips = svg("g", { "aria-hidden": "true" });
    const strip = (name, box) => {
      const group = svg("g", { class: "strip" }, svg("rect", { ...box, rx: 3 }), svg("rect", { ...box, rx: 3, class: "part" }));
      this.#strips[name].push({ part: group.lastChild, box });
      strips.append(group);
    };
    const top = 18;
    for (let row = 0; row < rows; row += 1) strip("x", { x: 2, y: top + SIDE + row * cell + 2, width: SIDE - 10, height: cell - 4 });
    for (let at = 0; at < hidden; at += 1) strip("a", { x: SIDE + at * cell + 2, y: top + 2, width: cell - 4, height: SIDE - 10 });
    for (let at = 0; at < columns; at += 1) strip("b", { x: second + at * cell + 2, y: top + 2, width: cell - 4, height: SIDE - 10 });
    const caption = (x, text, y = 9) => svg("text", { class: "caption", x, y }, text);
    strips.append(
      caption(11, "x", top + SIDE - 8), caption(22, "a", top + 11), caption(second - 8, "b", top + 11),
      caption(SIDE + (hidden * cell) / 2, "y = x · aᵀ"), caption(second + (columns * cell) / 2, "out = y · bᵀ"),
      svg("text", { class: "caption", x: SIDE + hidden * cell + GAP / 2, y: top + SIDE + (rows * cell) / 2 }, "→"),
    );
    this.#tiles = [];
    const grids = [[SIDE, hidden, "First product, y"], [second, columns, "Second product, out"]].map(([left, wide, label]) => {
      const grid = svg("g", { role: "grid", "aria-label": `${label}: ${rows} by ${wide} tiles` });
      for (let row = 0; row < rows; row += 1) {
        const line = svg("g", { role: "row" });
        for (let column = 0; column < wide; column += 1) {
          const place = `translate(${left + column * cell} ${top + SIDE + row * cell})`;
          const tile = svg("g", { class: "tile", role: "gridcell", tabindex: -1, transform: place });
          tile.dataset.tile = this.#tiles.length;
          tile.append(svg("rect", { x: 1.5, y: 1.5, width: cell - 3, height: cell - 3, rx: cell / 10 }));
          this.#tiles.push(tile);
          line.append(tile);
        }
        grid.append(line);
      }
      return grid;
    });
    this.trails = svg("g", { "aria-hidden": "true" });
    picture.append(strips, ...grids, this.trails);
    this.#root.replaceChildren(picture);
    this.#focus = 0;
    this.#tiles[0].setAttribute("tabindex", 0);
    picture.addEventListener("click", (event) => {
      const tile = event.target.closest(".tile");
      if (tile) this.#take(Number(tile.dataset.tile));
    });
    picture.addEventListener("keydown", (event) => this.#key(event));
    this.#update();
  }

  #take(tile) {
    this.#move(tile);
    const step = this.#game.stepFor(tile);
    const missing = step === null ? [] : this.#game.missing(step);
    if (missing.length) {
      this.#missing = new Set(missing);
      this.tell(`Locked: ${missing.length} ${missing.length === 1 ? "tile" : "tiles"} of y ${missing.length === 1 ? "is" : "are"} missing, marked on the left.`);
      this.#update();
    } else if (!this.#game.take(tile)) {
      this.tell(`Taken already, as step ${this.#game.stepOf(tile) + 1}.`);
    }
  }

  // Tiles of both grids lie in rows across the gap.
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { rows, hidden, columns } = this.#game.options;
    const [row, column] = this.#placeOf(this.#focus);
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key in moves) {
      const down = Math.min(Math.max(row + moves[event.key][0], 0), rows - 1);
      const right = Math.min(Math.max(column + moves[event.key][1], 0), hidden + columns - 1);
      this.#move(right < hidden ? down * hidden + right : rows * hidden + down * columns + right - hidden);
    } else if (event.key === " " || event.key === "Enter") {
      this.#take(this.#focus);
    } else {
      return;
    }
    event.preventDefault();
  }

  // Row, and column in both grids together.
  #placeOf(item) {
    const { rows, hidden, columns } = this.#game.options;
    const later = item - rows * hidden;
    return later < 0 ? [Math.floor(item / hidden), item % hidden] : [Math.floor(later / columns), hidden + (later % columns)];
  }

  #move(item) {
    this.#tiles[this.#focus].setAttribute("tabindex", -1);
    this.#focus = item;
    this.#tiles[item].setAttribute("tabindex", 0);
    this.#tiles[item].focus({ preventScroll: true });
  }

  // ------------------------------------------------------------ showing

  #update() {
    const { position, at, options } = this.#game;
    const { rows, inner, hidden } = options;
    const steps = new Map(this.#game.taken.map((step, index) => [step, index]));
    const held = new Set(position?.held.y ?? []);
    const last = new Map(position?.last.y ?? []);
    this.#tiles.forEach((tile, item) => {
      const done = this.#game.itemsOf(item).map((each) => steps.get(each)).filter((each) => each !== undefined);
      const open = this.#game.stepFor(item);
      const step = done.at(-1);
      const first = item < rows * hidden;
      const cost = position ? done.reduce((sum, each) => sum + (position.costs[each] ?? 0), 0) : 0;
      const locked = open !== null && this.#game.missing(open).length > 0;
      const lost = first && step !== undefined && options.cache === "lru" && !held.has(item);
      const touched = first && last.has(item) && position.at === at ? (last.get(item) ? "load" : "hit") : "";
      const kind = [
        "tile", step === undefined || open !== null ? "" : "taken", locked ? "locked" : "", this.#missing.has(item) ? "hint" : "",
        first && held.has(item) ? "kept" : "", lost ? "lost" : "", touched, step === at - 1 ? "last" : "",
      ].filter(Boolean).join(" ");
      const half = step !== undefined && open !== null;
      const shown = `${kind} ${done} ${cost} ${half}`;
      if (tile.dataset.shown === shown) return;
      tile.dataset.shown = shown;
      tile.setAttribute("class", kind);
      while (tile.childNodes.length > 1) tile.lastChild.remove();
      const size = Math.min(15, this.#cell * (options.parts > 1 ? 0.24 : 0.34));
      const write = (text, y) => tile.append(svg("text", { class: "number", x: 6, y, "font-size": size }, text));
      if (done.length) write(done.map((each) => each + 1).join(" "), 5 + size * 0.6);
      if (half) tile.append(svg("text", { x: this.#cell - 4 - size / 2, y: this.#cell - 5 - size * 0.6, "font-size": 1.3 * size }, "½"));
      if (cost && this.#cell > 34) write(`+${cost}`, this.#cell - 5 - size * 0.6);
      if (locked) tile.append(svg("path", { class: "lock", d: "M-4 0v-2a4 4 0 0 1 8 0v2h1v6h-10v-6z", transform: `translate(${this.#cell / 2} ${this.#cell / 2})` }));
      const [row, column] = this.#placeOf(item);
      const name = first ? `y, row ${row}, column ${column}` : `out, row ${row}, column ${column - hidden}`;
      const taken = `step ${done.map((each) => each + 1).join(" and ")}, ${cost} loads`;
      const rest = open === null ? [] : [locked ? "locked" : "open"];
      const told = [...(done.length ? [taken] : []), ...(half ? ["the other half"] : []), ...rest, ...(lost ? ["left the cache"] : [])];
      tile.setAttribute("aria-label", `${name}: ${told.join(", ")}`);
    });
    if (position) {
      this.#fill("x", inner, (place) => Math.floor(place / inner));
      this.#fill("a", inner, (place) => Math.floor(place / inner));
      this.#fill("b", hidden, (place) => Math.floor(place / hidden));
    }
    this.#draw(at);
  }

  // How much of each strip the cache holds; orange where the last step loaded of it, blue where it found all.
  #fill(name, whole, stripOf) {
    const { position } = this.#game;
    const count = (places) => places.reduce((sum, place) => sum.set(stripOf(place), (sum.get(stripOf(place)) ?? 0) + 1), new Map());
    const held = count(position.held[name] ?? []);
    const last = position.last[name] ?? [];
    const loaded = count(last.filter(([, load]) => load).map(([place]) => place));
    const touched = count(last.map(([place]) => place));
    this.#strips[name].forEach(({ part, box }, strip) => {
      const share = touched.has(strip) ? 1 : (held.get(strip) ?? 0) / whole;
      const along = name === "x" ? { width: box.width * share } : { height: box.height * share };
      for (const [key, value] of Object.entries(along)) part.setAttribute(key, value);
      part.setAttribute("class", `part ${touched.has(strip) ? (loaded.has(strip) ? "load" : "hit") : ""}`);
    });
  }

  #draw(at) {
    const ghost = this.#game.position?.ghost?.path.slice(0, at) ?? [];
    const trail = (path, name, offset) => {
      const points = path.map((item) => {
        const [, x, y] = this.#tiles[this.#game.tileOf(item)].getAttribute("transform").match(/([\d.]+) ([\d.]+)/);
        return `${Number(x) + this.#cell / 2 + offset},${Number(y) + this.#cell / 2 + offset}`;
      });
      return svg("polyline", { class: `trail ${name}`, points: points.join(" ") });
    };
    this.trails.replaceChildren(trail(ghost, "ghost", this.#cell / 8), trail(this.#game.taken, "", 0));
  }
}
