// The whole job: the step time of all ranks over time or steps, with findings, later recordings and pauses.
const JOB = { height: 300, top: 34, bottom: 22, right: 12, above: 8, tallest: .99, room: 1.25 };
const SERIES = { step: "time of a step", data: "before forward calls", forward: "forward", backward: "backward (including waits)",
  optimizer: "optimizer" };

function wholeJob(job) {
  const state = { from: 0, to: 1, by: "time", series: "step", full: false, rank: null, near: null, chosen: -1 };
  const canvas = el("canvas"), holder = el("div", {}, canvas), ranks = job.ranks.map(String);
  const { figure: view, say } = chart(holder, "Step time over the whole job",
    "Point at a time for its steps and the nearest rank, or move with the arrow keys; zoom with + and -, drag to move. Lines above the top go on.");
  let laid = null;
  const redraw = () => { laid = paintJob(canvas, holder.clientWidth || 600, job, state); };
  function move(from, wide = state.to - state.from) {
    state.from = Math.min(Math.max(from, 0), 1 - wide);
    state.to = state.from + wide;
    redraw();
  }
  const zoom = (factor, middle = (state.from + state.to) / 2) => {
    const wide = Math.min(1, Math.max(2e-5, (state.to - state.from) * factor));
    move(middle - (middle - state.from) * wide / (state.to - state.from), wide);
  };
  function pick(index, y = null) {
    state.chosen = Math.min(Math.max(index, 0), job.points.first_step.length - 1);
    state.near = y === null ? state.near : nearestRank(laid, job, state, ranks, y);
    const part = laid.part(state.chosen);
    if (y === null && (part < state.from || part > state.to)) move(part - (state.to - state.from) / 2); else redraw();
    say(jobText(job, state, laid.band));
  }
  function turn(by) {
    const at = ranks.indexOf(state.rank ?? state.near);
    rank.select.value = state.rank = ranks[(at + by + ranks.length) % ranks.length];
    pick(Math.max(state.chosen, 0));
  }
  const keys = { ArrowRight: () => pick(state.chosen + 1), ArrowLeft: () => pick(state.chosen - 1), ArrowUp: () => turn(1), ArrowDown: () => turn(-1),
    "+": () => zoom(.5), "=": () => zoom(.5), "-": () => zoom(2), 0: () => move(0, 1) };
  holder.addEventListener("keydown", event => { if (keys[event.key]) { event.preventDefault(); keys[event.key](); } });
  dragging(canvas, state, { move, zoom, hit: (x, y) => pick(laid.at(x), y) });
  canvas.addEventListener("pointerleave", () => { state.near = null; redraw(); });
  whenResized(holder, redraw);
  const set = key => value => { state[key] = value; redraw(); };
  const series = choice("part", Object.keys(SERIES).filter(key => key === "step" || ranks.some(each => job.of_rank[each][key])).map(key => [key, SERIES[key]]), set("series"));
  const rank = choice("rank", [["", job.late_ranks.length ? "those with findings" : "none"], ...ranks.map(each => [each, `rank ${each}`])], value => set("rank")(value || null));
  const by = choice("across", [["time", "time"], ["steps", "steps"]], value => { Object.assign(state, { by: value, from: 0, to: 1 }); redraw(); });
  const full = choice("up to", [["", "usual steps"], ["yes", "the longest step"]], value => set("full")(value === "yes"));
  const show = finding => {
    state.series = series.select.value = [...series.select.options].some(each => each.value === finding.phase) ? finding.phase : "step";
    const one = finding.ranks.map(String).find(each => ranks.includes(each)) ?? "";
    rank.select.value = one;
    state.rank = one || null;
    const onset = laid.of(finding.step), end = finding.until_step === null ? 1 : laid.of(finding.until_step), wide = Math.min(1, Math.max(3 * (end - onset), .02));
    move(onset - wide / 3, wide);
    pick(laid.index(finding.step));
  };
  const button = (label, text, press) => el("button", { type: "button", "aria-label": label, click: press }, text);
  return [el("p", {}, sentence(`${job.sentence[0].toUpperCase()}${job.sentence.slice(1)}.`)),
    el("div", { class: "controls" }, series.label, rank.label, by.label, full.label, button("zoom in to the job", "+", () => zoom(.5)),
      button("zoom out of the job", "\u2212", () => zoom(2)), button("show the whole job", "whole job", () => move(0, 1))),
    legend([["median of the ranks", "var(--compute)"], ["from the fastest to the slowest rank", "color-mix(in srgb, var(--compute) 30%, var(--card))"], ["longest single steps", "var(--other)"],
      ...job.late_ranks.length ? [["rank with a finding, while it lasts", "var(--hot)"]] : [], ["chosen rank", "var(--data)"],
      ...job.windows.length ? [["recorded later", "color-mix(in srgb, var(--note) 18%, var(--card))"]] : [], ...job.pauses.length ? [["evaluation or checkpoint", "var(--moving)"]] : []]), view,
    jobFindings(job.findings, show), jobNumbers(job)].flat().filter(Boolean);
}

