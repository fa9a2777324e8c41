// Elements of the page. Text is only ever set as text, never parsed as HTML.
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter(child => child !== null && child !== undefined));
  return element;
}

/** An HTML element; attributes whose value is a function are listeners of that event. */
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

/** An SVG element. */
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A sentence: names between backticks are set as code. An odd number of backticks means that a name has one. */
function sentence(text) {
  const parts = shown(text).split("`");
  return parts.length % 2 ? parts.map((part, number) => number % 2 ? el("code", {}, part) : part) : [shown(text)];
}

/** A number with its exact value beside its text. */
const figure = (value, kind) => value === null || value === undefined
  ? el("span", {}, UNKNOWN) : el("data", { value: String(value) }, shown(value, kind));

/** A labelled choice; `chosen` gets the value that was chosen. */
function choice(label, options, chosen) {
  const select = el("select", { "aria-label": label, change: () => chosen(select.value) },
    options.map(([value, text]) => el("option", { value }, text)));
  return { label: el("label", {}, label, select), select };
}

/** A legend: names with their colours. */
const legend = entries => el("ul", { class: "legend" },
  entries.map(([name, colour]) => el("li", {}, el("i", { style: `background:${colour}` }), name)));

/** A colour of the style as the browser computes it, for what is painted on a canvas. */
function painted(name) {
  const probe = el("span", { style: `color:var(--${name});display:none` });
  document.body.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

/** Rows of a columnar table as objects. */
function rowsOf(columns) {
  const names = Object.keys(columns);
  return (columns[names[0]] || []).map((_, index) => Object.fromEntries(names.map(name => [name, columns[name][index]])));
}

/** Draws again when the width of an element or the colours of the page change. */
function whenResized(element, draw) {
  let width = 0;
  new ResizeObserver(() => {
    if (element.clientWidth && element.clientWidth !== width) { width = element.clientWidth; draw(); }
  }).observe(element);
  document.addEventListener("themechange", draw);
}

/** What a chart says about the item under the pointer or chosen by the arrow keys: one line below it. */
function chart(drawing, label, hint) {
  const caption = el("figcaption", { "aria-live": "polite" }, hint);
  fill(drawing, { tabindex: "0", role: drawing.getAttribute("role") || "img", "aria-label": `${label}. ${hint}` }, []);
  return { figure: el("figure", {}, drawing, caption), say: text => { caption.textContent = text || hint; } };
}
