// The game of this page: options, path and place. Every change asks the server what it means; answers to other
// options are dropped, and changes that come faster than answers are asked for together.

import { ask } from "./api.js";

export class Game extends EventTarget {
  api = ""; // before the names of requests
  options = {};
  path = [];
  at = 0;
  ghost = "";
  setting = null; // what follows from the options: grid, bounds, names of orders
  position = null; // where the game stands
  #asking = false;
  #again = false;
  #choice = 0;
  #waiting = 0;

  get taken() {
    return this.path.slice(0, this.at);
  }

  // A step of one product is 4 * tile + way.
  tileOf(step) {
    return step >> 2;
  }

  // The step that taking a tile would be; null if it is taken.
  stepFor(tile, way) {
    return this.stepOf(tile) < 0 ? 4 * tile + way : null;
  }

  stepOf(tile) {
    return this.taken.findIndex((step) => this.tileOf(step) === tile);
  }

  // Take a tile; way is 1 where it touches its column's panel first. Returns whether it was open.
  take(tile, way = 0) {
    const step = this.stepFor(tile, way);
    if (step === null) return false;
    if (this.path[this.at] !== step) this.path = [...this.taken, step];
    this.at += 1;
    this.#changed("step");
    return true;
  }

  jump(at) {
    const to = Math.max(0, Math.min(at, this.path.length));
    if (to === this.at) return;
    this.at = to;
    this.#changed("step");
  }

  follow(path, at = 0) {
    this.path = path;
    this.at = at;
    this.#changed("step");
  }

  beside(ghost) {
    this.ghost = ghost;
    this.#changed("step");
  }

  // New options: the path stays if it fits the grid. Throws what the server says of options that make no sense.
  // Of several at once the last ones count, whichever answer comes first.
  async choose(options) {
    this.#choice += 1;
    const mine = this.#choice;
    let setting;
    this.#wait(1);
    try {
      setting = await ask(`${this.api}setting`, { options });
    } catch (error) {
      if (mine === this.#choice) throw error;
    } finally {
      this.#wait(-1);
    }
    if (mine !== this.#choice) return;
    const fits = this.setting?.shape === setting.shape;
    this.options = options;
    this.setting = setting;
    if (!fits) [this.path, this.at] = [[], 0];
    if (!setting.orders.includes(this.ghost)) this.ghost = "";
    this.#changed("setting");
  }

  // The game of a link, of a file or of an earlier request.
  async open(source) {
    const game = await ask(`${this.api}open`, source);
    this.setting = null;
    this.ghost = game.ghost;
    await this.choose(game.options);
    this.follow(game.path, game.at);
  }

  request() {
    return { options: this.options, path: this.path, at: this.at, ghost: this.ghost };
  }

  // Tests, and whoever else looks, see from the document whether answers are awaited.
  #wait(change) {
    this.#waiting += change;
    document.documentElement.dataset.busy = String(this.#waiting > 0);
  }

  #changed(what) {
    this.#tell(what);
    this.#refresh();
  }

  #tell(what) {
    this.dispatchEvent(new Event(what));
  }

  async #refresh() {
    this.#again = true;
    if (this.#asking) return;
    this.#asking = true;
    this.#wait(1);
    try {
      while (this.#again) {
        this.#again = false;
        const setting = this.setting;
        const position = await ask(`${this.api}position`, this.request());
        if (this.setting !== setting) continue;
        this.position = position;
        this.#tell("position");
      }
    } catch (error) {
      this.dispatchEvent(new CustomEvent("problem", { detail: error.message }));
    } finally {
      this.#asking = false;
      this.#wait(-1);
    }
  }
}
