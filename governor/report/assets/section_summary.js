// The outcome and why, the phases and their numbers.

register({
  id: "summary",
  title: "Summary",
  order: 10,
  draw(root, run) {
    const about = run.summary;
    const state = about.outcome === "in work" ? about.state || "in work" : about.outcome;
    const why = about.reason || (about.outcome === "in work" ? about.waits_for && `waits for ${about.waits_for}` : "");
    root.append(
      element(
        "div",
        { class: `banner ${toneOf(about.outcome)}`, id: "outcome" },
        badge(about.outcome, state),
        element("p", { class: "why", text: visible(why || (about.outcome === "finished" ? "All phases came to their end." : "")) }),
      ),
      _facts(about),
    );
    if (about.phases.length) root.append(element("div", { class: "side" }, _phases(about.phases), ..._metrics(about.phases)));
    for (const line of run.missing) root.append(emptyNote(`Not shown: ${visible(line)}`));
  },
});

function _facts(about) {
  const by = about.submitted_by ?? {};
  const who = by.user ?? (by.uid !== undefined ? `uid ${by.uid}` : by.address);
  const facts = [
    ["Run", about.uid],
    ["Submitted", formatTime(about.submitted_at) + (who ? ` by ${who}` : "")],
    ["Started", formatTime(about.started_at)],
    ["Ended", formatTime(about.ended_at)],
    ["In work", formatSeconds(about.seconds)],
    ["Resumes", about.parent],
    ["Code", (about.code_changed ?? []).join("; ")],
    ["Folder", about.folder],
  ];
  const shown = facts.filter(([, value]) => value && value !== "–");
  return element(
    "dl",
    { class: "facts" },
    ...shown.map(([name, value]) => element("div", { class: name === "Folder" || name === "Code" ? "wide" : "" }, element("dt", { text: name }), element("dd", { text: visible(value) }))),
  );
}

function _counts(counts) {
  const box = element("span");
  Object.entries(counts).forEach(([outcome, count], index) => {
    if (index) box.append(", ");
    box.append(element("span", { class: BAD.has(outcome) ? "bad" : "", text: `${formatNumber(count)} ${visible(outcome).replaceAll("_", " ")}` }));
  });
  return box;
}

function _phases(phases) {
  const columns = [{ title: "Phase" }, { title: "Mode" }, { title: "End" }, { title: "Episodes" }, { title: "Tasks" }, { title: "Failures", number: true }];
  const rows = phases.map((phase) => [
    phase.name,
    phase.mode,
    phase.ended_by ? `${phase.end} (${phase.ended_by})` : phase.end,
    _counts(phase.episodes),
    _counts(phase.task_outcomes),
    formatNumber(phase.failed),
  ]);
  return simpleTable(columns, rows, "Phases");
}

function _metrics(phases) {
  const names = [...new Set(phases.flatMap((phase) => Object.keys(phase.metrics)))];
  if (!names.length) return [];
  const with_any = phases.filter((phase) => Object.keys(phase.metrics).length);
  const columns = [{ title: "Metric", key: true }, ...with_any.map((phase) => ({ title: visible(phase.name), number: true }))];
  const rows = names.map((name) => [
    name,
    ...with_any.map((phase) => {
      const value = phase.metrics[name];
      return element("span", { text: formatNumber(value), title: value === undefined ? undefined : String(value), "data-metric": `${phase.name} ${name}`, "data-value": String(value) });
    }),
  ]);
  return [simpleTable(columns, rows, "Metrics")];
}
