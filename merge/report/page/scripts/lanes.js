// Swim lanes: the collectives of one step, one band a rank; waiting from the arrival until the last rank is there, then moving.
const LANE = 13, MOST_LANES = 4, GAP = 6, LABEL = 62, AXIS = 20;

function swimLanes({ steps, ops, groups, modules }, usual) {
  const state = { step: 0, from: 0, to: 1, chosen: -1 };
  const canvas = el("canvas"), holder = el("div", {}, canvas), below = el("div");
  const { figure: view, say } = chart(holder, "Timeline of collectives by rank",
    "Point at a call, or step through with left and right; zoom with + and -, drag to move.");
  let laid = null;
  const redraw = () => { laid = paintLanes(canvas, holder.clientWidth || 600, steps[state.step], state, ops); };
  const tell = part => say(part && laneText(part, steps[state.step], { ops, groups, modules }));
  function zoom(factor, middle = (state.from + state.to) / 2) {
    const wide = Math.min(1, Math.max(1e-5, (state.to - state.from) * factor));
    const from = middle - (middle - state.from) * wide / (state.to - state.from);
    move(Math.min(Math.max(from, 0), 1 - wide), wide);
  }
  function move(from, wide = state.to - state.from) {
    state.from = Math.min(Math.max(from, 0), 1 - wide);
    state.to = state.from + wide;
    redraw();
  }
  function pick(index) {
    const { parts } = laid;
    state.chosen = Math.min(Math.max(index, 0), parts.length - 1);
    const part = parts[state.chosen], length = steps[state.step].shown_ns, middle = (part.arrival_ns + part.end_ns) / 2 / length;
    if (middle < state.from || middle > state.to) move(middle - (state.to - state.from) / 2); else redraw();
    tell(part);
  }
  function show(index) {
    Object.assign(state, { step: index, from: 0, to: 1, chosen: -1 });
    redraw();
    below.replaceChildren(laneNumbers(steps[index], { ops, groups, modules }));
    say("");
  }
  const keys = { ArrowRight: () => pick(state.chosen + 1), ArrowLeft: () => pick(state.chosen - 1), "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), 0: () => move(0, 1) };
  holder.addEventListener("keydown", event => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } });
  dragging(canvas, state, { move, zoom, hit: (x, y) => { const index = hitLane(laid, x, y); if (index !== null) { state.chosen = index; redraw(); tell(laid.parts[index]); } } });
  whenResized(holder, redraw);
  const step = choice("step", steps.map((each, index) => [index, `${each.step} (${shown(each.duration_ns, "ns")})`]), value => show(Number(value)));
  step.select.value = middleStep(steps, usual);
  show(middleStep(steps, usual));
  const button = (label, text, press) => el("button", { type: "button", "aria-label": label, click: press }, text);
  return [el("div", { class: "controls" }, step.label, button("zoom in", "+", () => zoom(.5)), button("zoom out", "\u2212", () => zoom(2)),
    button("show the whole step", "whole step", () => move(0, 1)),
    legend([["waiting for the last rank", "var(--waiting)"], ["moving data", "var(--moving)"], ["unknown clock or end", "var(--other)"]])), view, below];
}

/** The step of median length: the one to look at first. Steps in which the profiler warms up are not `usual`. */
function middleStep(steps, usual) {
  const indices = steps.map((_, index) => index), known = indices.filter(index => !usual || usual.includes(steps[index].step));
  const sorted = (known.length ? known : indices).sort((a, b) => steps[a].duration_ns - steps[b].duration_ns);
  return sorted[Math.floor(sorted.length / 2)];
}

/** Parts of a step with the lane of its rank that each lies in: calls in flight together lie below each other. */
function laneLayout(step) {
  const parts = rowsOf(step.parts).map(part => ({ ...part, known: part.end_ns !== null && part.arrival_ns !== null }));
  for (const part of parts) { part.arrival_ns ??= part.end_ns ?? 0; part.end_ns ??= part.arrival_ns; }
  parts.sort((a, b) => a.arrival_ns - b.arrival_ns || a.rank - b.rank);
  const ranks = [...new Set(parts.map(part => part.rank))].sort((a, b) => a - b), ends = new Map(ranks.map(rank => [rank, []]));
  for (const part of parts) {
    const busy = ends.get(part.rank);
    let lane = busy.findIndex(end => end <= part.arrival_ns);
    if (lane < 0) lane = busy.length < MOST_LANES ? busy.length : busy.indexOf(Math.min(...busy));
    busy[lane] = Math.max(part.end_ns, busy[lane] || 0);
    part.lane = lane;
  }
  const tops = new Map();
  let top = AXIS;
  for (const rank of ranks) { tops.set(rank, top); top += ends.get(rank).length * LANE + GAP; }
  return { parts, ranks, tops, height: top };
}