const jobFindings = (findings, show) => findings.length ? el("ol", { class: "marked" }, findings.map(finding => el("li", {}, sentence(finding.text), " ",
  el("button", { type: "button", "aria-label": `show: ${shown(finding.text)}`, click: () => show(finding) }, "show")))) : null;

/** Of each point, over ranks: [least, median, largest] in units. */
function bandOf(job, series) {
  if (series === "step") return { from: job.points.from, median: job.points.median, to: job.points.to, longest: job.points.longest };
  job.bands ||= {};
  if (job.bands[series]) return job.bands[series];
  const lines = job.ranks.map(rank => job.of_rank[rank][series]).filter(Boolean), band = { from: [], median: [], to: [], longest: null };
  job.points.median.forEach((_, index) => {
    const known = lines.map(line => line[index]).filter(value => value !== null).sort((a, b) => a - b), last = known.length - 1;
    band.from.push(last < 0 ? null : known[0]);
    band.median.push(last < 0 ? null : (known[last >> 1] + known[last + 1 >> 1]) / 2);
    band.to.push(last < 0 ? null : known[last]);
  });
  return job.bands[series] = band;
}

/** Where points and steps are, as parts of the whole job. */
function jobAxis(job, by) {
  const { first_step: first, last_step: last, begin_ns: begin, end_ns: end } = job.points, size = first.length;
  const [low, high] = by === "time" ? [begin, end] : [first, last.map(step => step + 1)], zero = low[0], whole = high[size - 1] - zero || 1;
  const index = step => { let a = 0, b = size; while (b - a > 1) { const middle = a + b >> 1; if (first[middle] <= step) a = middle; else b = middle; } return a; };
  const left = low.map(value => (value - zero) / whole), right = high.map(value => (value - zero) / whole);
  const of = step => { const at = index(step), inside = (step - first[at]) / (last[at] + 1 - first[at]); return left[at] + Math.min(Math.max(inside, 0), 1) * (right[at] - left[at]); };
  return { left, right, of, index, zero, whole };
}

