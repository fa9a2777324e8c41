// Points on logarithmic axes: operators under their roofline, collectives by size and bandwidth.
const TALL = 320, MARGIN = { left: 70, right: 14, top: 24, bottom: 38 };

/** Points {x, y, size, colour, text}; lines [[x, y], ...] with a label. Returns the figure. */
function scatter(points, { label, across, up, xKind, yKind, lines = () => [] }) {
  const holder = el("div"), { figure: view, say } = chart(holder, label, "Point at a dot, or step through with left and right.");
  let chosen = -1;
  const draw = () => holder.replaceChildren(plot(points, { across, up, xKind, yKind, lines, chosen, width: holder.clientWidth || 600, over: index => { say(points[index].text); } }));
  holder.addEventListener("keydown", event => {
    const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!move) return;
    event.preventDefault();
    chosen = Math.min(Math.max(chosen + move, 0), points.length - 1);
    draw();
    say(points[chosen].text);
  });
  whenResized(holder, draw);
  return view;
}

function plot(points, { across, up, xKind, yKind, lines, chosen, width, over }) {
  const [x0, x1] = decades(points.map(point => point.x)), [y0, y1] = decades([...points.map(point => point.y), ...lines(1).flat().map(at => at[1]).filter(Boolean)]);
  const x = value => MARGIN.left + (Math.log10(value) - x0) / (x1 - x0) * (width - MARGIN.left - MARGIN.right);
  const y = value => TALL - MARGIN.bottom - (Math.log10(value) - y0) / (y1 - y0) * (TALL - MARGIN.top - MARGIN.bottom);
  const drawing = svg("svg", { width, height: TALL, "aria-hidden": "true" });
  for (let power = x0; power <= x1; power += Math.ceil((x1 - x0) / Math.max(2, width / 110))) {
    drawing.append(svg("line", { class: "axis", x1: x(10 ** power), x2: x(10 ** power), y1: MARGIN.top, y2: TALL - MARGIN.bottom }),
      svg("text", { x: x(10 ** power), y: TALL - MARGIN.bottom + 15, "text-anchor": power + 1 > x1 ? "end" : "middle" }, tick(power, xKind)));
  }
  for (let power = y0; power <= y1; power += Math.ceil((y1 - y0) / 6)) {
    drawing.append(svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(10 ** power), y2: y(10 ** power) }),
      svg("text", { x: MARGIN.left - 6, y: y(10 ** power) + 4, "text-anchor": "end" }, tick(power, yKind)));
  }
  drawing.append(svg("text", { x: width - MARGIN.right, y: TALL - 4, "text-anchor": "end" }, across), svg("text", { x: 2, y: 10 }, up));
  const inside = svg("g");
  for (const line of lines(10 ** x0, 10 ** x1)) inside.append(svg("polyline", { points: line.map(([a, b]) => `${x(a)},${y(b)}`).join(" "), fill: "none", stroke: "var(--soft)", "stroke-width": 1.5, "stroke-dasharray": "5 3" }));
  points.forEach((point, index) => inside.append(svg("circle", { cx: x(point.x), cy: y(point.y), r: index === chosen ? point.size + 3 : point.size, fill: point.colour, "fill-opacity": .75,
    stroke: index === chosen ? "var(--ink)" : "none", "stroke-width": 2, pointerenter: () => over(index), click: () => over(index) })));
  drawing.append(inside);
  return drawing;
}

const tick = (power, kind) => kind === "number" ? (power >= 0 && power < 4 ? String(10 ** power) : `1e${power}`) : shown(10 ** power, kind).replace(".00", "").replace("FLOP/s", "");

/** The powers of ten around values. */
function decades(values) {
  const low = Math.floor(Math.log10(Math.min(...values)) - .05), high = Math.ceil(Math.log10(Math.max(...values)) + .05);
  return low === high ? [low, low + 1] : [low, high];
}