function paintLanes(canvas, width, step, state, ops) {
  const laid = step.laid ||= laneLayout(step), ratio = window.devicePixelRatio || 1, paint = canvas.getContext("2d");
  Object.assign(canvas, { width: width * ratio, height: laid.height * ratio });
  canvas.style.height = `${laid.height}px`;
  paint.scale(ratio, ratio);
  const colours = Object.fromEntries(["waiting", "moving", "other", "soft", "line", "ink", "card"].map(name => [name, painted(name)]));
  const wide = width - LABEL, span = (state.to - state.from) * step.shown_ns || 1;
  const x = ns => LABEL + (ns - state.from * step.shown_ns) / span * wide;
  Object.assign(laid, { x, boxes: [] });
  paint.font = "12px system-ui, sans-serif";
  timeTicks(paint, x, state, step, width, laid.height, colours);
  laid.parts.forEach((part, index) => {
    const left = Math.max(x(part.arrival_ns), LABEL), right = Math.min(x(part.end_ns), width);
    if (right < LABEL || left > width) return;
    const top = laid.tops.get(part.rank) + part.lane * LANE, full = Math.min(Math.max(x(part.full_ns ?? part.arrival_ns), left), right);
    paint.fillStyle = part.known ? colours.waiting : colours.other;
    paint.fillRect(left, top, Math.max(full - left, 0), LANE - 2);
    paint.fillStyle = part.known ? colours.moving : colours.other;
    paint.fillRect(full, top, Math.max(right - full, 1), LANE - 2);
    if (index === state.chosen) { paint.strokeStyle = colours.ink; paint.lineWidth = 2; paint.strokeRect(left, top, Math.max(right - left, 2), LANE - 2); }
    const name = ops[step.calls.op[part.call]];
    if (right - left > paint.measureText(name).width + 8) { paint.fillStyle = "#0d1420"; paint.font = "10px system-ui, sans-serif"; paint.fillText(name, left + 4, top + 9); paint.font = "12px system-ui, sans-serif"; }
    laid.boxes.push([left, top, Math.max(right - left, 3), index]);
  });
  paint.fillStyle = colours.card;
  paint.fillRect(0, AXIS, LABEL - 2, laid.height);
  paint.fillStyle = colours.soft;
  for (const rank of laid.ranks) paint.fillText(`rank ${rank}`, 0, laid.tops.get(rank) + 10);
  return laid;
}

function timeTicks(paint, x, state, step, width, height, colours) {
  const [from, to] = [state.from * step.shown_ns, state.to * step.shown_ns];
  const rough = (to - from) / Math.max(2, width / 110), unit = 10 ** Math.floor(Math.log10(rough || 1));
  const each = [1, 2, 5, 10].map(times => times * unit).find(size => size >= rough);
  paint.strokeStyle = colours.line;
  paint.fillStyle = colours.soft;
  for (let at = Math.ceil(from / each) * each; at <= to; at += each) {
    paint.beginPath(); paint.moveTo(x(at), AXIS - 4); paint.lineTo(x(at), height); paint.stroke();
    if (x(at) < width - 50) paint.fillText(shown(at, "ns"), x(at) + 2, 11);
  }
}

function hitLane(laid, x, y) {
  const found = laid.boxes.filter(([left, top, wide]) => x >= left - 1 && x <= left + wide + 1 && y >= top - 1 && y < top + LANE);
  return found.length ? found[found.length - 1][3] : null;
}

function dragging(canvas, state, { move, zoom, hit }) {
  let grabbed = null;
  canvas.addEventListener("pointerdown", event => { grabbed = { x: event.offsetX, from: state.from }; canvas.setPointerCapture(event.pointerId); hit(event.offsetX, event.offsetY); });
  canvas.addEventListener("pointerup", () => { grabbed = null; });
  canvas.addEventListener("pointercancel", () => { grabbed = null; });
  canvas.addEventListener("pointermove", event => {
    if (!grabbed) hit(event.offsetX, event.offsetY);
    else if (state.to - state.from < 1) move(grabbed.from - (event.offsetX - grabbed.x) / (canvas.clientWidth - LABEL) * (state.to - state.from));
  });
  canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey && !event.shiftKey) return;  // plain scrolling stays the page's
    event.preventDefault();
    zoom(event.deltaY + event.deltaX > 0 ? 1.25 : .8, state.from + (event.offsetX - LABEL) / (canvas.clientWidth - LABEL) * (state.to - state.from));
  }, { passive: false });
}

function laneText(part, step, { ops, groups, modules }) {
  const { calls } = step, call = part.call, module = modules[calls.module?.[call]];
  const waiting = part.full_ns === null || !part.known ? null : part.full_ns - part.arrival_ns;
  const moving = part.full_ns === null || !part.known ? null : part.end_ns - part.full_ns;
  return `rank ${part.rank}: ${ops[calls.op[call]]} in ${shown(groups[calls.group[call]]?.description)}, ${shown(calls.size_bytes[call], "bytes")}, `
    + `arrived at ${shown(part.arrival_ns, "ns")} of the step, waited ${shown(waiting, "ns")}, moved ${shown(moving, "ns")}`
    + (calls.late_rank[call] === null ? "" : `; last to arrive: rank ${calls.late_rank[call]}`) + (module ? `; in ${shown(module)}` : "");
}

function laneNumbers(step, { ops, groups, modules }) {
  const rows = rowsOf(step.parts).map(part => ({ ...part, collective: step.calls.collective[part.call], op: ops[step.calls.op[part.call]],
    group: groups[step.calls.group[part.call]]?.description, size_bytes: step.calls.size_bytes[part.call], module: modules[step.calls.module?.[part.call]],
    waiting_ns: part.full_ns === null || part.arrival_ns === null ? null : part.full_ns - part.arrival_ns,
    moving_ns: part.full_ns === null || part.end_ns === null ? null : part.end_ns - part.full_ns }));
  return numbers([{ key: "collective", label: "collective", kind: "number" }, { key: "rank", label: "rank", kind: "number" }, { key: "op", label: "operation", kind: "text" },
    { key: "group", label: "group", kind: "text" }, { key: "size_bytes", label: "bytes", kind: "bytes" }, { key: "arrival_ns", label: "arrival", kind: "ns" },
    { key: "waiting_ns", label: "waiting", kind: "ns" }, { key: "moving_ns", label: "moving", kind: "ns" }, { key: "module", label: "module", kind: "name" }],
  rows, `collectives of step ${step.step}`);
}
