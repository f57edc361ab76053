// Elements, and numbers as people read them.

const SVG = "http://www.w3.org/2000/svg";

export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

export const $ = (id) => document.getElementById(id);

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 999.5 && unit < units.length - 1) {
    count /= 1000;
    unit += 1;
  }
  return `${unit ? count.toPrecision(3) : count} ${units[unit]}`;
}

export const many = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

// r0, c3: a panel as the page calls it.
export const panelName = (panel, rows) => (panel < rows ? `r${panel}` : `c${panel - rows}`);

export const percent = (share) => `${(100 * share).toFixed(1)} %`;

// Thousandths of a unit, such as nanoseconds of microseconds.
export const time = (thousandths, unit = "us") => `${(thousandths / 1000).toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;

// A row of a table, of which the first cell names it.
export function row(cells) {
  const line = document.createElement("tr");
  cells.forEach((text, at) => {
    const cell = document.createElement(at ? "td" : "th");
    if (!at) cell.scope = "row";
    cell.textContent = text;
    line.append(cell);
  });
  return line;
}

// Names beside their colours.
export function legend(entries) {
  return entries.map(([name, color]) => {
    const item = document.createElement("li");
    const swatch = document.createElement("i");
    swatch.className = "swatch";
    swatch.style.background = color;
    item.append(swatch, name);
    return item;
  });
}
