// Line charts with bands, on uPlot.

const SERIES = 8;

/** Steps of an axis of seconds: its labels are short. */
const TIMES = [...[-3, -2, -1].flatMap((power) => [1, 2, 5].map((each) => each * 10 ** power)), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];
const TIME_ROOM = 65;

/** `lines`: {label, x, y, bands: [{low, high, alpha}], dashed?, points?}, columns of equal length; `width` is that of `root`.
 * Returns {chart, destroy()}. Dragging zooms, a double click shows all again. */
function lineChart(root, lines, options) {
  const places = new Map();
  for (const line of lines) for (const x of line.x) places.set(x, 0);
  const xs = [...places.keys()].sort((a, b) => a - b);
  xs.forEach((x, index) => places.set(x, index));
  const spread = (line, values) => {
    const column = new Array(xs.length).fill(lines.length > 1 ? undefined : null);
    line.x.forEach((x, index) => (column[places.get(x)] = values[index]));
    return column;
  };
  const data = [xs];
  const series = [{ label: options.x, value: (_, value) => (options.formatX ?? formatNumber)(value) }];
  const bands = [];
  lines.forEach((line, index) => {
    const stroke = color(`series-${((line.color ?? index) % SERIES) + 1}`);
    data.push(spread(line, line.y));
    series.push({
      label: visible(line.label),
      stroke,
      width: 1.6,
      dash: line.dashed ? [5, 4] : undefined,
      spanGaps: true,
      points: { show: line.x.length < 40, size: 4 },
      value: (_, value) => (options.formatY ?? formatNumber)(value),
    });
    for (const band of line.bands ?? []) {
      const first = data.length;
      for (const [label, values] of [[band.highLabel, band.high], [band.lowLabel, band.low]]) {
        data.push(spread(line, values));
        series.push({ label, stroke: "transparent", spanGaps: true, points: { show: false }, value: (_, value) => (options.formatY ?? formatNumber)(value) });
      }
      bands.push({ series: [first, first + 1], fill: `color-mix(in srgb, ${stroke} ${band.strength}%, transparent)` });
    }
  });
  const axis = {
    stroke: color("soft"),
    grid: { stroke: color("line"), width: 1 },
    ticks: { stroke: color("line"), width: 1 },
    font: "11px system-ui, sans-serif",
  };
  const short = (values, format) => values.map((value) => (value === null ? "" : format(value)));
  const chart = new uPlot(
    {
      width: Math.max(root.clientWidth, 200),
      height: options.height ?? 220,
      series,
      bands,
      legend: { live: true, show: options.legend ?? true },
      scales: { x: { time: false }, y: options.fromZero ? { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } : {} },
      axes: [
        { ...axis, ...(options.formatX === formatSeconds ? { incrs: TIMES, space: TIME_ROOM } : {}), values: (_, values) => short(values, options.formatX === formatSeconds ? formatTick : options.formatX ?? formatNumber) },
        { ...axis, size: 62, ...(options.stepsY ? { incrs: options.stepsY } : {}), values: (_, values) => short(values, options.formatY ?? formatNumber) },
      ],
      cursor: { drag: { x: true, y: false } },
    },
    data,
    root,
  );
  const box = chart.root.querySelector("canvas");
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", options.label ?? "chart");
  if (lines.length > 1 || onPaper()) {
    const rows = chart.root.querySelectorAll(".u-legend .u-series");
    bands.forEach((band) => band.series.forEach((index) => (rows[index].style.display = "none")));
  }
  const observer = new ResizeObserver(() => {
    if (root.clientWidth && root.clientWidth !== chart.width) chart.setSize({ width: root.clientWidth, height: chart.height });
  });
  observer.observe(root);
  return { chart, destroy: () => (observer.disconnect(), chart.destroy()) };
}
