// What is shown, in the address: view, search, filter, order and the open node, so that a link shows the same.

const DEFAULTS = { view: "timeline", q: "", show: "all", sort: "urgency", node: "" };
const VALUES = {
  view: ["timeline", "budgets", "history", "events"],
  show: ["all", "attention", "terminating", "pending", "maintenance", "done"],
  sort: ["urgency", "name", "left", "since"],
};

/** The folder of the page, with its final slash: all requests are relative to it, whatever base path a proxy has. */
export const base = new URL(".", location.href).pathname;

/** Read the address. Values that are not known count as their defaults. */
export function readAddress() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(
    Object.entries(DEFAULTS).map(([name, value]) => {
      const found = query.get(name) ?? value;
      return [name, name in VALUES && !VALUES[name].includes(found) ? value : found];
    }),
  );
}

/** Write the address. `isStep`: the button "back" returns to what was shown before. */
export function writeAddress(shown, isStep) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(DEFAULTS)) if (shown[name] !== value) query.set(name, shown[name]);
  const address = query.size ? `${base}?${query}` : base;
  if (address === location.pathname + location.search) return;
  if (isStep) history.pushState(null, "", address);
  else history.replaceState(null, "", address);
}

const TOKEN_KEY = `gracectl-token:${base}`;
const THEME_KEY = "gracectl-theme";
const unstored = new Map();

/** What is kept for this page; a browser that stores nothing keeps it as long as the page is open. */
function keep(storage, key, text) {
  unstored.set(key, text);
  try {
    window[storage].setItem(key, text);
  } catch {
    // Storage is switched off.
  }
}

function read(storage, key) {
  try {
    return window[storage].getItem(key) ?? unstored.get(key) ?? null;
  } catch {
    return unstored.get(key) ?? null;
  }
}

/** The bearer token of `#token=…`, which is taken out of the address at once; kept as long as the tab lives. */
export function token() {
  const found = /^#token=(.+)$/.exec(location.hash);
  if (found) {
    setToken(decodeURIComponent(found[1]));
    history.replaceState(null, "", location.pathname + location.search);
  }
  return read("sessionStorage", TOKEN_KEY);
}

/** Keep a token that was typed. */
export function setToken(text) {
  keep("sessionStorage", TOKEN_KEY, text);
}

/** The theme that was chosen; empty: that of the system. */
export function theme() {
  return read("localStorage", THEME_KEY) ?? "";
}

/** Keep the theme for the next time. */
export function setTheme(name) {
  keep("localStorage", THEME_KEY, name);
}
