// The page: its controls, its keys, and its address, which holds the whole game.

import { Board } from "./board.js";
import { chart } from "./chart.js";
import { Game } from "./game.js";
import { hints } from "./hints.js";
import { ask } from "./api.js";
import { $ } from "./shapes.js";
import { beside, summary } from "./side.js";

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
const board = new Board($("board"), game, say);
beside(game);
chart(game);
const hint = hints(game, board);
const ADDRESS_MS = 100; // browsers take an address only so often
let timer = 0;
let addressing = 0;

function say(text) {
  $("say").textContent = text;
}

// ------------------------------------------------------------ options and orders

const fields = [...$("setup").elements].filter((field) => field.name);

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
$("setup").addEventListener("submit", (event) => event.preventDefault());
for (const field of fields) {
  field.addEventListener("change", () => {
    pause();
    const number = (f) => (f.type === "number" ? f.valueAsNumber : f.value);
    choose(Object.fromEntries(fields.map((f) => [f.name, number(f)])));
  });
}

async function choose(options) {
  try {
    await game.choose(options);
    problem("");
  } catch (error) {
    problem(error.message);
  }
}

function problem(text) {
  $("setup-error").textContent = text;
  $("setup-error").hidden = !text;
}

game.addEventListener("problem", (event) => problem(event.detail));
game.addEventListener("setting", () => {
  for (const field of fields) field.value = game.options[field.name];
  const names = game.setting.orders;
  $("order").replaceChildren(new Option("choose one", ""), ...names.map((name) => new Option(name)));
  $("ghost").replaceChildren(new Option("none", ""), ...names.map((name) => new Option(name)));
});
$("order").addEventListener("change", () => {
  if ($("order").value) playOrder($("order").value);
});
$("ghost").addEventListener("change", () => game.beside($("ghost").value));

async function playOrder(name) {
  const { path } = await ask("order", { options: game.options, name });
  game.follow(path, 0);
  play();
}

// ------------------------------------------------------------ steps

function play() {
  pause();
  const tick = () => {
    if (game.at >= game.path.length) return pause();
    game.jump(game.at + 1);
    timer = setTimeout(tick, 1000 / $("speed").value);
  };
  timer = setTimeout(tick, 0);
  $("run").textContent = "Pause";
}

function pause() {
  clearTimeout(timer);
  timer = 0;
  $("run").textContent = "Play";
  if (game.setting) steps();
}

const actions = {
  undo: () => game.jump(game.at - 1),
  redo: () => game.jump(game.at + 1),
  first: () => game.jump(0),
  last: () => game.jump(game.path.length),
};
for (const [id, act] of Object.entries(actions)) {
  $(id).addEventListener("click", () => {
    pause();
    act();
  });
}
$("run").addEventListener("click", () => (timer ? pause() : play()));
$("step").addEventListener("input", () => {
  const to = $("step").valueAsNumber;
  pause();
  game.jump(to);
});
$("heat").addEventListener("change", () => board.heat($("heat").checked));
game.addEventListener("setting", () => board.heat($("heat").checked));

function steps() {
  const { rows, columns } = game.setting;
  $("step").max = game.path.length;
  $("step").value = game.at;
  $("steps").textContent = `${game.at} / ${rows * columns}`;
  $("undo").disabled = $("first").disabled = game.at === 0;
  $("redo").disabled = $("last").disabled = $("run").disabled = game.at === game.path.length;
  if (timer) $("run").disabled = false;
  $("order").value = "";
  $("ghost").value = game.ghost;
  $("legend-ghost").hidden = !game.ghost;
}
game.addEventListener("setting", steps);
game.addEventListener("step", steps);

// ------------------------------------------------------------ links and files

game.addEventListener("position", () => {
  say(summary(game.position));
  clearTimeout(addressing);
  addressing = setTimeout(address, ADDRESS_MS);
});

function address() {
  history.replaceState(null, "", `#${game.position.link}`);
}
$("copy").addEventListener("click", async () => {
  address();
  await navigator.clipboard.writeText(location.href);
  say("The link is copied.");
});
$("save").addEventListener("click", async () => {
  const { file, complete } = await ask("save", game.request());
  const address = URL.createObjectURL(new Blob([file], { type: "application/json" }));
  const link = Object.assign(document.createElement("a"), { href: address, download: "order.json" });
  link.click();
  URL.revokeObjectURL(address);
  say(complete ? "Saved: other commands take it as --order explicit:order.json." : "Saved, with tiles still open.");
});
$("open").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  if (file) await open({ file: await file.text() });
  $("file").value = "";
});
addEventListener("hashchange", () => {
  if (location.hash.slice(1) !== game.position?.link) open({ link: location.hash.slice(1) });
});

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

// ------------------------------------------------------------ keys

const keys = { ...actions, play: () => $("run").click(), hint, help: () => $("help").showModal() };
const bound = { u: "undo", r: "redo", Home: "first", End: "last", p: "play", h: "hint", "?": "help" };
addEventListener("keydown", (event) => {
  const typing = event.target.matches("input[type=number], select");
  const sliding = event.target.matches("input[type=range]") && ["Home", "End"].includes(event.key);
  if (typing || sliding || event.ctrlKey || event.metaKey || event.altKey || $("help").open || !(event.key in bound)) return;
  if (bound[event.key] !== "play") pause();
  keys[bound[event.key]]();
  event.preventDefault();
});
$("help-open").addEventListener("click", keys.help);

if (location.hash.length > 1) open({ link: location.hash.slice(1) });
else choose(USUAL);
