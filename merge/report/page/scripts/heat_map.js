// A heat map: ranks down, steps across, the darker the longer.
const HEAT = { duration_ns: "time of the step", waiting_ns: "waiting for other ranks", compute_ns: "computing" };

function heatMap({ by }) {
  const rows = rowsOf(by), metrics = Object.keys(HEAT).filter(key => rows.some(row => typeof row[key] === "number"));
  const ranks = [...new Set(rows.map(row => row.rank))].sort((a, b) => a - b);
  const steps = [...new Set(rows.map(row => row.step))].sort((a, b) => a - b);
  const at = new Map(rows.map(row => [`${row.rank} ${row.step}`, row]));
  const holder = el("div"), scale = el("ul", { class: "legend" });
  const { figure: view, say } = chart(holder, `Heat map of ${ranks.length} ranks and ${steps.length} steps`,
    "Point at a cell, or move with the arrow keys.");
  const chosen = { metric: metrics[0], row: 0, column: 0 };
  const describe = row => row ? `rank ${row.rank}, step ${row.step} (${row.pass}): ${metrics.map(key =>
    `${HEAT[key]} ${shown(row[key], "ns")}`).join(", ")}` : "not recorded";
  function draw() {
    holder.replaceChildren(cells(chosen, ranks, steps, at, holder.clientWidth || 600, row => say(describe(row))));
    const values = rows.map(row => row[chosen.metric]).filter(value => typeof value === "number");
    scale.replaceChildren(...legend([[shown(Math.min(...values), "ns"), "var(--low)"], [shown(Math.max(...values), "ns"), "var(--high)"]]).children);
  }
  holder.addEventListener("keydown", event => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    chosen.row = Math.min(Math.max(chosen.row + move[0], 0), ranks.length - 1);
    chosen.column = Math.min(Math.max(chosen.column + move[1], 0), steps.length - 1);
    draw();
    say(describe(at.get(`${ranks[chosen.row]} ${steps[chosen.column]}`)));
  });
  whenResized(holder, draw);
  const metric = choice("colour", metrics.map(key => [key, HEAT[key]]), value => { chosen.metric = value; draw(); });
  return [el("h3", {}, "Every rank in every recorded step"), el("div", { class: "controls" }, metric.label, scale), view,
    numbers([{ key: "rank", label: "rank", kind: "number" }, { key: "step", label: "step", kind: "number" },
      { key: "pass", label: "pass", kind: "text" }, ...metrics.map(key => ({ key, label: HEAT[key], kind: "ns" }))], rows, "steps of the ranks shown")];
}

function cells(chosen, ranks, steps, at, width, over) {
  const left = 56, top = 18, height = Math.max(6, Math.min(24, 640 / ranks.length)), wide = (width - left) / steps.length;
  const values = [...at.values()].map(row => row[chosen.metric]).filter(value => typeof value === "number");
  const low = Math.min(...values), high = Math.max(...values);
  const drawing = svg("svg", { width, height: top + ranks.length * height + 2, "aria-hidden": "true" });
  const each = Math.ceil(28 / wide), rankEach = Math.ceil(13 / height);
  steps.forEach((step, column) => column % each === 0 && drawing.append(
    svg("text", { x: left + (column + .5) * wide, y: 12, "text-anchor": "middle" }, String(step))));
  ranks.forEach((rank, row) => {
    if (row % rankEach === 0) drawing.append(svg("text", { x: left - 6, y: top + (row + .5) * height + 4, "text-anchor": "end" }, `rank ${rank}`));
    steps.forEach((step, column) => {
      const cell = at.get(`${rank} ${step}`), value = cell && cell[chosen.metric];
      const part = typeof value === "number" ? (high > low ? 100 * (value - low) / (high - low) : 50) : null;
      drawing.append(svg("rect", { x: left + column * wide, y: top + row * height, width: Math.max(wide - 1, 1), height: Math.max(height - 1, 1),
        fill: part === null ? "var(--faint)" : `color-mix(in oklab, var(--high) ${part.toFixed(1)}%, var(--low))`,
        stroke: row === chosen.row && column === chosen.column ? "var(--hot)" : "none", "stroke-width": 2,
        pointerenter: () => over(cell), click: () => over(cell) }));
    });
  });
  return drawing;
}
