// The sheet of keys, which every page has.

import { $ } from "./shapes.js";

// Whether a key is meant for the page, and not for what is typed into or for the browser.
export function meant(event) {
  const typing = event.target.matches?.("input:not([type=checkbox], [type=range]), select");
  return !typing && !event.ctrlKey && !event.metaKey && !event.altKey && !$("help").open;
}

$("help-open").addEventListener("click", () => $("help").showModal());
addEventListener("keydown", (event) => {
  if (event.key !== "?" || !meant(event)) return;
  $("help").showModal();
  event.preventDefault();
});
