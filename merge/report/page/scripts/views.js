// One function a section: what of the document it shows, in which charts and tables.
const VIEWS = {
  whole_job: page => wholeJob(page.whole_job),
  steps: page => [...page.step_parts ? stepParts(page.step_parts) : [], ...page.heat_map ? heatMap(page.heat_map) : []],
  collectives: page => [...page.collectives.steps.length ? swimLanes(page.collectives, page.step_parts?.steps) : [],
    ...page.collective_kinds?.length ? [el("h3", {}, "By operation and group"), collectiveKinds(page.collective_kinds)] : []],
  bandwidths: page => bandwidthView(page.bandwidths),
  modules: page => moduleFlame(page.modules),
  operators: page => operatorView(page.operators),
  memory: page => [...page.memory ? memoryView(page.memory) : [], ...page.peak_memory ? peakView(page.peak_memory) : []],
  waits: page => [...page.script_lines ? linesView(page.script_lines) : [], ...page.waits ? [el("h3", {}, "Waits"), ...waitsView(page.waits)] : []],
  critical_path: page => criticalView(page.critical_path),
  clock: page => [table([{ key: "rank", label: "rank", kind: "number" }, { key: "host", label: "host", kind: "name" }, { key: "offset_ns", label: "offset", kind: "ns" },
    { key: "drift_ppm", label: "drift, ppm", kind: "number" }, { key: "uncertainty_ns", label: "uncertainty", kind: "ns" }], rowsOf(page.clock.ranks), { caption: "clocks by rank", tall: true })],
};

const collectiveKinds = kinds => table([{ key: "op", label: "operation", kind: "text" }, { key: "group", label: "group", kind: "text" },
  { key: "num_ranks", label: "ranks", kind: "number" }, { key: "calls_per_step", label: "calls per step", kind: "number" }, { key: "min_bytes", label: "least", kind: "bytes" },
  { key: "max_bytes", label: "most", kind: "bytes" }, { key: "spread_median_ns", label: "arrival spread, median", kind: "ns" }, { key: "wait_ns", label: "waiting per step", kind: "ns" },
  { key: "transfer_ns", label: "moving per step", kind: "ns" }, { key: "algbw", label: "algorithm bandwidth", kind: "byte_rate" }, { key: "busbw", label: "bus bandwidth", kind: "byte_rate" }],
kinds, { sort: "wait_ns", caption: "collectives per step", filter: kinds.length > 12 ? "find" : "" });

/** Fewer are read more easily in the table. */
const FEWEST_POINTS = 4;

function bandwidthView(rows) {
  const series = [...new Set(rows.map(row => `${row.op} in ${row.group_description}`))];
  const points = rows.filter(row => row.busbw_median > 0 && row.size_bucket > 0).map(row => ({ x: row.size_bucket, y: row.busbw_median, size: 5,
    colour: TINTS[series.indexOf(`${row.op} in ${row.group_description}`) % TINTS.length],
    text: `${row.op} in ${shown(row.group_description)}, ${row.num_ranks} ranks, about ${shown(row.size_bucket, "bytes")}: ${shown(row.busbw_median, "byte_rate")} median of ${row.num_measured}` }));
  return [...points.length >= FEWEST_POINTS ? [legend(series.slice(0, 12).map((name, index) => [shown(name), TINTS[index % TINTS.length]])),
    scatter(points, { label: "Bus bandwidth by size", across: "bytes per call", up: "bus bandwidth, median", xKind: "bytes", yKind: "byte_rate" })] : [],
  (points.length >= FEWEST_POINTS ? numbers : openNumbers)([{ key: "op", label: "operation", kind: "text" }, { key: "group_description", label: "group", kind: "text" }, { key: "num_ranks", label: "ranks", kind: "number" },
    { key: "size_bucket", label: "about", kind: "bytes" }, { key: "num_measured", label: "measured", kind: "number" }, { key: "algbw", label: "algorithm bandwidth", kind: "byte_rate" },
    { key: "busbw_median", label: "bus, median", kind: "byte_rate" }, { key: "busbw_max", label: "bus, most", kind: "byte_rate" }], rows, "bandwidth by size")];
}

const OPERATOR_COLUMNS = { op: ["operator", "name"], class: ["class", "name"], module: ["module", "name"], phase: ["phase", "text"], self_device_ns: ["device, self", "ns"],
  self_host_ns: ["host, self", "ns"], share: ["share", "ratio"], calls: ["calls", "number"], mean_ns: ["mean", "ns"], max_ns: ["longest", "ns"], device_ns: ["device, total", "ns"],
  host_ns: ["host, total", "ns"], flops: ["FLOPs", "flops"], flops_per_second: ["rate", "flop_rate"], bytes_per_second: ["bandwidth", "byte_rate"], flops_per_byte: ["FLOP/byte", "number"],
  roofline_ratio: ["of roofline", "ratio"], bound: ["bound by", "text"], slowest_rank: ["slowest rank", "number"], slowest_ratio: ["by", "number"], slowest_p_value: ["p", "small"],
  type: ["type", "text"], dtypes: ["input types", "text"], shapes: ["input shapes", "text"] };

