// Reads the document, lays out the page, and draws each section when it comes into view.

const PARTS = { missing: "summary", sessions: "steps", environment: "run_file" };
/** Fields of a run that another section than the one of their name shows. */

async function _document() {
  const script = document.getElementById("document");
  if (script.type === "application/json") return JSON.parse(script.textContent);
  const bytes = Uint8Array.from(atob(script.textContent), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

function _focusable(box) {
  return [...box.querySelectorAll("input, select, button, a[href], [tabindex]")];
}

function start(data) {
  const app = document.getElementById("app");
  const states = new Map();
  let current = 0;
  const nav = element("nav", { "aria-label": "Sections" });
  const title = element("h1");
  const chooser = element("span");
  const notice = element("div", { class: "away", role: "alert", hidden: true });
  const main = element("main", { id: "content", tabindex: "-1" });
  const made = `${data.live ? "live" : `made ${formatTime(data.made_at)}`} by Run Governor ${data.governor}`;
  app.replaceChildren(
    element("header", { class: "top" }, element("div", { class: "row" }, title, chooser, element("span", { class: "soft", text: made })), nav),
    notice,
    main,
  );
  const waiting = new Map();
  const seen = new IntersectionObserver((entries) => entries.filter((each) => each.isIntersecting).forEach((each) => drawNow(each.target)), { rootMargin: "300px" });

  function drawNow(box) {
    const draw = waiting.get(box);
    if (!draw) return;
    waiting.delete(box);
    seen.unobserve(box);
    draw();
  }

  function contextOf(section, box, asked) {
    const key = section.whole ? section.id : `${data.runs[current].summary.uid} ${section.id}`;
    if (!states.has(key)) states.set(key, {});
    return { data, state: states.get(key), asked, redraw: () => drawSection(section, box), open };
  }

  function drawSection(section, box, asked) {
    const focus = document.activeElement;
    const inside = box.contains(focus) ? { place: _focusable(box).indexOf(focus), tag: focus.tagName, caret: focus.tagName === "INPUT" ? focus.selectionStart : null } : null;
    const { scrollTop: scrolled = 0, scrollLeft: aside = 0 } = box.querySelector(".grid") ?? {};
    const height = box.offsetHeight;
    box.style.minHeight = `${height}px`;
    box.replaceChildren(element("h2", { id: `${section.id}-title`, text: section.title }));
    try {
      section.draw(box, section.whole ? data : data.runs[current], contextOf(section, box, asked));
    } catch (error) {
      box.append(element("p", { class: "bad", text: `This section can't be shown: ${error}` }));
      console.error(error);
    }
    box.style.minHeight = "";
    box.querySelector(".grid")?.scrollTo(aside, scrolled);
    const field = inside && _focusable(box)[inside.place];
    if (field && field.tagName === inside.tag) {
      field.focus({ preventScroll: true });
      if (inside.caret !== null) field.setSelectionRange(inside.caret, inside.caret);
    }
  }

  /** All sections that are drawn, in colours and widths that have changed. */
  function redraw() {
    for (const section of sections) {
      const box = document.getElementById(section.id);
      if (box && !waiting.has(box)) drawSection(section, box);
    }
  }

  let scrolled = 0;
  function printing(begins) {
    if (begins) scrolled = scrollY;
    document.documentElement.classList.toggle("paper", begins);
    [...waiting.keys()].forEach(drawNow);
    redraw();
    if (!begins) requestAnimationFrame(() => scrollTo(0, scrolled)); // after the browser's own idea of where the reader was
  }

  function open(id, asked) {
    const section = sections.find((each) => each.id === id);
    const box = document.getElementById(id);
    if (!section || !box) return;
    waiting.delete(box);
    drawSection(section, box, asked);
    box.scrollIntoView();
  }

  function head() {
    const run = data.runs[current];
    document.title = data.runs.length > 1 ? `${data.runs.length} runs` : run ? `${run.summary.name}: ${run.summary.outcome}` : "Run Governor";
    title.replaceChildren(run ? visible(run.summary.name) : "Run Governor", " ");
    if (run) title.append(badge(run.summary.outcome, run.summary.outcome === "in work" ? run.summary.state || "in work" : run.summary.outcome));
  }

  function layout() {
    head();
    nav.replaceChildren();
    main.replaceChildren();
    waiting.clear();
    seen.disconnect();
    const run = data.runs[current];
    if (!run) main.append(emptyNote("No run yet: `governor submit FILE` submits one."));
    for (const section of sections) {
      if (run && shows(section)) add(section);
    }
  }

  function shows(section) {
    return !section.has || section.has(section.whole ? data : data.runs[current]);
  }

  /** Puts the section at its place among those that are there. */
  function add(section) {
    const box = element("section", { id: section.id, "aria-labelledby": `${section.id}-title` }, element("h2", { id: `${section.id}-title`, text: section.title }));
    box.style.minHeight = section.order > 40 ? "12rem" : "";
    const following = sections.slice(sections.indexOf(section) + 1).find((each) => document.getElementById(each.id));
    main.insertBefore(box, following ? document.getElementById(following.id) : null);
    nav.insertBefore(element("a", { href: `#${section.id}`, text: section.title }), following ? nav.querySelector(`[href="#${following.id}"]`) : null);
    waiting.set(box, () => drawSection(section, box));
    seen.observe(box);
  }

  function remove(section, box) {
    waiting.delete(box);
    seen.unobserve(box);
    box.remove();
    nav.querySelector(`[href="#${section.id}"]`)?.remove();
  }

  /** Without a selected one it asks for one: the first option would look as if it were shown. */
  function choose(runs, selected, act) {
    if (!runs.length) return;
    const ask = selected < 0 ? [element("option", { value: "", selected: true, disabled: true, text: "choose a run" })] : [];
    const options = runs.map((run, index) => element("option", { value: index, selected: index === selected, text: `${visible(run.name)} ${run.uid} (${run.outcome === "in work" ? run.state || "in work" : run.outcome})` }));
    const select = element("select", { "aria-label": "Run", onchange: () => act(Number(select.value)) }, ...ask, ...options);
    chooser.replaceChildren(select);
  }

  function changed(uid, name, value) {
    const index = data.runs.findIndex((run) => run.summary.uid === uid);
    if (index < 0) return;
    data.runs[index][name] = value;
    if (name === "summary") head();
    const section = sections.find((each) => each.id === (PARTS[name] ?? name));
    if (!section || (index !== current && !section.whole)) return;
    const box = document.getElementById(section.id);
    if (!shows(section)) box && remove(section, box);
    else if (!box) add(section);
    else if (!waiting.has(box)) drawSection(section, box);
  }

  if (data.runs.length > 1) choose(data.runs.map((run) => run.summary), current, (index) => ((current = index), layout()));
  layout();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", () => printing(true));
  addEventListener("afterprint", () => printing(false));
  const stream = document.body.dataset.stream;
  if (stream) {
    const shown = data.runs[0]?.summary.uid;
    follow(stream, {
      changed,
      listed: (newest) => {
        const runs = !shown || newest.some((run) => run.uid === shown) ? newest : [data.runs[0].summary, ...newest];
        choose(runs, runs.findIndex((run) => run.uid === shown), (index) => location.assign(`?run=${encodeURIComponent(runs[index].uid)}`));
      },
      away: (text) => ((notice.hidden = !text), (notice.textContent = text)),
    });
  }
}

_document().then(start, (error) => document.getElementById("app").replaceChildren(element("p", { class: "bad", text: `The data of this page can't be read: ${error}` })));
