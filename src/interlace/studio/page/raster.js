// Bars of lanes as pixels: a canvas takes longer than a frame to fill tens of thousands of rectangles one by one, while
// the pixels of one row of each lane are soon written, and copied to its other rows.
//
//     wait 0, start 2, end 5      at a pixel per unit      ░ ░ ▓ ▓ ▓      ░ the item's colour, pale

const PALE = 0.35; // of waits
const FADED = 0.15; // of items that are not searched for

export class Raster {
  #wait;
  #start;
  #end;
  #ptr = [0]; // where the items of each lane begin; the last ends all
  #item; // of all lanes, each in the order of time
  #work; // a pixel of each item's work, in the sequence of the plan
  #idle; // and of its wait

  // Of columns by item, and of the items of each lane.
  constructor({ wait, start, end }, lanes) {
    [this.#wait, this.#start, this.#end] = [wait, start, end].map((column) => Float64Array.from(column));
    for (const lane of lanes) this.#ptr.push(this.#ptr.at(-1) + lane.length);
    this.#item = Uint32Array.from(lanes.flat());
  }

  // Items by their colour; those that are not shown fade.
  colour(color, only) {
    const names = Array.from(this.#wait, (_, item) => color(item));
    const shades = Object.fromEntries([1, PALE, FADED, FADED * PALE].map((alpha) => [alpha, pixels([...new Set(names)], alpha)]));
    const pick = (dim) => Uint32Array.from(names, (name, item) => shades[dim * (only(item) ? 1 : FADED)].get(name));
    [this.#work, this.#idle] = [pick(1), pick(PALE)];
  }

  // Write what is between two times, where lane after lane begins `pitch` rows of pixels below the one before, and
  // leaves so many of them free.
  paint(image, [from, to], { top, pitch, free }) {
    const { width, height } = image;
    const words = new Uint32Array(image.data.buffer);
    const scale = width / (to - from);
    const place = (time) => Math.max(0, Math.min(width, Math.round((time - from) * scale)));
    for (let lane = 0; lane + 1 < this.#ptr.length; lane += 1) {
      const y = Math.round(top + lane * pitch);
      const end = Math.min(height, Math.max(y + 1, Math.round(top + (lane + 1) * pitch) - free));
      if (y >= end) return;
      const row = words.subarray(y * width, (y + 1) * width);
      let painted = 0;
      for (let at = this.#first(lane, from); at < this.#ptr[lane + 1]; at += 1) {
        const item = this.#item[at];
        if (this.#wait[item] > to) break;
        const stop = place(this.#end[item]);
        if (stop < painted) continue; // within a pixel that is painted
        const [wait, start] = [place(this.#wait[item]), place(this.#start[item])];
        const gap = stop - start > 2 ? 1 : 0; // between an item and the next
        painted = Math.max(start + 1, stop - gap);
        row.fill(this.#idle[item], wait, start);
        row.fill(this.#work[item], start, painted);
      }
      for (let copy = y + 1; copy < end; copy += 1) words.copyWithin(copy * width, y * width, (y + 1) * width);
    }
  }

  // The first item of a lane that may reach into view.
  #first(lane, from) {
    let [low, high] = [this.#ptr[lane], this.#ptr[lane + 1]];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.#end[this.#item[middle]] < from) low = middle + 1;
      else high = middle;
    }
    return Math.max(this.#ptr[lane], low - 1);
  }
}

// CSS colours as pixels of an image, by name.
export function pixels(names, alpha = 1) {
  const canvas = new OffscreenCanvas(names.length, 1);
  const pen = canvas.getContext("2d");
  names.forEach((name, at) => {
    pen.fillStyle = name;
    pen.fillRect(at, 0, 1, 1);
  });
  const { data } = pen.getImageData(0, 0, names.length, 1);
  for (let at = 3; at < data.length; at += 4) data[at] = Math.round(255 * alpha);
  return new Map(Array.from(new Uint32Array(data.buffer), (pixel, at) => [names[at], pixel]));
}
