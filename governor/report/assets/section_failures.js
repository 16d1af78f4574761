// Failures by cause, each with the traceback and the last lines of its first.

register({
  id: "failures",
  title: "Failures",
  order: 20,
  has: (run) => run.failures.length > 0,
  draw(root, run, context) {
    context.state.open ??= new Set();
    run.failures.forEach((failure, index) => {
      const key = `${failure.phase} ${failure.kind} ${failure.reason}`;
      const times = failure.number > 1 ? `${formatNumber(failure.number)} × ` : "";
      const line = element(
        "summary",
        {},
        badge(failure.outcome),
        ` ${times}`,
        element("strong", { text: visible(failure.reason || failure.outcome) }),
        element("span", { class: "soft", text: ` ${[failure.phase && visible(failure.phase), `${failure.number > 1 ? "first: " : ""}${visible(failure.first)}`, failure.failure_kind].filter(Boolean).join(", ")}` }),
      );
      const details = element("details", { open: onPaper() || (context.state.open.size ? context.state.open.has(key) : index === 0) }, line);
      details.addEventListener("toggle", () => details.isConnected && !onPaper() && context.state.open[details.open ? "add" : "delete"](key));
      if (failure.traceback) details.append(element("pre", { tabindex: "0", "aria-label": "Traceback", text: visible(failure.traceback) }));
      if (failure.log.length) {
        const text = failure.log.map((each) => `${formatTime(each.at)} ${each.level || each.stream}  ${visible(each.text)}`).join("\n");
        details.append(element("div", { class: "soft", text: `Its last lines, of ${visible(failure.log[0].where)}` }), element("pre", { tabindex: "0", "aria-label": "Last lines", text }));
      }
      if (!failure.traceback && !failure.log.length) details.append(emptyNote("No traceback and no lines are on record."));
      root.append(details);
    });
  },
});
