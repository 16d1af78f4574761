// One episode: its steps, or the messages of its text session.

register({
  id: "steps",
  title: "Steps",
  order: 65,
  has: (run) => run.steps.length + run.sessions.length > 0,
  draw(root, run, context) {
    const all = [...run.steps, ...run.sessions].sort((a, b) => (a.phase === b.phase ? a.episode - b.episode : 0));
    const state = context.state;
    const asked = context.asked;
    if (asked) state.chosen = Math.max(0, all.findIndex((each) => each.phase === asked.phase && each.episode === asked.episode));
    state.chosen = Math.min(state.chosen ?? 0, all.length - 1);
    state.tables ??= {};
    const title = (each) => `${visible(each.phase)}, episode ${each.episode} (${each.why}): ${each.outcome.replaceAll("_", " ")}, return ${formatNumber(each.value)}`;
    const body = element("div");
    const choose = element(
      "select",
      { "aria-label": "Episode", onchange: () => ((state.chosen = Number(choose.value)), show()) },
      ...all.map((each, index) => element("option", { value: index, text: title(each), selected: index === state.chosen })),
    );
    root.append(element("div", { class: "tools" }, choose), body);
    function show() {
      const one = all[state.chosen];
      body.replaceChildren();
      if (one.messages) body.append(..._turns(one.messages));
      else dataTable(body, { columns: one.columns, note: "" }, { state: (state.tables[state.chosen] ??= {}) }, { label: "Steps" });
      if (one.left_out) body.append(emptyNote(`${plural(one.left_out, one.messages ? "message" : "step")} more: governor results ${run.summary.uid} --of steps`));
    }
    show();
  },
});

function _turns(messages) {
  return messages.map((turn) => {
    const about = [turn.role, turn.step === null ? "" : `step ${turn.step}`, turn.reward === null ? "" : `reward ${formatNumber(turn.reward)}`].filter(Boolean);
    return element("div", { class: `turn ${["system", "user", "assistant", "environment"].includes(turn.role) ? turn.role : ""}` }, element("div", { class: "soft", text: visible(about.join(", ")) }), visible(turn.text));
  });
}
