// Curves over time: the memory of ranks.
const CURVE_HEIGHT = 220;

/** Curves {name: {time_ns: [...], bytes: [...]}} as one chart; the caption tells the point under the pointer. */
function memoryCurves(timeline) {
  const ranks = Object.keys(timeline), holder = el("div");
  const { figure: view, say } = chart(holder, "Memory over time", "Point at a curve for its rank and bytes.");
  const colour = index => TINTS[index % TINTS.length];
  function draw() {
    const width = holder.clientWidth || 600, all = ranks.map(rank => timeline[rank]);
    const [first, last] = [Math.min(...all.map(one => one.time_ns[0])), Math.max(...all.map(one => one.time_ns[one.time_ns.length - 1]))];
    const most = Math.max(...all.flatMap(one => one.bytes));
    const x = ns => 64 + (ns - first) / (last - first || 1) * (width - 78), y = bytes => CURVE_HEIGHT - 24 - bytes / (most || 1) * (CURVE_HEIGHT - 36);
    const drawing = svg("svg", { width, height: CURVE_HEIGHT, "aria-hidden": "true" });
    for (const part of [0, .5, 1]) drawing.append(svg("line", { class: "axis", x1: 64, x2: width - 14, y1: y(part * most), y2: y(part * most) }),
      svg("text", { x: 58, y: y(part * most) + 4, "text-anchor": "end" }, shown(part * most, "bytes")));
    for (const part of [0, .5, 1]) drawing.append(svg("text", { x: x(first + part * (last - first)), y: CURVE_HEIGHT - 6,
      "text-anchor": part === 0 ? "start" : part === 1 ? "end" : "middle" }, shown(part * (last - first), "ns")));
    ranks.forEach((rank, index) => drawing.append(svg("path", { d: stairs(timeline[rank], x, y), fill: "none", stroke: colour(index), "stroke-width": 1.75 })));
    drawing.addEventListener("pointermove", event => say(nearest(timeline, first + (event.offsetX - 64) / (width - 78) * (last - first), first)));
    holder.replaceChildren(drawing);
  }
  whenResized(holder, draw);
  return [legend(ranks.map((rank, index) => [`rank ${rank}`, colour(index)])), view];
}

const stairs = ({ time_ns: times, bytes }, x, y) => times.map((time, index) =>
  index ? `H${x(time).toFixed(1)}V${y(bytes[index]).toFixed(1)}` : `M${x(time).toFixed(1)} ${y(bytes[0]).toFixed(1)}`).join("");

function nearest(timeline, time, first) {
  return `at ${shown(Math.max(0, time - first), "ns")}: ` + Object.entries(timeline).map(([rank, { time_ns: times, bytes }]) => {
    const after = times.findIndex(each => each > time);
    return `rank ${rank} ${shown(bytes[after < 0 ? bytes.length - 1 : Math.max(0, after - 1)], "bytes")}`;
  }).join(", ");
}
