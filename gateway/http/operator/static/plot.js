// A plot over time. The one place that knows which library draws it.

import { html, useEffect, useRef, useState } from "./html.js";
import UPlot from "./vendor/uplot.js";

// 1, 2 and 5: a tick between would be rounded in its label.
const STEPS = Array.from({ length: 18 }, (_, power) => [1, 2, 5].map((each) => each * 10 ** (power - 3))).flat();
const SPAN_S = { hour: 3600, day: 86400 };
const LEAST_S = { hour: 300, day: 3600 };
const FONT = "12px system-ui, sans-serif";
const MARK = 5;

// `series`: [{ values, kind, area, dash }], `kind` a class that has the colour; the first is drawn
// last. `marks`: [{ values, kind, cross }], the steps with a value. `at` is the step that is looked
// at, or null, and `onAt` is told of another one under the pointer, or of null as it leaves.
export function Plot({ label, height, span, times, series, marks = [], unit, at, onAt }) {
  const element = useRef(null);
  const plot = useRef(null);
  const [theme, setTheme] = useState(0);

  useEffect(() => {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const onChange = () => setTheme((before) => before + 1);
    dark.addEventListener("change", onChange);
    return () => dark.removeEventListener("change", onChange);
  }, []);

  // Drawn anew for other lines or colours; other values are only put in.
  const shape = JSON.stringify([series.map(({ kind, area, dash }) => [kind, area, dash]), span, theme]);
  const present = useRef(null);
  present.current = { marks, span, times };
  const data = [times, ...series.map((each) => each.values).toReversed()];
  useEffect(() => {
    const place = element.current;
    const drawn = new UPlot(options(place, height, series, unit, present), data, place);
    plot.current = drawn;
    const resized = new ResizeObserver(() => drawn.setSize({ width: place.clientWidth, height }));
    resized.observe(place);
    return () => {
      resized.disconnect();
      drawn.destroy();
    };
  }, [shape]);
  useEffect(() => plot.current.setData(data), [times]);
  useEffect(() => {
    const left = at === null || times.length === 0 ? -10 : plot.current.valToPos(times[at], "x");
    plot.current.setCursor({ left, top: 0 }, false);
  }, [at, times]);

  // The library's own hook is also called for other values, with the place of an older step.
  const onMove = (event) => {
    const { left, width } = plot.current.over.getBoundingClientRect();
    const x = event.clientX - left;
    if (times.length > 0 && x >= 0 && x <= width) onAt(plot.current.posToIdx(x));
  };
  return html`
    <div class="plot" role="img" aria-label=${label} ref=${element} onMouseMove=${onMove} onMouseLeave=${() => onAt(null)}></div>
  `;
}

function options(element, height, series, unit, present) {
  const colour = (kind) => colourOf(element, kind);
  const axis = { stroke: colour("of-muted"), grid: { stroke: colour("of-line"), width: 1 }, ticks: { show: false }, font: FONT };
  return {
    width: element.clientWidth,
    height,
    padding: [8, 18, 0, 0],
    legend: { show: false },
    cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
    scales: {
      x: { range: () => window(present.current) },
      y: { range: (_plot, _least, most) => [0, (most || 1) * 1.08] },
    },
    axes: [
      { ...axis, size: 22, gap: 4, space: 70, values: (_plot, ticks) => ticks.map(hour) },
      { ...axis, size: 58, gap: 4, space: 28, incrs: STEPS, values: (_plot, ticks) => ticks.map(unit) },
    ],
    series: [
      {},
      ...series.toReversed().map(({ kind, area, dash }) => ({
        stroke: colour(kind),
        width: area ? 0 : 1.5,
        fill: area ? colour(kind) : undefined,
        dash,
        points: { show: false },
        paths: UPlot.paths.stepped({ align: 1 }),
      })),
    ],
    hooks: {
      draw: [(drawn) => present.current.marks.forEach((each) => drawMark(drawn, each, colour(each.kind)))],
    },
  };
}

// From the first known step on, though not so little that a step is as wide as a block.
function window({ span, times }) {
  const end = times.length > 0 ? times.at(-1) : Date.now() / 1000;
  const known = end - (times[0] ?? end);
  return [end - Math.min(SPAN_S[span], Math.max(LEAST_S[span], known)), end];
}

const hour = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", hour12: false });

function colourOf(element, kind) {
  const probe = document.createElement("span");
  probe.className = kind;
  element.append(probe);
  const found = getComputedStyle(probe).backgroundColor;
  probe.remove();
  return found;
}

// At the upper edge, over a line to the lower one: a cross for an end, else a triangle.
function drawMark(drawn, { values, cross }, colour) {
  const { ctx, bbox, data } = drawn;
  const size = MARK * devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.fillStyle = colour;
  ctx.lineWidth = 1.5 * devicePixelRatio;
  values.forEach((count, at) => {
    if (!count) return;
    const x = drawn.valToPos(data[0][at], "x", true);
    const y = bbox.top + size;
    ctx.beginPath();
    if (cross) {
      ctx.moveTo(x - size, y - size);
      ctx.lineTo(x + size, y + size);
      ctx.moveTo(x + size, y - size);
      ctx.lineTo(x - size, y + size);
      ctx.stroke();
    } else {
      ctx.moveTo(x - size, y - size);
      ctx.lineTo(x + size, y - size);
      ctx.lineTo(x, y + size);
      ctx.fill();
    }
    ctx.beginPath();
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    ctx.moveTo(x, y + size);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
  });
  ctx.restore();
}
