// Tables that can be sorted by a click on a heading and filtered by what is typed.
const FIRST_ROWS = 50;

/** A table. Columns: {key, label, kind, text}; rows: objects. Returns its element. */
function table(columns, rows, { caption = "", filter = "", sort = null, tall = false } = {}) {
  const state = { key: sort, down: true, words: "", all: rows.length <= FIRST_ROWS * 1.2 };
  const body = el("tbody"), more = el("button", { type: "button", click: () => { state.all = true; draw(); } });
  const headings = columns.map(column => el("th", { scope: "col", class: textual(column) ? "text" : null },
    sort === null ? column.label : el("button", { type: "button", click: () => turn(column.key) }, column.label)));
  const found = el("span", { class: "soft", role: "status" });
  function turn(key) { state.down = state.key === key ? !state.down : true; state.key = key; draw(); }
  function draw() {
    const chosen = inOrder(rows.filter(row => matches(row, columns, state.words)), state);
    body.replaceChildren(...(state.all ? chosen : chosen.slice(0, FIRST_ROWS)).map(row => line(columns, row)));
    more.hidden = state.all || chosen.length <= FIRST_ROWS;
    more.textContent = `show all ${chosen.length} rows`;
    found.textContent = state.words ? `${chosen.length} of ${rows.length}` : "";
    headings.forEach((heading, index) => columns[index].key === state.key
      ? heading.setAttribute("aria-sort", state.down ? "descending" : "ascending") : heading.removeAttribute("aria-sort"));
  }
  draw();
  const search = filter ? el("div", { class: "controls" }, el("label", {}, filter,
    el("input", { type: "search", input: event => { state.words = event.target.value.toLowerCase(); draw(); } })), found) : null;
  const grid = el("table", {}, el("thead", {}, el("tr", {}, headings)), body);
  return el("div", {}, caption ? el("p", { class: "soft" }, `${caption[0].toUpperCase()}${caption.slice(1)}`) : null, search, el("div", { class: tall ? "scroll tall" : "scroll", tabindex: "0", role: "group",
    "aria-label": caption || filter || columns[0].label }, grid), more);
}

const LONGEST_NAME = 100;
const textual = column => ["name", "file", "text"].includes(column.kind);
const isName = column => column.kind === "name" || column.kind === "file";

function line(columns, row) {
  return el("tr", {}, columns.map((column, index) => {
    const value = row[column.key];
    const content = column.key === "module" && value === "" ? "(root)" : column.kind === "file" ? fileName(value)
      : column.kind === "name" ? briefName(shown(value)) : textual(column) ? shown(value) : figure(value, column.kind);
    return index === 0 ? el("th", { scope: "row", class: isName(column) ? "name" : null }, content)
      : el("td", { class: isName(column) ? "name" : textual(column) ? "text" : null }, content);
  }));
}

/** The last part of a path; the whole one is shown to who points at it. */
const fileName = path => path ? el("span", { title: shown(path) }, shown(path.split(/[\\/]/).at(-1))) : shown(path);

/** Names of kernels have all their types in them; the whole one is shown to who points at it. */
const briefName = name => name.length <= LONGEST_NAME ? name : el("span", { title: name }, `${name.slice(0, LONGEST_NAME - 1)}…`);

function matches(row, columns, words) {
  return !words || columns.some(column => textual(column) && shown(row[column.key]).toLowerCase().includes(words));
}

/** Rows by a column; unknown values come last either way. */
function inOrder(rows, { key, down }) {
  if (!key) return rows;
  const known = rows.filter(row => row[key] !== null && row[key] !== undefined);
  const unknown = rows.filter(row => row[key] === null || row[key] === undefined);
  const sign = down ? -1 : 1;
  known.sort((a, b) => sign * (typeof a[key] === "number" ? a[key] - b[key] : shown(a[key]).localeCompare(shown(b[key]))));
  return [...known, ...unknown];
}

/** A table that stands in for a chart. */
const openNumbers = (columns, rows, caption) => table(columns, rows, { caption, tall: rows.length > 15 });

/** The numbers behind a chart, folded away. */
const numbers = (columns, rows, caption) => el("details", {}, el("summary", {}, "Numbers"), openNumbers(columns, rows, caption));