function paintJob(canvas, width, job, state) {
  const axis = jobAxis(job, state.by), band = bandOf(job, state.series), ratio = window.devicePixelRatio || 1, paint = canvas.getContext("2d");
  Object.assign(canvas, { width: width * ratio, height: JOB.height * ratio });
  canvas.style.height = `${JOB.height}px`;
  paint.scale(ratio, ratio);
  paint.font = "12px system-ui, sans-serif";
  const colours = Object.fromEntries(["compute", "other", "hot", "data", "note", "moving", "bad", "soft", "line", "ink", "card"].map(name => [name, painted(name)]));
  const wide = width - LABEL - JOB.right, floor = JOB.height - JOB.bottom, most = tallest(job, band, state);
  const x = part => LABEL + (part - state.from) / (state.to - state.from) * wide, y = value => value > most ? JOB.top - JOB.above : floor - value / most * (floor - JOB.top);
  const seen = [...axis.left.keys()].filter(index => axis.right[index] >= state.from && axis.left[index] <= state.to);
  jobTicks(paint, { job, axis, state, x, y, width, floor, most, colours });
  paint.save();
  paint.beginPath(); paint.rect(LABEL, 0, wide, JOB.height); paint.clip();
  jobWindows(paint, { job, axis, x, floor, colours });
  const stairs = (values, back) => { for (const index of back ? [...seen].reverse() : seen) { if (values[index] === null) continue;
    const [one, two] = [x(axis.left[index]), x(axis.right[index])], at = y(values[index]);
    paint.lineTo(back ? two : one, at); paint.lineTo(back ? one : two, at); } };
  paint.fillStyle = colours.other;
  if (band.longest) for (const index of seen) if (band.longest[index] > band.to[index]) paint.fillRect(x((axis.left[index] + axis.right[index]) / 2) - .5, y(band.longest[index]), 1, y(band.to[index]) - y(band.longest[index]));
  paint.fillStyle = colours.compute;
  paint.globalAlpha = .3;
  paint.beginPath(); stairs(band.to); stairs(band.from, true); paint.closePath(); paint.fill();
  paint.globalAlpha = 1;
  const line = (values, colour, thick, inside = () => true) => { if (!values) return; paint.strokeStyle = colour; paint.lineWidth = thick; paint.beginPath(); let on = false, end = null;
    for (const index of seen) { if (values[index] === null || !inside(index)) { on = false; continue; } const one = x(axis.left[index]), at = y(values[index]);
      if (on && one - end < 2) paint.lineTo(one, at); else paint.moveTo(one, at); end = x(axis.right[index]); paint.lineTo(end, at); on = true; } paint.stroke(); };
  line(band.median, colours.compute, 1.5);
  if (state.rank === null) for (const rank of job.late_ranks) line(job.of_rank[rank]?.[state.series], colours.hot, 1.5, isLate(job, rank));
  for (const rank of [state.near, state.rank]) if (rank !== null) line(job.of_rank[rank][state.series], colours.data, rank === state.rank ? 2 : 1.25);
  jobMarks(paint, { job, axis, x, floor, colours, state });
  paint.restore();
  const at = pixel => { const part = state.from + (pixel - LABEL) / wide * (state.to - state.from); let a = 0, b = axis.left.length; while (b - a > 1) { const middle = a + b >> 1; if (axis.left[middle] <= part) a = middle; else b = middle; } return a; };
  return { at, y, band, of: axis.of, index: axis.index, part: index => (axis.left[index] + axis.right[index]) / 2 };
}

/** Whether a finding about a rank covers a point. */
function isLate(job, rank) {
  const mine = job.findings.filter(finding => finding.ranks.includes(rank)), { first_step: first, last_step: last } = job.points;
  return index => mine.some(({ step, until_step: until }) => last[index] >= step && (until === null || first[index] <= until));
}

/** The value at the top: above it are the few longest steps, unless these are asked for. */
function tallest(job, band, state) {
  const known = values => (values || []).filter(value => value !== null), sorted = known(band.to).sort((a, b) => a - b);
  if (state.full || !sorted.length) return known(band.longest || band.to).reduce((most, value) => Math.max(most, value), 1) * 1.05;
  const usual = sorted[Math.floor(sorted.length * JOB.tallest)], middle = sorted[sorted.length >> 1];
  return Math.max(Math.min(usual, 10 * middle) * JOB.room, 1);
}

function jobTicks(paint, { job, axis, state, x, y, width, floor, most, colours }) {
  paint.strokeStyle = colours.line;
  paint.fillStyle = colours.soft;
  paint.lineWidth = 1;
  paint.textAlign = "right";
  for (const value of [0, most / 2, most]) { paint.beginPath(); paint.moveTo(LABEL, y(value)); paint.lineTo(width - JOB.right, y(value)); paint.stroke(); paint.fillText(shown(value * job.unit_ns, "ns"), LABEL - 4, y(value) + 4); }
  const scale = state.by === "time" ? 1e9 : 1, [from, to] = [state.from, state.to].map(part => part * axis.whole / scale), rough = (to - from) / Math.max(2, width / 100);
  const unit = 10 ** Math.floor(Math.log10(rough || 1)), sizes = state.by === "time" && rough > 5 ? [10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400] : [1, 2, 5, 10].map(times => times * unit);
  const each = sizes.find(size => size >= rough) ?? Math.ceil(rough / 86400) * 86400, begin = state.by === "time" ? 0 : axis.zero;
  paint.textAlign = "left";
  for (let at = Math.ceil((from + begin) / each) * each; at <= to + begin; at += each) {
    const left = x((at - begin) * scale / axis.whole);
    paint.beginPath(); paint.moveTo(left, floor); paint.lineTo(left, floor + 5); paint.stroke();
    const text = state.by === "time" ? longTime(at) : Math.round(at).toLocaleString("en");
    if (left + paint.measureText(text).width < width) paint.fillText(text, left + 3, floor + 15);
  }
}

