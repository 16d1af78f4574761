// The episodes, row by row.

register({
  id: "episodes",
  title: "Episodes",
  order: 60,
  has: (run) => run.episodes.total > 0,
  draw(root, run, context) {
    const kept = new Set([...run.steps, ...run.sessions].map((each) => `${each.phase} ${each.episode}`));
    const onRow = (row) => kept.has(`${row.phase} ${row.episode}`) && context.open("steps", { phase: row.phase, episode: row.episode });
    if (kept.size && !onPaper()) root.append(emptyNote("Click an episode that is among the steps below to see it."));
    dataTable(root, run.episodes, context, { label: "Episodes", onRow: kept.size ? onRow : undefined });
  },
});
