// A table of many rows: sorts, filters, and holds only the rows in view in the page.

const ROW = 26;
const AHEAD = 12;
const PRINTED = 100;
const LONG = 24;
const LONG_NAME = 10;
/** Texts and names of more characters are broken anywhere on paper, where a table is no wider than the page. */
const TERM = /^("[^"]+"|[^:=<>!\s"]+)(!=|>=|<=|:|=|>|<)(.+)$/s;
const WORDS = /(?:"[^"]*"|[^\s"])+|"/g;
const bare = (text) => text.replaceAll('"', "");

/** `table` is a Table of the document. `onRow(row)` opens a row. Filters and order are in `context.state`. */
function dataTable(root, table, context, { label, onRow } = {}) {
  const state = context.state;
  state.filter ??= "";
  state.sort ??= null;
  const columns = table.columns.map((column) => ({
    ...column,
    at: column.dictionary ? (row) => column.dictionary[column.values[row]] : (row) => column.values[row],
  }));
  const rows = columns.length ? columns[0].values.length : 0;
  let shown = [];
  let chosen = -1;

  const search = element("input", {
    type: "search",
    value: state.filter,
    size: 34,
    placeholder: "text, or outcome:failed steps>100",
    "aria-label": `Filter ${label}`,
    oninput: () => ((state.filter = search.value), refresh()),
  });
  const count = element("span", { class: "soft", role: "status" });
  const quick = _outcomeChoices(columns, state, () => ((search.value = state.filter), refresh()));
  const head = element("tr");
  const body = element("tbody");
  const grid = element(
    "div",
    { class: "grid", tabindex: "0", role: "region", "aria-label": label },
    element("table", { "aria-rowcount": rows + 1 }, element("thead", {}, head), body),
  );
  root.append(element("div", { class: "tools" }, search, quick, count), grid);
  if (table.note) root.append(emptyNote(table.note));

  columns.forEach((column, index) => {
    const sortBy = () => {
      const down = state.sort?.column === column.name && !state.sort.down;
      state.sort = { column: column.name, down };
      refresh();
    };
    const title = visible(column.name);
    const button = onPaper() ? title : element("button", { type: "button", text: title, onclick: sortBy }); // Chromium repeats no header with buttons
    head.append(element("th", { scope: "col", class: `${column.kind === "number" ? "number" : ""}${column.name.length > LONG_NAME ? " long" : ""}`.trim(), "data-column": index }, button));
  });

  function refresh() {
    const tests = _tests(columns, state.filter);
    shown = [];
    for (let row = 0; row < rows; row += 1) if (tests.every((test) => test(row))) shown.push(row);
    const sorted = columns.find((column) => column.name === state.sort?.column);
    if (sorted) shown.sort(_order(sorted, state.sort.down));
    [...head.children].forEach((th, index) => {
      const is = columns[index] === sorted;
      th.setAttribute("aria-sort", is ? (state.sort.down ? "descending" : "ascending") : "none");
      th.firstChild.textContent = visible(columns[index].name) + (is ? (state.sort.down ? " ↓" : " ↑") : "");
    });
    count.textContent = shown.length === rows ? plural(rows, "row") : `${formatNumber(shown.length)} of ${plural(rows, "row")}`;
    chosen = state.row === undefined ? -1 : shown.indexOf(state.row);
    paint();
  }

  function paint() {
    const first = onPaper() ? 0 : Math.max(0, Math.floor(grid.scrollTop / ROW) - AHEAD);
    const end = onPaper() ? PRINTED : Math.ceil((grid.scrollTop + Math.max(grid.clientHeight, 520)) / ROW) + AHEAD;
    const last = Math.min(shown.length, end);
    const space = (height) => {
      const td = element("td", { colspan: columns.length });
      td.style.height = `${height}px`;
      return element("tr", { "aria-hidden": "true" }, td);
    };
    const made = [];
    if (first) made.push(space(first * ROW));
    for (let place = first; place < last; place += 1) made.push(line(place));
    if (last < shown.length) made.push(onPaper() ? rest(shown.length - last) : space((shown.length - last) * ROW));
    body.replaceChildren(...made);
  }

  function rest(number) {
    return element("tr", {}, element("td", { class: "soft", colspan: columns.length, text: `and ${plural(number, "row")} more` }));
  }

  function line(place) {
    const row = shown[place];
    const tr = element("tr", { "aria-rowindex": place + 2, class: place === chosen ? "chosen" : "" });
    for (const column of columns) {
      const value = column.at(row);
      const td = element("td", { class: column.kind === "number" ? "number" : "" });
      if (column.kind === "outcome" && value) td.append(badge(value));
      else if (column.kind === "number") {
        td.textContent = column.unit === "s" ? formatSeconds(value) : column.unit === "id" ? String(value ?? "–") : formatNumber(value);
        if (value !== null && value !== undefined) td.title = String(value);
      } else {
        const text = visible(value ?? "");
        td.textContent = text.length > 200 ? `${text.slice(0, 200)}…` : text;
        if (text.length > LONG) td.classList.add("long");
        if (text) td.title = text;
      }
      tr.append(td);
    }
    if (onRow) tr.addEventListener("click", () => onRow(_record(columns, row)));
    return tr;
  }

  grid.addEventListener("scroll", () => requestAnimationFrame(paint));
  grid.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && shown.length) {
      chosen = Math.min(shown.length - 1, Math.max(0, chosen + step));
      state.row = shown[chosen];
      const top = chosen * ROW;
      if (top < grid.scrollTop) grid.scrollTop = top;
      if (top + 3 * ROW > grid.scrollTop + grid.clientHeight) grid.scrollTop = top + 3 * ROW - grid.clientHeight;
      paint();
      event.preventDefault();
    } else if (event.key === "Enter" && chosen >= 0 && onRow) onRow(_record(columns, shown[chosen]));
  });
  refresh();
}

