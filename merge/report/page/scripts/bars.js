// Stacked bars: where the time of a step goes, one bar a rank.
const PART_NAMES = {
  compute_ns: "computing", waiting_ns: "waiting for other ranks", moving_ns: "moving data", data_ns: "loading data",
  optimizer_ns: "optimizer", host_ns: "host only", message_waiting_ns: "waiting for messages",
  copies_ns: "copying", host_idle_ns: "idle: host late", sync_idle_ns: "idle: host synchronising",
  stream_idle_ns: "idle: other stream", latency_idle_ns: "idle: latency", unshown_idle_ns: "idle: not shown",
  unsent_idle_ns: "idle: launch unknown", unasked_idle_ns: "idle: no command",
  before_forward_ns: "before forward", fwd_ns: "forward", bwd_ns: "backward (including waits)", other_ns: "other",
};
const PART_COLOURS = {
  copies_ns: "data", host_idle_ns: "host", sync_idle_ns: "optimizer", stream_idle_ns: "message_waiting", latency_idle_ns: "other",
  unshown_idle_ns: "backward", unsent_idle_ns: "forward", unasked_idle_ns: "other", before_forward_ns: "data", fwd_ns: "forward", bwd_ns: "backward",
};

const partColour = part => `var(--${PART_COLOURS[part] || part.replace(/_ns$/, "")})`;
const partName = part => PART_NAMES[part] || part.replace(/_ns$/, "").replaceAll("_", " ");

function stepParts({ parts, by_rank, source }) {
  const rows = rowsOf(by_rank), longest = Math.max(...rows.map(row => row.duration_ns));
  const used = parts.filter(part => rows.some(row => row[part]));
  const bar = row => el("span", { class: "bar", role: "img", "aria-label": used.map(part =>
    `${partName(part)} ${shown(row[part], "ns")}`).join(", ") }, used.map(part => el("i", {
    style: `width:${100 * row[part] / longest}%;background:${partColour(part)}`,
    title: `rank ${row.rank}, ${partName(part)}: ${shown(row[part], "ns")} (${shown(row[part] / row.duration_ns, "ratio")})` })));
  const columns = [{ key: "rank", label: "rank", kind: "number" }, { key: "duration_ns", label: "step", kind: "ns" },
    ...parts.map(part => ({ key: part, label: partName(part), kind: "ns" }))];
  return [
    el("p", { class: "soft" }, source === "device" ? "Means of the steps of devices, from the first command of a step to the first of the next. Waiting and moving: kernels that communicate while nothing is computed."
      : source === "trace" ? "Means of the traced steps. Waiting and moving are the parts of communication during which nothing is computed."
      : "Means of the steps in which only modules were timed; without a timeline, waiting and moving cannot be told apart."),
    legend(used.map(part => [partName(part), partColour(part)])),
    el("div", { class: "bars" }, rows.map(row => [el("span", {}, `rank ${row.rank}`), bar(row), figure(row.duration_ns, "ns")])),
    numbers(columns, rows, "parts of a step, by rank"),
  ];
}