function jobWindows(paint, { job, axis, x, floor, colours }) {
  paint.fillStyle = colours.note;
  paint.globalAlpha = .18;
  for (const { step, until_step: until } of job.windows) { const left = x(axis.of(step)); paint.fillRect(left, JOB.top, Math.max(x(axis.of(until ?? step)) - left, 4), floor - JOB.top); }
  paint.globalAlpha = 1;
  paint.fillStyle = colours.moving;
  for (const { step } of job.pauses) paint.fillRect(x(axis.of(step)) - 1, floor - 7, 2, 7);
}

/** Onsets with the number of the finding, and ends. */
function jobMarks(paint, { job, axis, x, floor, colours, state }) {
  paint.lineWidth = 1;
  job.findings.forEach((finding, index) => {
    const left = x(axis.of(finding.step)), text = String(index + 1), high = 12 + index % 2 * 12, wide = paint.measureText(text).width;
    paint.strokeStyle = paint.fillStyle = finding.kind === "pauses" ? colours.soft : colours.bad;
    paint.beginPath(); paint.moveTo(left, high); paint.lineTo(left, floor); paint.stroke();
    paint.fillText(text, left + 3, high);
    if (finding.until_step === null) return;
    const right = x(axis.of(finding.until_step));
    paint.setLineDash([4, 3]); paint.beginPath(); paint.moveTo(right, high); paint.lineTo(right, floor); paint.moveTo(left + wide + 6, high - 4); paint.lineTo(right, high - 4); paint.stroke(); paint.setLineDash([]);
  });
  if (state.chosen < 0) return;
  const left = x((axis.left[state.chosen] + axis.right[state.chosen]) / 2);
  paint.strokeStyle = colours.ink;
  paint.beginPath(); paint.moveTo(left, JOB.top); paint.lineTo(left, floor); paint.stroke();
}

function nearestRank(laid, job, state, ranks, y) {
  const away = rank => { const value = job.of_rank[rank][state.series]?.[state.chosen]; return value === null || value === undefined ? Infinity : Math.abs(laid.y(value) - y); };
  return ranks.reduce((best, rank) => away(rank) < away(best) ? rank : best, ranks[0]);
}

/** `3 min 20 s`, `2 h 5 min`, `4.2 s`. */
function longTime(seconds) {
  if (seconds < 120) return `${Number(seconds.toFixed(3))} s`;
  const whole = Math.round(seconds), minutes = Math.floor(whole / 60);
  if (minutes < 120) return `${minutes} min${whole % 60 ? ` ${whole % 60} s` : ""}`;
  return `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
}

function jobText(job, state, band) {
  const at = state.chosen, { first_step: first, last_step: last, end_ns: end } = job.points, value = each => each === null || each === undefined ? UNKNOWN : shown(each * job.unit_ns, "ns");
  const steps = first[at] === last[at] ? `step ${first[at]}` : `steps ${first[at]} to ${last[at]}`, rank = state.rank ?? state.near;
  const noted = [...job.pauses.filter(one => one.step >= first[at] && one.step <= last[at]).map(one => one.kind),
    ...job.windows.filter(one => one.step >= first[at] && one.step <= last[at]).map(one => `recorded in window ${shown(one.number, "number")}`)];
  return `${steps}, ${longTime(end[at] / 1e9)} after the first: ${SERIES[state.series]} ${value(band.median[at])} (${value(band.from[at])} to ${value(band.to[at])} over ranks)`
    + (band.longest ? `, longest step ${value(band.longest[at])}` : "") + (rank === null ? "" : `; rank ${rank}: ${value(job.of_rank[rank][state.series]?.[at])}`)
    + (noted.length ? `; ${[...new Set(noted)].join(", ")}` : "");
}

function jobNumbers(job) {
  const { points, unit_ns: unit } = job, ns = value => value === null ? null : value * unit;
  const rows = points.first_step.map((step, index) => ({ step, end_ns: points.end_ns[index], median: ns(points.median[index]), from: ns(points.from[index]), to: ns(points.to[index]), longest: ns(points.longest[index]) }));
  return numbers([{ key: "step", label: "from step", kind: "number" }, { key: "end_ns", label: "until", kind: "ns" }, { key: "median", label: "median of ranks", kind: "ns" },
    { key: "from", label: "fastest rank", kind: "ns" }, { key: "to", label: "slowest rank", kind: "ns" }, { key: "longest", label: "longest step", kind: "ns" }], rows, "step times of the whole job");
}
