// How well a game can still end: searched in the background, told as it comes, and cancelled where nobody wants it.

import { lines } from "./api.js";
import { $, many } from "./shapes.js";

export function hints(game, board) {
  let running = null;
  let best = null;

  const idle = () => {
    running = null;
    $("cancel").hidden = true;
    $("least").disabled = false;
  };
  const forget = () => {
    running?.abort();
    idle();
    board.hint(null);
    $("least-answer").textContent = "";
    $("finish").hidden = true;
    best = null;
  };
  game.addEventListener("setting", forget);
  game.addEventListener("step", () => {
    const follows = best && game.taken.every((step, i) => best.path[i] === step);
    if (!follows) return forget();
    board.hint(game.at < best.path.length ? best.path[game.at] : null);
  });

  $("least").addEventListener("click", search);
  $("cancel").addEventListener("click", () => {
    running?.abort();
    idle();
    $("least-answer").textContent = "Cancelled.";
  });
  $("finish").addEventListener("click", () => {
    const { path } = best;
    game.follow(path, game.at);
    $("run").click();
  });
  return search;

  async function search() {
    if (running) return;
    const mine = new AbortController();
    running = mine;
    $("cancel").hidden = false;
    $("least").disabled = true;
    $("least-answer").textContent = "Searching ...";
    try {
      for await (const found of lines("least", game.request(), mine.signal)) {
        if (running === mine) tell(found);
      }
    } catch (error) {
      if (error.name !== "AbortError") $("least-answer").textContent = error.message;
    }
    if (running === mine) idle();
  }

  function tell(found) {
    if (found.state === "searching") {
      $("least-answer").textContent = found.states
        ? `Searching: ${found.states.toLocaleString("en")} states, between ${found.lower_bound} and ${found.loads} loads.`
        : "Searching (the first search compiles for some seconds) ...";
      return;
    }
    if (found.state !== "done") {
      $("least-answer").textContent = found.error ?? "Cancelled.";
      return;
    }
    best = found;
    board.hint(found.next);
    $("finish").hidden = found.next === null;
    const from = game.at ? "from here" : "of all orders";
    $("least-answer").textContent = found.proved
      ? `The least ${from} is exactly ${many(found.loads, "load")}: proved.`
      : `The least ${from} is at most ${many(found.loads, "load")} and at least ${found.lower_bound}: ${found.why}.`;
  }
}
