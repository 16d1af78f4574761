// Phases, processes and attempts over time, on a canvas that zooms.

const LANE = 22;
const NAMES = 150;
const GROUPS = { run: "Run", phases: "Phases", conductors: "Processes", runners: "Runners" };

register({
  id: "timeline",
  title: "Timeline",
  order: 40,
  has: (run) => run.timeline !== null && run.timeline.lanes.length > 0,
  draw(root, run, context) {
    const timeline = run.timeline;
    const { lanes, spans, marks } = timeline;
    const length = Math.max(timeline.end - timeline.begin, 1e-3);
    const state = context.state;
    let view = state.view && state.zoomed ? state.view : [0, length];
    let found = "";
    const canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": `Timeline of ${plural(spans.lane.length, "span")}. Plus and minus zoom, arrows move, 0 shows all.` });
    const tip = element("div", { class: "tip", hidden: true });
    const button = (text, label, act) => element("button", { type: "button", text, "aria-label": label, onclick: act });
    const search = element("input", { type: "search", placeholder: "find a task or process", "aria-label": "Find in the timeline", oninput: () => ((found = search.value.toLowerCase()), paint()) });
    const where = element("span", { class: "soft", role: "status" });
    root.append(
      element("div", { class: "tools" }, button("+", "Zoom in", () => zoom(0.5)), button("−", "Zoom out", () => zoom(2)), button("All", "Show all", () => look(0, length)), search, where),
      element("div", { class: "lanes" }, canvas, tip),
      _legend(),
    );
    if (timeline.left_out) root.append(emptyNote(`${plural(timeline.left_out, "span")} more are not drawn: the longest and those that failed are.`));
    root.append(_spoken(timeline));

    const byLane = lanes.map(() => []);
    spans.lane.forEach((lane, index) => byLane[lane].push(index));
    const names = () => (canvas.clientWidth < 520 ? 84 : NAMES);
    const height = lanes.length * LANE + 26;
    const xOf = (at) => names() + ((at - view[0]) / (view[1] - view[0])) * (canvas.clientWidth - names() - 8);
    const atOf = (x) => view[0] + ((x - names()) / (canvas.clientWidth - names() - 8)) * (view[1] - view[0]);

    function look(from, to) {
      const width = Math.min(Math.max(to - from, 1e-4), length);
      const begin = Math.min(Math.max(from, 0), length - width);
      view = [begin, begin + width];
      state.view = view;
      state.zoomed = width < length;
      paint();
    }
    function zoom(by, at = (view[0] + view[1]) / 2) {
      look(at - (at - view[0]) * by, at + (view[1] - at) * by);
    }

    function paint() {
      const ratio = devicePixelRatio || 1;
      const width = canvas.clientWidth;
      if (!width) return;
      canvas.style.height = `${height}px`;
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      const pen = canvas.getContext("2d");
      pen.scale(ratio, ratio);
      pen.font = "11px system-ui, sans-serif";
      pen.textBaseline = "middle";
      const soft = color("soft");
      const line = color("line");
      _ticks(pen, view, xOf, width, height, soft, line);
      lanes.forEach((lane, index) => {
        const top = index * LANE;
        if (index && lanes[index - 1].group !== lane.group) {
          pen.fillStyle = line;
          pen.fillRect(0, top, width, 1);
        }
        pen.fillStyle = soft;
        pen.fillText(_fitting(pen, visible(lane.name), names() - 12), 6, top + LANE / 2);
      });
      pen.save();
      pen.beginPath();
      pen.rect(names(), 0, width - names(), height);
      pen.clip();
      for (let index = 0; index < spans.lane.length; index += 1) _span(pen, index);
      marks.lane.forEach((lane, index) => {
        const x = xOf(marks.at[index]);
        pen.fillStyle = color(marks.kind[index] === "restart" ? "warn" : marks.kind[index] === "interrupted" ? "muted" : "bad");
        pen.beginPath();
        pen.moveTo(x, lane * LANE + 3);
        pen.lineTo(x + 5, lane * LANE + LANE / 2);
        pen.lineTo(x, lane * LANE + LANE - 3);
        pen.lineTo(x - 5, lane * LANE + LANE / 2);
        pen.fill();
      });
      pen.restore();
      where.textContent = `${formatSeconds(view[0])} to ${formatSeconds(view[1])} of ${formatSeconds(length)}`;
    }

    function _span(pen, index) {
      const end = spans.end[index] ?? length;
      if (end < view[0] || spans.start[index] > view[1]) return;
      const left = Math.max(xOf(spans.start[index]), names());
      const wide = Math.max(Math.min(xOf(end), canvas.clientWidth) - left, 1.5);
      const top = spans.lane[index] * LANE + 3;
      const label = visible(spans.label[index]);
      const faded = found && !label.toLowerCase().includes(found) && !lanes[spans.lane[index]].name.toLowerCase().includes(found);
      pen.globalAlpha = faded ? 0.15 : 1;
      pen.fillStyle = _fill(spans.kind[index], spans.outcome[index]);
      pen.fillRect(left, top, wide > 3 ? wide - 1 : wide, LANE - 6);
      if (wide > 30) {
        pen.fillStyle = color("back");
        pen.fillText(_fitting(pen, label, wide - 8), left + 4, top + (LANE - 6) / 2);
      }
      pen.globalAlpha = 1;
    }

    function under(x, y) {
      const lane = Math.floor(y / LANE);
      const near = marks.lane.findIndex((each, index) => each === lane && Math.abs(xOf(marks.at[index]) - x) < 6);
      if (near >= 0) return `${visible(marks.label[near])}\nat ${formatSeconds(marks.at[near])}`;
      const span = byLane[lane]?.find((each) => xOf(spans.start[each]) <= x + 1 && xOf(spans.end[each] ?? length) >= x - 1);
      if (span === undefined) return "";
      const took = spans.end[span] === null ? "at work" : formatSeconds(spans.end[span] - spans.start[span]);
      const parts = [visible(spans.label[span]), [spans.outcome[span].replaceAll("_", " "), took].filter(Boolean).join(", "), `from ${formatSeconds(spans.start[span])}`, visible(spans.detail[span])];
      return parts.filter(Boolean).join("\n");
    }

    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.offsetX, view };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        const moved = ((event.offsetX - drag.x) / (canvas.clientWidth - names() - 8)) * (drag.view[1] - drag.view[0]);
        look(drag.view[0] - moved, drag.view[1] - moved);
        return;
      }
      const text = under(event.offsetX, event.offsetY);
      tip.hidden = !text;
      tip.textContent = text;
      tip.style.left = `${Math.min(event.offsetX + 12, Math.max(0, canvas.clientWidth - 260))}px`;
      tip.style.top = `${event.offsetY + 14}px`;
    });
    canvas.addEventListener("pointerup", () => (drag = null));
    canvas.addEventListener("pointerleave", () => (tip.hidden = true));
    canvas.addEventListener("dblclick", () => look(0, length));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey && document.activeElement !== canvas) return; // else a page could not be scrolled past it
        event.preventDefault();
        zoom(event.deltaY > 0 ? 1.25 : 0.8, atOf(event.offsetX));
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => {
      const step = (view[1] - view[0]) / 5;
      const acts = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1.7), 0: () => look(0, length), Home: () => look(0, view[1] - view[0]), End: () => look(length - (view[1] - view[0]), length), ArrowLeft: () => look(view[0] - step, view[1] - step), ArrowRight: () => look(view[0] + step, view[1] + step) };
      if (!acts[event.key]) return;
      acts[event.key]();
      event.preventDefault();
    });
    new ResizeObserver(paint).observe(canvas);
    paint();
  },
});

