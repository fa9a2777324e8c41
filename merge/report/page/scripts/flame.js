// Modules as an icicle (root above) or a flame (root below): the wider, the more. A click or Enter goes into a module.
const ROW = 21, SMALLEST = 0.0008;
const METRICS = {
  time: ["time, forward and backward", "ns"], fwd_time_ns: ["forward time", "ns"], bwd_time_ns: ["backward time", "ns"],
  flops: ["FLOPs, forward and backward", "flops"], fwd_flops: ["forward FLOPs", "flops"], bwd_flops: ["backward FLOPs", "flops"],
  params: ["parameters", "count"], peak_bytes: ["memory at peak", "bytes"], activation_bytes: ["kept for backward", "bytes"],
};
const TINTS = ["#8fb8ee", "#f0b48a", "#9ed3b1", "#d3b0e6", "#e9cf7c", "#8fd0d6", "#eea6b3", "#b9c78a"];

function moduleFlame({ tree, of_ranks: ofRanks }) {
  const rows = rowsOf(tree), children = rows.map(() => []);
  rows.forEach((row, index) => row.parent >= 0 && children[row.parent].push(index));
  const roots = rows.flatMap((row, index) => row.parent < 0 ? [index] : []);
  const state = { metric: null, rank: "mean", up: false, root: null, words: "" };
  const holder = el("div", { class: "flame" }), path = el("span", { class: "name" }), caption = el("figcaption", { "aria-live": "polite" });
  const value = index => ownValue(rows[index], index, state, ofRanks);
  const total = memoised(index => Math.max(value(index) || 0, children[index].reduce((sum, child) => sum + total(child), 0)));
  const metrics = Object.keys(METRICS).filter(metric => { state.metric = metric; total.forget(); return roots.some(root => total(root) > 0); });
  if (!metrics.length) return [el("p", { class: "absent" }, "Modules have neither times nor counts.")];
  state.metric = metrics[0];
  const describe = index => `${shown(rows[index].path) || "(root)"}, ${shown(rows[index].class_name)}: ${shown(value(index), METRICS[state.metric][1])}`;
  function draw() {
    total.forget();
    const from = state.root === null ? roots : [state.root], placed = flameLayout(from, children, total);
    const deepest = Math.max(...placed.map(box => box.depth)) + 1;
    holder.style.height = `${deepest * ROW}px`;
    holder.replaceChildren(...placed.map(box => flameBox(box, rows[box.index], { state, deepest, describe, total, value,
      into: () => { state.root = state.root === box.index ? null : box.index; draw(); }, say: text => { caption.textContent = text; } })));
    path.textContent = state.root === null ? "" : shown(rows[state.root].path) || "(root)";
    back.hidden = state.root === null;
  }
  const back = el("button", { type: "button", click: () => { state.root = null; draw(); } }, "back to the whole model");
  const set = key => chosen => { state[key] = chosen; draw(); };
  const metric = choice("by", metrics.map(key => [key, METRICS[key][0]]), set("metric"));
  const rank = choice("of", [["mean", "all ranks, mean"], ...Object.keys(ofRanks || {}).map(each => [each, `rank ${each}`])], set("rank"));
  const shape = choice("as", [["icicle", "icicle, root above"], ["flame", "flame, root below"]], chosen => { state.up = chosen === "flame"; draw(); });
  const search = el("label", {}, "find", el("input", { type: "search", placeholder: "module or class", input: event => { state.words = event.target.value.toLowerCase(); draw(); } }));
  holder.addEventListener("keydown", event => { if (event.key === "Escape") { state.root = null; draw(); } });
  draw();
  return [el("div", { class: "controls" }, metric.label, rank.label, shape.label, search, back, path),
    el("figure", {}, holder, caption), moduleNumbers(rows)];
}

/** What a module itself was measured to take; times are those of one rank where one is chosen. */
function ownValue(row, index, { metric, rank }, ofRanks) {
  const of = key => rank !== "mean" && ofRanks[rank]?.[key] ? ofRanks[rank][key][index] : row[key];
  if (metric === "time") return sumKnown(of("fwd_time_ns"), of("bwd_time_ns"));
  if (metric === "flops") return sumKnown(row.fwd_flops, row.bwd_flops);
  return of(metric) ?? null;
}

const sumKnown = (...values) => values.every(value => value === null || value === undefined) ? null : values.reduce((sum, value) => sum + (value || 0), 0);

function memoised(compute) {
  let known = new Map();
  const look = index => { if (!known.has(index)) known.set(index, compute(index)); return known.get(index); };
  look.forget = () => { known = new Map(); };
  return look;
}

/** Boxes with place and width as parts of the whole; modules too narrow to see are left out with what is below them. */
function flameLayout(from, children, total) {
  const whole = from.reduce((sum, index) => sum + total(index), 0) || 1, placed = [];
  const put = (indices, left, depth) => {
    for (const index of indices) {
      const wide = total(index) / whole;
      if (wide < SMALLEST) continue;
      placed.push({ index, left, wide, depth });
      put(children[index], left, depth + 1);
      left += wide;
    }
  };
  put(from, 0, 0);
  return placed;
}

function flameBox({ index, left, wide, depth }, row, { state, deepest, describe, into, say }) {
  const found = state.words && `${row.path} ${row.class_name}`.toLowerCase().includes(state.words);
  const name = shown(row.path).split(".").pop() || shown(row.class_name);
  return el("button", { type: "button", class: state.words ? (found ? "found" : "faded") : null, title: describe(index), "aria-label": describe(index),
    style: `left:${100 * left}%;width:${100 * wide}%;top:${(state.up ? deepest - 1 - depth : depth) * ROW}px;background:${tint(row.class_name)}`,
    click: into, pointerenter: () => say(describe(index)), focus: () => say(describe(index)) }, wide > 0.02 ? name : "");
}

function tint(className) {
  let hash = 0;
  for (const letter of className || "") hash = (hash * 31 + letter.charCodeAt(0)) >>> 0;
  return TINTS[hash % TINTS.length];
}

const moduleNumbers = rows => numbers([{ key: "path", label: "module", kind: "name" }, { key: "class_name", label: "class", kind: "name" },
  { key: "params", label: "parameters", kind: "count" }, { key: "fwd_flops", label: "forward FLOPs", kind: "flops" }, { key: "bwd_flops", label: "backward FLOPs", kind: "flops" },
  { key: "fwd_time_ns", label: "forward", kind: "ns" }, { key: "bwd_time_ns", label: "backward", kind: "ns" }, { key: "fwd_self_time_ns", label: "forward, self", kind: "ns" },
  { key: "bwd_self_time_ns", label: "backward, self", kind: "ns" }, { key: "slowest_rank", label: "slowest rank", kind: "number" },
  ...["peak_bytes", "activation_bytes"].filter(key => rows.some(row => typeof row[key] === "number")).map(key => ({ key, label: METRICS[key][0], kind: "bytes" }))],
rows.map(row => ({ ...row, path: row.path || "(root)" })), "modules, per GPU");