function _record(columns, row) {
  return Object.fromEntries(columns.map((column) => [column.name, column.at(row)]));
}

function _outcomeChoices(columns, state, changed) {
  const column = columns.find((each) => each.kind === "outcome");
  const names = [...new Set(column?.dictionary ?? column?.values ?? [])];
  if (names.length < 2) return null;
  const choose = (event) => {
    const rest = state.filter.split(/\s+/).filter((term) => term && !term.startsWith(`${column.name}:`));
    state.filter = [...rest, ...(event.target.value ? [`${column.name}:${event.target.value}`] : [])].join(" ");
    changed();
  };
  const options = names.map((name) => element("option", { value: name, text: visible(name).replaceAll("_", " "), selected: state.filter.includes(`${column.name}:${name}`) }));
  return element("select", { "aria-label": "Outcome", onchange: choose }, element("option", { value: "", text: "all outcomes" }), ...options);
}

/** One test for each term: `column:text`, `column>number`, or a text that any column has. */
function _tests(columns, filter) {
  return (filter.match(WORDS) ?? [])
    .map((term) => {
      const [, quoted, sign, raw] = TERM.exec(term) ?? [];
      const name = bare(quoted ?? "").toLowerCase();
      const column = columns.find((each) => each.name.toLowerCase() === name);
      const wanted = bare(raw ?? "");
      const number = wanted.trim() ? Number(wanted) : NaN;
      if (column && (sign === ">" || sign === "<" || sign === ">=" || sign === "<=") && !Number.isNaN(number)) {
        const holds = { ">": (a) => a > number, "<": (a) => a < number, ">=": (a) => a >= number, "<=": (a) => a <= number }[sign];
        return (row) => column.at(row) !== null && holds(column.at(row));
      }
      if (column && column.kind === "number" && !Number.isNaN(number)) return (row) => (column.at(row) === number) !== (sign === "!=");
      const text = (column && wanted ? wanted : bare(term)).toLowerCase();
      const has = (each, row) => String(each.at(row) ?? "").toLowerCase().includes(text);
      if (column) return (row) => has(column, row) !== (sign === "!=");
      return (row) => columns.some((each) => has(each, row));
    });
}

function _order(column, down) {
  const sign = down ? -1 : 1;
  return (a, b) => {
    const [one, other] = [column.at(a), column.at(b)];
    const none = (value) => value === null || value === undefined;
    if (none(one) || none(other)) return none(one) - none(other);
    if (one === other) return a - b;
    return sign * (typeof one === "string" ? one.localeCompare(other) : one - other);
  };
}
