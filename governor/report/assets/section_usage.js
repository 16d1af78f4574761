// Processors and memory over time, by conductor.

/** Steps of an axis of bytes: its labels are whole KiB, MiB. */
const BINARY = Array.from({ length: 50 }, (_, power) => 2 ** power);

register({
  id: "usage",
  title: "Processors and memory",
  order: 50,
  has: (run) => run.usage !== null && run.usage.at.length > 1,
  draw(root, run, context) {
    for (const chart of context.state.charts ?? []) chart.destroy();
    context.state.charts = [];
    const usage = run.usage;
    const machine = run.environment ?? {};
    const names = Object.keys(usage.conductors);
    const charts = element("div", { class: "charts" });
    root.append(charts);
    const kinds = [
      ["cpu", `Processors in use${machine.cores ? `, of ${machine.cores}` : ""}`, formatNumber],
      ["memory", `Memory${machine.memory_gib ? `, of ${formatBytes(machine.memory_gib * 2 ** 30)}` : ""}`, formatBytes],
    ];
    for (const [key, title, format] of kinds) {
      const plot = element("div");
      charts.append(element("figure", {}, element("figcaption", { text: title }), plot));
      const lines = names.map((name, index) => ({ label: name, x: usage.at, y: usage.conductors[name][key], color: index }));
      context.state.charts.push(lineChart(plot, lines, { x: "time", formatX: formatSeconds, formatY: format, fromZero: true, label: title, stepsY: key === "memory" ? BINARY : undefined }));
    }
  },
});
