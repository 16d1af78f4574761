// The live page: sections that changed come as events of the server; the connection is made again when it breaks.

/** Calls `changed(uid, name, value)` for a section, `listed(runs)` for the list of runs, `away(text)` when something is not reached. */
function follow(path, { changed, listed, away }) {
  let up = true;
  let connected = true;
  const tell = () => away(!connected ? "The viewer has ended: these are the last data." : up ? "" : "The daemon is away: these are the last data. It goes on when it is back.");
  const source = new EventSource(path);
  source.addEventListener("open", () => ((connected = true), tell()));
  source.addEventListener("error", () => ((connected = false), tell()));
  source.addEventListener("section", (event) => {
    const { uid, name, value } = JSON.parse(event.data);
    changed(uid, name, value);
  });
  source.addEventListener("runs", (event) => listed(JSON.parse(event.data)));
  source.addEventListener("daemon", (event) => ((up = JSON.parse(event.data).up), tell()));
}
