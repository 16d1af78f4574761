// The live page: sections that changed come as events of the server; the connection is made again when it breaks.
// A hidden page lets go of it: a browser has six for all its pages of one server, and who does not look costs nothing.

const AWAY = "The daemon is away: these are the last data. They go on when it is back.";
const ENDED = "The viewer is not reached: these are the last data. `governor view` shows the runs again.";

/** Calls `changed(uid, name, value)` for a section, `listed(runs)` for the list of runs, `away(text)` when something is not reached. */
function follow(path, { changed, listed, away }) {
  const had = new Map();
  let source = null;
  let up = true;
  let connected = true;
  const tell = () => away(!connected ? ENDED : up ? "" : AWAY);

  /** After a connection is made again all comes anew: what the page has is not drawn again. */
  function isNew(key, text) {
    if (had.get(key) === text) return false;
    had.set(key, text);
    return true;
  }

  function connect() {
    source = new EventSource(path);
    source.addEventListener("open", () => ((connected = true), tell()));
    source.addEventListener("error", () => ((connected = false), tell()));
    source.addEventListener("section", (event) => {
      const { uid, name, value } = JSON.parse(event.data);
      if (isNew(`${uid} ${name}`, event.data)) changed(uid, name, value);
    });
    source.addEventListener("runs", (event) => isNew("runs", event.data) && listed(JSON.parse(event.data)));
    source.addEventListener("daemon", (event) => ((up = JSON.parse(event.data).up), tell()));
  }

  function heed() {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (!source || source.readyState === EventSource.CLOSED) connect();
  }

  document.addEventListener("visibilitychange", heed);
  heed();
}
