// The run file, and what the run was made with.

register({
  id: "run_file",
  title: "Run file",
  order: 90,
  has: (run) => run.run_file || run.environment,
  draw(root, run) {
    if (run.run_file) root.append(element("pre", { tabindex: "0", "aria-label": "Run file", text: visible(run.run_file) }));
    if (!run.environment) return;
    const { packages, ...facts } = run.environment;
    const rows = Object.entries(facts).map(([name, value]) => [name.replaceAll("_", " "), typeof value === "object" && value !== null ? JSON.stringify(value) : String(value ?? "–")]);
    root.append(element("h3", { text: "Made with" }), simpleTable([{ title: "What" }, { title: "Value" }], rows, "Versions and machine"));
    if (packages) {
      const list = Object.entries(packages).map(([name, version]) => `${name} ${version}`);
      root.append(element("details", {}, element("summary", { text: plural(list.length, "package") }), element("pre", { tabindex: "0", text: visible(list.join("\n")) })));
    }
  },
});
