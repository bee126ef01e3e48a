"use strict";
// Owns the page's elements: readable numbers, DOM elements, sortable tables. Texts come from runs, so they are set as
// text and never as HTML.

const UNITS_OF_TIME = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"], [1e-12, "ps"]];
const UNITS_OF_BYTES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const UNITS_OF_RATE = [[1e12, "Tbps"], [1e9, "Gbps"], [1e6, "Mbps"], [1e3, "kbps"], [1, "bps"]];
const UNITS_OF_ENERGY = [[1e9, "GJ"], [1e6, "MJ"], [1e3, "kJ"], [1, "J"], [1e-3, "mJ"]];

/** Four significant digits in the largest unit that leaves at least 1. */
function inUnits(value, units, digits = 4) {
  if (value === null || value === undefined) return "not known";
  if (value === 0) return `0\u00a0${units.find(([size]) => size === 1)[1]}`;
  const [size, name] = units.find(([size]) => Math.abs(value) >= size * 0.9995) ?? units[units.length - 1];
  return `${Number((value / size).toPrecision(digits))}\u00a0${name}`;
}
const seconds = (value, digits) => inUnits(value, UNITS_OF_TIME, digits);
const bytes = (value) => inUnits(value, UNITS_OF_BYTES, 3);
const bitRate = (bytesPerSecond) => inUnits(8 * bytesPerSecond, UNITS_OF_RATE, 3);
const joules = (value) => inUnits(value, UNITS_OF_ENERGY);
const percent = (share) =>
  share === null || share === undefined ? "not known" : `${(100 * share).toFixed(1)}\u00a0%`;
const signedPercent = (share) => `${share > 0 ? "+" : ""}${percent(share)}`;
const grouped = (count) => count?.toLocaleString("en") ?? "not known";
const counted = (count, noun) => `${grouped(count)} ${noun}${count === 1 ? "" : "s"}`;
/** The name of a line without its folders. */
const shortLine = (line) => (line ? line.slice(line.lastIndexOf("/") + 1) : "");
/** Functions that format a value, by the kind of its column (`Kind` of the crate `formats`). */
const SHOW = {
  line: shortLine, flag: (value) => (value ? "yes" : ""), count: grouped, bytes, byte_rate: (rate) => `${(rate / 1e9).toFixed(1)}\u00a0GB/s`,
  seconds, picoseconds: (value) => seconds(value * 1e-12), joules, ratio: percent,
};
const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const largest = (numbers) => numbers.reduce((most, number) => Math.max(most, number), 0);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "onclick" || name === "oninput" || name === "onchange" || name === "onkeydown") made[name] = value;
    else if (value !== null && value !== undefined) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return made;
}

/**
 * A table with columns that sort by a click on their titles. `columns`: `{title, of, show, about}`, where `of` returns
 * the value of a row for sorting, `show` the value's text, and `about` describes the column; numbers are aligned to the
 * right. A long table shows its first rows until the user asks for all.
 */
function sortableTable(caption, columns, rows) {
  const MOST = 200;
  let shown = [...rows];
  let all = rows.length <= MOST;
  const body = element("tbody");
  const numeric = columns.map((column) => rows.some((row) => typeof column.of(row) === "number"));
  const fill = () =>
    body.replaceChildren(
      ...shown.slice(0, all ? shown.length : MOST).map((row) =>
        element("tr", {}, columns.map((column, number) => {
          const value = column.of(row);
          const text = value === null || value === undefined || value === "" ? "–" : column.show ? column.show(value) : `${value}`;
          return element("td", numeric[number] ? { class: "number" } : {}, text);
        })))
    );
  const heads = columns.map((column, number) => {
    const head = element("th", { scope: "col", class: numeric[number] ? "number" : null });
    head.append(element("button", { type: "button", title: column.about, onclick: () => sortBy(head, number) }, column.title));
    return head;
  });
  const sortBy = (head, number) => {
    const direction = head.getAttribute("aria-sort") === "descending" ? "ascending" : "descending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", direction);
    const sign = direction === "descending" ? -1 : 1;
    const { of } = columns[number];
    shown.sort((a, b) => {
      const [first, second] = [of(a), of(b)];
      const unknown = (value) => value === null || value === undefined;
      if (unknown(first) || unknown(second)) return unknown(first) - unknown(second);
      return sign * (numeric[number] ? first - second : `${first}`.localeCompare(`${second}`));
    });
    fill();
  };
  fill();
  const table = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, heads)), body);
  const box = element("div", { class: "table", tabindex: "0", role: "region", "aria-label": caption }, table);
  if (!all) {
    const more = element("button", { type: "button", onclick: () => { all = true; fill(); more.remove(); } }, `Show all ${rows.length} rows`);
    box.append(more);
  }
  return box;
}

const details = (summary, ...children) => element("details", {}, element("summary", {}, summary), ...children);
const note = (text) => element("p", { class: "note" }, text);
