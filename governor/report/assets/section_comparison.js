// Several runs: their outcomes, metrics with confidence intervals over seeds, and in what their run files differ.

register({
  id: "comparison",
  title: "Comparison",
  order: 15,
  whole: true,
  has: (data) => data.comparison !== null,
  draw(root, data) {
    const { runs, metrics, differences } = data.comparison;
    const columns = runs.map((run) => ({ title: visible(run.label || run.uid), number: true }));
    if (metrics.length) {
      const rows = metrics.map((each) => [
        `${each.phase} ${each.metric}`,
        each.group,
        ...each.values.map(formatNumber),
        each.mean === null ? "–" : `${formatNumber(each.mean)} (${formatNumber(each.low)} to ${formatNumber(each.high)}), n = ${each.n}`,
      ]);
      root.append(
        simpleTable([{ title: "Metric", key: true }, { title: "Group", key: true }, ...columns, { title: "Mean, 95 % interval", number: true }], rows, "Metrics; the interval is over runs that differ in their seed alone (Student's t)"),
      );
    }
    if (differences.length) {
      root.append(element("h3", { text: "In what the run files differ" }));
      root.append(simpleTable([{ title: "Key", key: true }, ...columns.map((each) => ({ title: each.title }))], differences.map((each) => [each.path, ...each.values.map((value) => value || "–")]), "Keys of the run files"));
    }
    if (!metrics.length && !differences.length) root.append(emptyNote("The run files agree, and no run has metrics."));
  },
});