function _fill(kind, outcome) {
  if (BAD.has(outcome)) return color("bad");
  if (outcome === "interrupted" || outcome === "cancelled" || outcome === "upstream_failed") return color("muted");
  return color({ state: "series-8", phase: "series-1", process: "series-7", attempt: "series-3" }[kind] ?? "series-1");
}

function _fitting(pen, text, width) {
  if (width < 10) return "";
  if (pen.measureText(text).width <= width) return text;
  let length = Math.min(text.length, Math.floor(width / 5));
  while (length > 1 && pen.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 1 ? `${text.slice(0, length)}…` : "";
}

function _ticks(pen, view, xOf, width, height, soft, line) {
  const rough = (view[1] - view[0]) / Math.max(2, width / 130);
  const nice = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = rough >= 1 ? nice.find((each) => each >= rough) ?? Math.ceil(rough / 86400) * 86400 : [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  for (let at = Math.ceil(view[0] / step) * step; at <= view[1]; at += step) {
    const x = Math.round(xOf(at));
    pen.fillStyle = line;
    pen.fillRect(x, 0, 1, height - 22);
    pen.fillStyle = soft;
    pen.fillText(formatTick(Number(at.toPrecision(12))), x + 3, height - 10);
  }
}

function _legend() {
  const entries = [["series-1", "phase"], ["series-7", "process"], ["series-3", "attempt at a task"], ["bad", "ended badly"], ["muted", "cancelled, interrupted"], ["warn", "◆ restart"]];
  const box = element("div", { class: "tools soft" });
  for (const [name, text] of entries) {
    const sign = element("span", { "aria-hidden": "true", text: "■ " });
    sign.style.color = `var(--${name})`;
    box.append(element("span", {}, sign, text));
  }
  box.append("Click it, then the wheel zooms; drag to move.");
  return box;
}

/** For readers of screens: what is worth to be told. */
function _spoken({ lanes, spans, marks }) {
  const told = [...spans.lane.keys()].filter((index) => lanes[spans.lane[index]].group !== "runners" || BAD.has(spans.outcome[index])).slice(0, 200);
  const rows = told.map((index) => [lanes[spans.lane[index]].name, spans.label[index], spans.outcome[index], formatSeconds(spans.start[index]), spans.end[index] === null ? "at work" : formatSeconds(spans.end[index] - spans.start[index])]);
  const moments = marks.lane.slice(0, 200).map((lane, index) => [lanes[lane].name, marks.label[index], marks.kind[index], formatSeconds(marks.at[index]), ""]);
  const columns = ["Lane", "What", "Outcome", "From", "Took"].map((title) => ({ title }));
  return element("div", { class: "hidden" }, simpleTable(columns, [...rows, ...moments], "Spans and moments of the timeline"));
}