function operatorView({ columns, rows, peak_flops_per_second: peak, peak_bytes_per_second: bandwidth, peak_basis: basis }) {
  const objects = rows.map(row => Object.fromEntries(columns.map((name, index) => [name, row[index]])));
  const device = objects.some(row => row.self_device_ns > 0), time = device ? "self_device_ns" : "self_host_ns";
  const used = Object.keys(OPERATOR_COLUMNS).filter(key => columns.includes(key) && objects.some(row => row[key] !== null && row[key] !== 0));
  const most = Math.max(...objects.map(row => row[time] || 0)) || 1;
  const points = objects.filter(row => row.flops_per_byte > 0 && row.flops_per_second > 0).map(row => ({ x: row.flops_per_byte, y: row.flops_per_second,
    size: 3 + 11 * Math.sqrt((row[time] || 0) / most), colour: tint(row.op), text: `${shown(row.op)}${row.module ? ` in ${shown(row.module)}` : ""}: ${shown(row.flops_per_second, "flop_rate")} `
      + `at ${row.flops_per_byte.toFixed(2)} FLOP/byte, ${shown(row[time], "ns")} in all, ${row.calls} calls` }));
  const roof = (from = 1, to = 1e6) => !peak ? [] : bandwidth ? [[[from, Math.min(peak, from * bandwidth)], [peak / bandwidth, peak], [to, peak]]] : [[[from, peak], [to, peak]]];
  return [table(used.map(key => ({ key, label: OPERATOR_COLUMNS[key][0], kind: OPERATOR_COLUMNS[key][1] })), objects, { sort: time, filter: "find operator or class", tall: true, caption: "" }),
    ...points.length ? [el("h3", {}, "Roofline"), el("p", { class: "soft" }, basis ? sentence(basis) : "No peak is known for this device, so there is no roof line."),
      scatter(points, { label: "Roofline of operators", across: "FLOP per byte", up: "FLOP/s", xKind: "number", yKind: "flop_rate", lines: roof })] : []];
}

function memoryView({ ranks, categories, timeline, at_peak: atPeak }) {
  return [...timeline && Object.keys(timeline).length ? memoryCurves(timeline) : [],
    table([{ key: "rank", label: "rank", kind: "number" }, { key: "peak_bytes", label: "peak", kind: "bytes" },
      ...(categories?.names || []).map(name => ({ key: `category ${name}`, label: `${name} at the peak`, kind: "bytes" }))],
    rowsOf(ranks).map((row, index) => ({ ...row, ...Object.fromEntries((categories?.names || []).map(name => [`category ${name}`, categories.by_rank[name]?.[index]])) })),
    { caption: "memory by rank", tall: true }),
    ...atPeak && rowsOf(atPeak).length ? [el("h3", {}, "Alive at the peak"), table([{ key: "bytes", label: "bytes", kind: "bytes" }, { key: "rank", label: "rank", kind: "number" }, { key: "category", label: "category", kind: "text" },
      { key: "module", label: "allocated in module", kind: "name" }, { key: "phase", label: "phase", kind: "text" }, { key: "op", label: "by operator", kind: "name" }, { key: "name", label: "name", kind: "name" }],
    rowsOf(atPeak), { sort: "bytes", tall: true, caption: "largest tensors at the peak" })] : []];
}

const peakView = rows => [el("h3", {}, "Peak until the last recorded step"), table([{ key: "rank", label: "rank", kind: "number" },
  ...rows.some(row => row.device_bytes) ? [{ key: "device_bytes", label: "tensors on the device", kind: "bytes" }] : [],
  { key: "host_bytes", label: "process (resident set)", kind: "bytes" }], rows, { caption: "peak memory by rank", tall: true })];

const linesView = lines => [el("h3", {}, "Lines of the script"), table([{ key: "file", label: "file", kind: "file" }, { key: "line", label: "line", kind: "number" },
  { key: "function", label: "function", kind: "name" }, { key: "mean_ns", label: "mean of the ranks, per step", kind: "ns" }, { key: "most_ns", label: "most", kind: "ns" },
  { key: "most_rank", label: "on rank", kind: "number" }, { key: "ratio", label: "of a step", kind: "ratio" }], rowsOf(lines), { sort: "mean_ns", caption: "lines with the most time" })];

function waitsView({ rows, steps }) {
  const blocking = rowsOf(rows);
  if (!blocking.length) return [el("p", {}, `Nothing was seen to block the host in the ${steps.length} steps that were looked at.`)];
  return [table([{ key: "op", label: "operator", kind: "name" }, { key: "file", label: "file", kind: "file" }, { key: "line", label: "line", kind: "number" },
    { key: "module", label: "module", kind: "name" }, { key: "phase", label: "phase", kind: "text" }, { key: "rank", label: "rank", kind: "number" },
    { key: "calls", label: "calls", kind: "number" }, { key: "blocked_ns", label: "blocked", kind: "ns" }, { key: "longest_ns", label: "longest", kind: "ns" }],
  blocking, { sort: "blocked_ns", caption: "what blocks the host" })];
}

function criticalView({ through, duration_ns: whole, by_kind: byKind, by_rank: byRank, by_module: byModule, by_op: byOp }) {
  const time = { key: "time_ns", label: "on the path, per step", kind: "ns" }, ratio = { key: "ratio", label: "share", kind: "ratio" };
  return [el("div", { class: "beside" },
    through === "device"
      ? table([{ key: "kind", label: "what", kind: "text" }, time, ratio], Object.entries(byKind).filter(([, ns]) => ns > 0).map(([kind, ns]) =>
        ({ kind: kind === "unshown" ? "not shown" : kind, time_ns: ns, ratio: ns / whole })), { sort: "time_ns", caption: "by kind, mean of all devices", tall: true })
      : table([{ key: "rank", label: "rank", kind: "number" }, time, ratio], rowsOf(byRank), { sort: "time_ns", caption: "by rank", tall: true }),
    table([{ key: "module", label: "module", kind: "name" }, { key: "phase", label: "phase", kind: "text" }, time, ratio], rowsOf(byModule), { sort: "time_ns", caption: "by module", tall: true }),
    table([{ key: "op", label: "operator", kind: "name" }, time, ratio], rowsOf(byOp), { sort: "time_ns", caption: "by operator", tall: true }))];
}
