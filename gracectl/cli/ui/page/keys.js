// The keys. All that a mouse can do, a keyboard can do.

/** Keys and what they do, as the help shows them. */
export const KEYS = [
  ["↑ ↓ or j k", "previous, next node"],
  ["Page Up, Page Down, Home, End", "farther"],
  ["Enter", "open the node"],
  ["Esc", "close the node, leave the search, close this help"],
  ["/", "search"],
  ["← →", "move in time"],
  ["+ −", "zoom"],
  ["0", "fit, and follow the present"],
  ["n", "move to now"],
  ["1 2 3 4", "timeline, budgets, history, events"],
  ["f", "next filter"],
  ["c", "copy the first command of the open node"],
  ["t", "theme: automatic, dark, light"],
  ["?", "this help"],
];

/** Listen to the keys. `page`: what they do. */
export function listen(page) {
  const { timeline } = page;
  const everywhere = {
    "/": () => page.search(),
    "?": () => page.help(),
    t: () => page.theme(),
    f: () => page.nextFilter(),
    c: () => page.copy(),
    1: () => page.view("timeline"),
    2: () => page.view("budgets"),
    3: () => page.view("history"),
    4: () => page.view("events"),
  };
  const inTimeline = {
    ArrowDown: () => timeline.move(1),
    j: () => timeline.move(1),
    ArrowUp: () => timeline.move(-1),
    k: () => timeline.move(-1),
    PageDown: () => timeline.move(timeline.page),
    PageUp: () => timeline.move(-timeline.page),
    Home: () => timeline.move(-Infinity),
    End: () => timeline.move(Infinity),
    ArrowLeft: () => timeline.pan(-0.15),
    ArrowRight: () => timeline.pan(0.15),
    "+": () => timeline.zoom(0.7),
    "=": () => timeline.zoom(0.7),
    "-": () => timeline.zoom(1.4),
    "−": () => timeline.zoom(1.4),
    0: () => timeline.follow(),
    n: () => timeline.toNow(),
    Enter: () => timeline.active && page.open(timeline.active),
  };
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    const { target } = event;
    const isTyping = target.matches?.("input, select, textarea");
    if (event.key === "Escape") return page.escape();
    if (isTyping) return;
    const isOnGrid = target.id === "grid";
    // A button that has the focus keeps Enter and the keys that move the page.
    const isFree = isOnGrid || target === document.body || (event.key.length === 1 && event.key !== " ");
    const action = (page.isTimeline && isFree && inTimeline[event.key]) || everywhere[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}
