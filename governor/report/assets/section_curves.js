// Curves of metrics with bands of quantiles; those of several runs lie over each other.

const AXES = { key: "episode", step: "step", time: "time" };

register({
  id: "curves",
  title: "Curves",
  order: 30,
  whole: true,
  has: (data) => data.runs.some((run) => run.curves.length),
  draw(root, data, context) {
    const state = context.state;
    state.axis ??= "key";
    for (const chart of state.charts ?? []) chart.destroy();
    state.charts = [];
    const tools = element("div", { class: "tools", role: "group", "aria-label": "Axis" }, "By");
    for (const [axis, title] of Object.entries(AXES)) {
      const choose = () => ((state.axis = axis), context.redraw());
      tools.append(element("button", { type: "button", "aria-pressed": String(state.axis === axis), text: title, onclick: choose }));
    }
    tools.append(element("span", { class: "soft", text: "Drag to zoom, double click for all. Bands: 10 to 90 %, 25 to 75 %." }));
    const charts = element("div", { class: "charts" });
    root.append(tools);
    if (onPaper()) root.append(emptyNote("Bands: 10 to 90 %, 25 to 75 %."));
    root.append(charts);
    for (const lines of _byMetric(data)) _figure(charts, lines, state, data.runs.length > 1);
  },
});

function _byMetric(data) {
  const found = new Map();
  for (const [index, run] of data.runs.entries()) {
    for (const curve of run.curves) {
      const key = JSON.stringify([curve.phase, curve.metric]);
      if (!found.has(key)) found.set(key, []);
      found.get(key).push({ curve, run, color: index });
    }
  }
  return found.values();
}

function _x(curve, axis) {
  const windows = curve.windows;
  if (axis === "time") return windows.at_last;
  return axis === "step" || curve.by_step ? windows.step_last : windows.last;
}

function _figure(charts, lines, state, laid) {
  const { curve } = lines[0];
  const total = lines.reduce((sum, each) => sum + each.curve.count, 0);
  const caption = element("figcaption", {}, visible(curve.metric), element("span", { class: "soft", text: ` ${visible(curve.phase)}, ${plural(total, "value")}` }));
  const plot = element("div");
  charts.append(element("figure", {}, caption, plot));
  const axis = curve.by_step && state.axis === "key" ? "step" : state.axis;
  const made = lines
    .filter(({ curve: each }) => each.windows.mean.length)
    .map(({ curve: each, run, color: index }) => {
      const w = each.windows;
      const order = [..._x(each, axis).keys()].sort((a, b) => _x(each, axis)[a] - _x(each, axis)[b]);
      const column = (values) => order.map((place) => values[place]);
      const bands = [
        { low: column(w.p10), high: column(w.p90), lowLabel: "10 %", highLabel: "90 %", strength: laid ? 9 : 16 },
        { low: column(w.p25), high: column(w.p75), lowLabel: "25 %", highLabel: "75 %", strength: 22 },
      ];
      const several = w.count.some((count) => count > 1);
      return { label: laid ? `${run.summary.name} ${run.summary.uid}` : "mean", x: column(_x(each, axis)), y: column(w.mean), bands: several ? (laid ? bands.slice(0, 1) : bands) : [], color: index };
    });
  if (!made.length) {
    plot.append(emptyNote(`All of its ${formatNumber(curve.unusable)} values are NaN, infinite or beyond ±1e290.`));
    return;
  }
  const title = curve.evaluation && axis === "key" ? "evaluation" : axis === "key" ? "episode" : axis;
  state.charts.push(
    lineChart(plot, made, { x: title, formatX: axis === "time" ? formatSeconds : formatNumber, label: `${curve.metric} of phase ${curve.phase} by ${title}` }),
  );
}
