// Numbers as short texts with units: the same texts as distprof prints in a terminal. Unknown is a dash.
const UNKNOWN = "-";
const PREFIXES = ["", "K", "M", "G", "T", "P", "E"];

/** Digits after the point; what lies in the middle goes to the even neighbour, as Python rounds. */
function fixed(value, digits) {
  const middle = Number.isInteger(value * 2 ** (digits + 1)) && Math.abs(value * 10 ** digits % 1) === .5;
  return (middle ? 2 * Math.round(value * 10 ** digits / 2) / 10 ** digits : value).toFixed(digits);
}

function si(value, unit = "") {
  let scaled = value, index = 0;
  while (Math.abs(scaled) >= 999.995 && index < PREFIXES.length - 1) { scaled /= 1000; index += 1; }
  const text = index || scaled % 1 ? fixed(scaled, 2) : fixed(scaled, 0);
  return `${text} ${PREFIXES[index]}${unit}`.trimEnd();
}

function duration(ns) {
  for (const [least, size, unit] of [[999.995e6, 1e9, "s"], [999.995e3, 1e6, "ms"], [999.5, 1e3, "us"]]) {
    if (Math.abs(ns) >= least) return `${fixed(ns / size, 2)} ${unit}`;
  }
  return `${fixed(ns, 0)} ns`;
}

const KINDS = {
  ns: duration,
  bytes: value => si(value, "B"),
  count: value => si(value),
  flops: value => si(value, "FLOP"),
  flop_rate: value => si(value, "FLOP/s"),
  byte_rate: value => si(value, "B/s"),
  ratio: value => `${fixed(100 * value, 1)} %`,
  number: value => Number.isInteger(value) ? String(value) : value.toFixed(2),
  small: value => value < 0.0001 ? "< 0.0001" : value.toFixed(4),
  text: value => String(value),
};

/** A value as text; objects and lists (shapes, types of tensors) as compact JSON. */
function shown(value, kind = "text") {
  if (value === null || value === undefined || Number.isNaN(value)) return UNKNOWN;
  if (typeof value === "object") return JSON.stringify(value);
  return typeof value === "string" ? visible(value) : KINDS[kind](value);
}

/** Text without characters that change how the rest is read: they are written as escapes. */
function visible(text) {
  return text.replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g,
    found => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}
