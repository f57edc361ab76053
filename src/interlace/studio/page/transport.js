// Steps: the buttons and the slider below the grid, their keys, and the address.

import { channel } from "./api.js";
import { meant } from "./help.js";
import { $ } from "./shapes.js";

const ADDRESS_MS = 100; // browsers take an address only so often

// Wires a game to the controls of its page. Options: how many steps there are, what opens a link, and further keys.
export function transport(game, { total, open, say, summary, hint = () => {} }) {
  let timer = 0;
  let addressing = 0;

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

  function steps() {
    $("step").max = game.path.length;
    $("step").value = game.at;
    $("steps").textContent = `${game.at} / ${total()}`;
    $("undo").disabled = $("first").disabled = game.at === 0;
    $("redo").disabled = $("last").disabled = game.at === game.path.length;
    $("run").disabled = !timer && game.at === game.path.length;
    $("order").value = "";
    $("ghost").value = game.ghost;
    $("legend-ghost").hidden = !game.ghost;
  }
  game.addEventListener("setting", steps);
  game.addEventListener("step", steps);

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

  const keys = { ...actions, play: () => $("run").click(), hint };
  const bound = { u: "undo", r: "redo", Home: "first", End: "last", p: "play", h: "hint" };
  addEventListener("keydown", (event) => {
    const sliding = event.target.matches("input[type=range]") && ["Home", "End"].includes(event.key);
    if (sliding || !meant(event) || !(event.key in bound)) return;
    if (bound[event.key] !== "play") pause();
    keys[bound[event.key]]();
    event.preventDefault();
  });

  const address = () => channel || history.replaceState(null, "", `#${game.position.link}`);
  game.addEventListener("position", () => {
    say(summary(game.position));
    clearTimeout(addressing);
    addressing = setTimeout(address, ADDRESS_MS);
  });
  $("copy").addEventListener("click", async () => {
    address();
    try {
      await navigator.clipboard.writeText(location.href);
      say("The link is copied.");
    } catch {
      say("The browser does not copy; the link is its address.");
    }
  });
  addEventListener("unhandledrejection", (event) => {
    game.dispatchEvent(new CustomEvent("problem", { detail: event.reason.message }));
  });
  $("copy").hidden = channel !== null; // a frame has no address of its own
  addEventListener("hashchange", () => {
    if (location.hash.slice(1) !== game.position?.link) open({ link: location.hash.slice(1) });
  });
  return { play, pause };
}

// A form whose named fields are the options of a game, and the lists of its orders.
export function setup(game, pause) {
  const fields = [...$("setup").elements].filter((field) => field.name);

  function problem(text) {
    $("setup-error").textContent = text;
    $("setup-error").hidden = !text;
  }

  async function choose(options) {
    try {
      await game.choose(options);
      problem("");
    } catch (error) {
      problem(error.message);
    }
  }

  $("setup").addEventListener("submit", (event) => event.preventDefault());
  for (const field of fields) {
    field.addEventListener("change", () => {
      pause();
      const value = (f) => (f.type === "number" ? f.valueAsNumber : "number" in f.dataset ? Number(f.value) : f.value);
      choose(Object.fromEntries(fields.map((f) => [f.name, value(f)])));
    });
  }
  game.addEventListener("problem", (event) => problem(event.detail));
  game.addEventListener("setting", () => {
    for (const field of fields) {
      if (field !== document.activeElement) field.value = game.options[field.name];
    }
    const names = game.setting.orders;
    $("order").replaceChildren(new Option("choose one", ""), ...names.map((name) => new Option(name)));
    $("ghost").replaceChildren(new Option("none", ""), ...names.map((name) => new Option(name)));
  });
  $("ghost").addEventListener("change", () => game.beside($("ghost").value));
  return { choose, problem };
}
