// Buttons that save a game to a file, and open one.

import { ask } from "./api.js";
import { $ } from "./shapes.js";

// Wires them. Options: the name of the file, what opens one, and what to say of a game that is saved whole.
export function keep(game, { name, open, say, whole }) {
  $("save").addEventListener("click", async () => {
    const { file, complete } = await ask(`${game.api}save`, game.request());
    const address = URL.createObjectURL(new Blob([file], { type: "application/json" }));
    const link = Object.assign(document.createElement("a"), { href: address, download: name });
    link.click();
    URL.revokeObjectURL(address);
    say(complete ? whole : "Saved, with tiles still open.");
  });
  $("open").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", async () => {
    const [file] = $("file").files;
    if (file) await open({ file: await file.text() });
    $("file").value = "";
  });
}
