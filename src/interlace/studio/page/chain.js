// The page of two products.

import { ask, channel } from "./api.js";
import { ChainBoard } from "./chain_board.js";
import { Game } from "./game.js";
import { keep } from "./keep.js";
import { $, bytes, many } from "./shapes.js";
import { setup, transport } from "./transport.js";

const USUAL = { rows: 4, inner: 2, hidden: 4, columns: 4, capacity: 12, cache: "lru", parts: 1 };
const INPUTS = ["x", "a", "b"];
const BETWEEN = ["y", "partial sums"];

class Chain extends Game {
  api = "chain/";

  // Items are steps. Second halves of the tiles of out come behind all tiles, in the same sequence.
  tileOf(step) {
    const [first, second] = this.setting.tiles;
    return step < first + second ? step : step - second;
  }

  itemsOf(tile) {
    const [first, second] = this.setting.tiles;
    return tile < first || this.options.parts === 1 ? [tile] : [tile, tile + second];
  }

  // The item that comes next of a tile; null if all are taken.
  stepFor(tile) {
    const taken = new Set(this.taken);
    return this.itemsOf(tile).find((item) => !taken.has(item)) ?? null;
  }

  // What an item still waits for.
  missing(item) {
    const taken = new Set(this.taken);
    return this.setting.needs[item].filter((need) => !taken.has(need));
  }
}

const game = new Chain();
const say = (text) => { $("say").textContent = text; };
new ChainBoard($("board"), game, (text) => { $("missing").textContent = text; });
const total = () => game.setting.needs.length;
const { play, pause } = transport(game, { total, open, say, summary });
const { choose, problem } = setup(game, pause);

function summary(position) {
  return `${many(position.at, "tile")}: ${many(position.loads, "load")}, ${many(position.hits, "hit")}, ${bytes(position.load_bytes)} read`;
}

$("order").addEventListener("change", async () => {
  if (!$("order").value) return;
  const { path } = await ask("chain/order", { options: game.options, name: $("order").value });
  game.follow(path, 0);
  play();
});

game.addEventListener("setting", () => {
  const { inputs, safe_bytes, leading_bytes, source } = game.setting;
  $("sums-row").hidden = game.options.parts === 1;
  for (const name of INPUTS) $(`least-${name}`).textContent = inputs[name];
  $("least-loads").textContent = INPUTS.reduce((sum, name) => sum + inputs[name], 0);
  $("safe_bytes").textContent = bytes(safe_bytes);
  $("leading_bytes").textContent = bytes(leading_bytes);
  $("bounds").title = source;
});

game.addEventListener("position", () => {
  const { position, ghost, options, taken } = game;
  const value = (of, name) => (name in of.loads_of || [...BETWEEN, ...INPUTS].includes(name) ? of.loads_of[name] ?? 0 : of[name]);
  const text = (of, name) => (name === "load_bytes" ? bytes(of[name]) : value(of, name).toLocaleString("en"));
  for (const name of [...INPUTS, ...BETWEEN, "loads", "hits", "load_bytes"]) $(name.replace(" ", "-")).textContent = text(position, name);
  for (const cell of document.querySelectorAll(".ghost-column")) {
    cell.hidden = !position.ghost;
    if (position.ghost) cell.textContent = cell.tagName === "TH" ? ghost : text(position.ghost, cell.dataset.ghost);
  }
  $("cache-use").textContent = `${options.capacity} tiles`;
  $("share").replaceChildren(...Object.entries(position.held).map(([name, places]) => {
    const item = document.createElement("li");
    const sums = name === BETWEEN[1];
    item.textContent = `${sums ? "sums" : name} ${places.length}`;
    item.style.flexGrow = places.length * (sums ? 2 : 1);
    item.className = sums ? "of-out" : `of-${name}`;
    return item;
  }));
  const made = taken.filter((item) => item < options.rows * options.hidden).length;
  const kept = position.held.y?.length ?? 0;
  $("between").textContent = options.cache === "opt"
    ? "OPT decides with hindsight, so nobody knows yet what it holds."
    : `Of ${many(made, "tile")} of y that ${made === 1 ? "is" : "are"} made, ${kept} ${kept === 1 ? "is" : "are"} in the cache; ${position.loads_of.y ?? 0} had to be loaded again.`;
});

keep(game, { name: "chain.json", open, say, whole: "Saved." });
async function open(source) {
  pause();
  try {
    await game.open(source);
    problem("");
  } catch (error) {
    if (!game.setting) await choose(USUAL);
    problem(error.message);
  }
}

const link = channel?.link ?? location.hash.slice(1);
if (link) open({ link });
else choose(USUAL);
