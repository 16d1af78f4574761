// What all sections share: elements, texts, numbers, and the list of sections.
// Texts of users go into text nodes, never into HTML.

const sections = [];

/** {id, title, order, whole?, has(run), draw(root, run, context), update?(root, run, context)}; `whole`: of the document, not of a run. */
function register(section) {
  sections.push(section);
  sections.sort((a, b) => a.order - b.order);
}

function element(tag, options = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(options)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Control characters and those that turn the direction of a text, as symbols; lines and tabs stay. */
function visible(text) {
  return String(text ?? "").replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]/g,
    (found) => {
      const code = found.codePointAt(0);
      if (code < 0x20) return String.fromCodePoint(0x2400 + code);
      return code === 0x7f ? "\u2421" : `\u27e8${code.toString(16).padStart(4, "0").toUpperCase()}\u27e9`;
    },
  );
}

const _plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** For people: four digits that count, thousands apart. */
function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return visible(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return _plain.format(value);
  const size = Math.abs(value);
  if (size >= 1e6 || (size > 0 && size < 1e-3)) return value.toExponential(3);
  return size >= 1000 ? _plain.format(value) : String(Number(value.toPrecision(4)));
}

function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const size = Math.abs(seconds);
  if (size < 1e-3 && size > 0) return `${Number((seconds * 1e6).toPrecision(3))} µs`;
  if (size < 1) return `${Number((seconds * 1e3).toPrecision(3))} ms`;
  if (size < 60) return `${Number(seconds.toPrecision(3))} s`;
  const whole = Math.round(size);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  const parts = days ? [`${days} d`, `${hours} h`] : hours ? [`${hours} h`, `${minutes} min`] : [`${minutes} min`, `${whole % 60} s`];
  return (seconds < 0 ? "−" : "") + parts.join(" ");
}

/** On an axis: `2 min`, where elsewhere `2 min 0 s` stands. */
function formatTick(seconds) {
  return seconds ? formatSeconds(seconds).replace(/ 0 \w+$/, "") : "0";
}

function formatTime(at) {
  if (at === null || at === undefined) return "–";
  const date = new Date(at * 1000);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

function formatBytes(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(bytes) >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${Number(bytes.toPrecision(3))} ${units[unit]}`;
}

const GOOD = new Set(["finished", "succeeded", "terminated", "truncated", "completed"]);
const BAD = new Set(["failed", "timed_out", "crashed", "aborted", "damaged", "lost"]);
const BUSY = new Set(["in work", "running", "starting", "finalizing", "stopping", "queued", "pristine"]);

function toneOf(outcome) {
  if (GOOD.has(outcome)) return "good";
  if (BAD.has(outcome)) return "bad";
  return BUSY.has(outcome) ? "busy" : "muted";
}

const SIGNS = { good: "✓", bad: "✕", busy: "●", muted: "○" };

function badge(outcome, text = outcome) {
  const tone = toneOf(outcome);
  const sign = element("span", { "aria-hidden": "true", text: SIGNS[tone] });
  return element("span", { class: `badge ${tone}` }, sign, ` ${visible(text).replaceAll("_", " ")}`);
}

function emptyNote(text) {
  return element("p", { class: "note", text });
}

function plural(count, word) {
  return `${formatNumber(count)} ${word}${count === 1 ? "" : "s"}`;
}

/** So many columns are as wide as a page. */
const PAPER_COLUMNS = 7;

/**
 * A table of few rows: `columns` of {title, number?, key?}, cells are texts or nodes. On paper one with many columns is several tables, each
 * with the columns that are a `key`.
 */
function simpleTable(columns, rows, caption) {
  const all = [...columns.keys()];
  const parts = onPaper() && columns.length > PAPER_COLUMNS ? _parts(columns, all) : [all];
  const tables = parts.map((part, index) => _table(columns, rows, part, index ? null : caption));
  return element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption ?? "table" }, ...tables);
}

function _parts(columns, all) {
  const keys = all.filter((index) => columns[index].key);
  const others = all.filter((index) => !columns[index].key);
  const parts = [];
  while (others.length) parts.push([...keys, ...others.splice(0, PAPER_COLUMNS - keys.length)]);
  return parts;
}

function _table(columns, rows, part, caption) {
  const head = part.map((index) => element("th", { scope: "col", class: columns[index].number ? "number" : "", text: columns[index].title }));
  const body = rows.map((row) =>
    element(
      "tr",
      {},
      ...part.map((index) => {
        const cell = row[index];
        const td = element("td", { class: columns[index].number ? "number" : "" });
        td.append(cell instanceof Node ? cell : visible(cell));
        return td;
      }),
    ),
  );
  return element(
    "table",
    {},
    caption ? element("caption", { text: caption }) : null,
    element("thead", {}, element("tr", {}, ...head)),
    element("tbody", {}, ...body),
  );
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Whether the page is drawn for paper: in light colours, as wide as a page, with all that is folded open. */
function onPaper() {
  return document.documentElement.classList.contains("paper");
}
