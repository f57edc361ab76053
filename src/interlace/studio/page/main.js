// The page of one product.

import { ask, channel } from "./api.js";
import { Board } from "./board.js";
import { chart } from "./chart.js";
import { Game } from "./game.js";
import { hints } from "./hints.js";
import { keep } from "./keep.js";
import { $ } from "./shapes.js";
import { beside, summary } from "./side.js";
import { setup, transport } from "./transport.js";

const USUAL = { m: 512, n: 512, k: 512, tile_m: 128, tile_n: 128, tile_k: 512, capacity: 5, unit: "panels", cache: "lru", workers: 1, dtype: "bf16" };
const square = (tiles, more) => ({ ...USUAL, m: 128 * tiles, n: 128 * tiles, ...more });
const PRESETS = {
  "4 × 4, five panels": [square(4, {}), ""],
  "4 × 4, three panels": [square(4, { capacity: 3 }), ""],
  "6 × 6, six panels": [square(6, { capacity: 6 }), ""],
  "8 × 8, OPT": [square(8, { capacity: 6, cache: "opt" }), ""],
  "16 × 16, ten panels": [square(16, { capacity: 10 }), ""],
  "32 × 32, twelve panels": [square(32, { capacity: 12 }), ""],
  "Serpentine beside row by row": [square(4, {}), "serpentine", "row"],
  "Waves of 8, K in 8 chunks": [square(8, { tile_k: 64, capacity: 24, unit: "tiles", workers: 8 }), "row"],
};

const game = new Game();
const say = (text) => { $("say").textContent = text; };
const board = new Board($("board"), game, say);
beside(game);
chart(game);
const hint = hints(game, board);
const total = () => game.setting.rows * game.setting.columns;
const { play, pause } = transport(game, { total, open, say, summary, hint });
const { choose, problem } = setup(game, pause);

$("preset").append(new Option("…", ""), ...Object.keys(PRESETS).map((name) => new Option(name)));
$("preset").addEventListener("change", async () => {
  const chosen = PRESETS[$("preset").value];
  if (!chosen) return;
  const [options, order, ghost] = chosen;
  pause();
  await choose(options);
  game.follow([], 0);
  game.beside(ghost ?? "");
  if (order) await playOrder(order);
});
$("order").addEventListener("change", () => {
  if ($("order").value) playOrder($("order").value);
});
$("heat").addEventListener("change", () => board.heat($("heat").checked));
game.addEventListener("setting", () => board.heat($("heat").checked));

async function playOrder(name) {
  const { path } = await ask("order", { options: game.options, name });
  game.follow(path, 0);
  play();
}

keep(game, { name: "order.json", open, say, whole: "Saved: other commands take it as --order explicit:order.json." });
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
