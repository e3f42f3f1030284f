// The page: connects the stream to the board, and the board to what shows it.

import { Attention } from "./attention.js";
import { Budgets } from "./budgets.js";
import { Campaigns } from "./campaigns.js";
import { Detail } from "./detail.js";
import { fill, h, setAttribute, setText } from "./dom.js";
import { Events, History } from "./history.js";
import { KEYS, listen } from "./keys.js";
import { counts, Board } from "./state.js";
import { Stream } from "./stream.js";
import { Summary } from "./summary.js";
import { Timeline } from "./timeline.js";
import { readAddress, setTheme, setToken, theme, writeAddress } from "./url.js";

const TICK = 1000;
/** Between two updates of what is read, not watched: the summary, tables, the open node. */
const SLOW = 250;
const VIEWS = ["timeline", "budgets", "history", "events"];
const FILTERS = ["all", "attention", "terminating", "pending", "maintenance", "done"];
const FILTER_NAMES = { attention: "needs attention" };
const THEMES = { "": "automatic", dark: "dark", light: "light" };

const find = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.board = new Board();
    this.shown = readAddress();
    this.summary = new Summary(find("cluster"), find("summary"), (q) => this.show({ view: "timeline", q }));
    this.campaigns = new Campaigns(find("summary"));
    this.attention = new Attention(find("attention"), find("spoken"), {
      go: (part) => this.show(part, true),
      enter: (token) => this.enter(token),
    });
    this.timeline = new Timeline(find("timeline"), (uid) => this.open(uid));
    const openName = (node) => this.show({ view: "timeline", node }, true);
    this.views = {
      budgets: new Budgets(find("budgets"), openName),
      history: new History(find("history"), openName),
      events: new Events(find("events")),
    };
    this.detail = new Detail(find("detail"), () => this.close());
    this.stream = new Stream({
      snapshot: (board) => this.news(() => this.board.replace(board)),
      change: (change) => this.news(() => this.board.apply(change)),
      clock: (at) => this.board.note(at),
      state: (state) => this.news(() => (this.board.stream = state)),
    });
    this.isWanted = false;
    this.wasLoaded = false;
    this.slowAt = -SLOW;
    this.isReading = false;
    this.readAt = 0;
  }

  start() {
    this.setTheme(theme());
    this.controls();
    listen(this);
    addEventListener("popstate", () => {
      this.shown = readAddress();
      find("search").value = this.shown.q;
      this.now();
    });
    addEventListener("online", () => this.stream.retry());
    addEventListener("hashchange", () => this.stream.retry());
    document.addEventListener("visibilitychange", () => document.hidden || this.stream.retry());
    addEventListener("beforeprint", () => this.print(true));
    addEventListener("afterprint", () => this.print(false));
    const stays = new ResizeObserver(() => this.measureTop());
    for (const id of ["top", "attention"]) stays.observe(find(id));
    setInterval(() => this.schedule(), TICK);
    this.now();
    this.stream.run();
  }

  controls() {
    const search = find("search");
    search.value = this.shown.q;
    search.addEventListener("input", () => this.show({ q: search.value }));
    find("sort").value = this.shown.sort;
    find("sort").addEventListener("change", (event) => this.show({ sort: event.target.value }));
    for (const view of VIEWS) {
      const tab = find(`tab-${view}`);
      tab.addEventListener("click", () => this.view(view));
      tab.addEventListener("keydown", (event) => this.moveTab(event, view));
    }
    fill(
      find("filters"),
      FILTERS.map((each) =>
        h(
          "button",
          { type: "button", "data-show": each, onclick: () => this.show({ show: each }) },
          h("span", {}, FILTER_NAMES[each] ?? each),
          " ",
          h("b", {}),
        ),
      ),
    );
    const actions = {
      in: () => this.timeline.zoom(0.7),
      out: () => this.timeline.zoom(1.4),
      earlier: () => this.timeline.pan(-0.25),
      later: () => this.timeline.pan(0.25),
      fit: () => this.timeline.follow(),
    };
    for (const button of find("zoom").children)
      button.addEventListener("click", () => (actions[button.dataset.action](), this.schedule()));
    find("theme").addEventListener("click", () => this.theme());
    find("help-button").addEventListener("click", () => this.help());
    fill(
      find("keys"),
      KEYS.flatMap(([key, text]) => [h("dt", {}, key), h("dd", {}, text)]),
    );
    find("help-close").addEventListener("click", () => find("help").close());
  }

  moveTab(event, view) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = VIEWS[(VIEWS.indexOf(view) + by + VIEWS.length) % VIEWS.length];
    this.view(next);
    find(`tab-${next}`).focus();
  }

  // -- news and drawing ------------------------------------------------------------------------------------------------

  news(take) {
    take();
    this.schedule();
  }

  /** Draw before the next frame; many changes share one. */
  schedule() {
    if (this.isWanted) return;
    this.isWanted = true;
    requestAnimationFrame(() => {
      this.isWanted = false;
      this.draw();
    });
  }

  /** Draw all of it now: something was chosen. */
  now() {
    this.slowAt = -SLOW;
    this.draw();
  }

  draw() {
    const { board, shown } = this;
    const isSlowTurn = performance.now() - this.slowAt >= SLOW;
    if (isSlowTurn) {
      this.slowAt = performance.now();
      this.attention.update(board);
      document.body.classList.toggle("stale", board.isLoaded && board.isStale);
    } else if (!this.later) {
      this.later = setTimeout(() => {
        this.later = null;
        this.schedule();
      }, SLOW);
    }
    find("main").hidden = !board.isLoaded;
    if (!board.isLoaded) return;
    if (!this.wasLoaded) {
      this.wasLoaded = true;
      this.now();
      return;
    }
    if (isSlowTurn) {
      this.summary.update(board);
      this.campaigns.update(board);
      this.updateControls();
    }
    if (this.isTimeline) {
      if (isSlowTurn || this.revision !== board.revision) this.timeline.update(board, shown);
      this.revision = board.revision;
    } else if (isSlowTurn) this.views[shown.view].update(board, shown);
    if (isSlowTurn || !shown.node) this.detail.update(board, shown.node, this.timeline.axis);
    if (isSlowTurn) this.readPods();
    document.body.classList.toggle("has-detail", Boolean(shown.node));
  }

  /** Read the pods of the open node, where the board has none; again and again, as they change without a change of it. */
  async readPods() {
    const { board } = this;
    const node = board.data.withPods ? null : this.detail.shown;
    if (!node || this.shown.node !== node.name) board.opened = null;
    if (!node || this.isReading || (board.opened?.uid === node.uid && performance.now() - this.readAt < TICK)) return;
    this.isReading = true;
    const found = await this.stream.readPods(node.uid);
    this.isReading = false;
    this.readAt = performance.now();
    if (!found || this.shown.node !== node.name) return;
    if (board.opened && JSON.stringify(board.opened) === JSON.stringify(found)) return;
    board.opened = found;
    this.detail.update(board, node.name, this.timeline.axis);
  }

  updateControls() {
    const { shown } = this;
    for (const view of VIEWS) {
      const isShown = view === shown.view;
      setAttribute(find(`tab-${view}`), "aria-selected", isShown);
      setAttribute(find(`tab-${view}`), "tabindex", isShown ? 0 : -1);
      find(view).hidden = !isShown;
    }
    find("tools").hidden = !this.isTimeline;
    find("legend").hidden = !this.isTimeline;
    const found = counts(this.board);
    for (const button of find("filters").children) {
      const { show } = button.dataset;
      setAttribute(button, "aria-pressed", show === shown.show);
      setText(button.lastChild, String(found[show]));
      button.hidden = !found[show] && show !== "all" && show !== shown.show;
    }
    const { data } = this.board;
    const spent = data.podBudgets.filter((each) => each.queue?.length).length;
    for (const [view, number] of [
      ["budgets", spent],
      ["history", data.history.length],
      ["events", data.events?.length ?? 0],
    ]) {
      setText(find(`tab-${view}`).querySelector("b"), number ? String(number) : "");
    }
    setAttribute(find("zoom").lastElementChild, "aria-pressed", this.timeline.axis.isFollowing);
  }

  /** The height of what stays on the screen: on a telephone what needs attention, without the header. */
  measureTop() {
    const header = find("top");
    const height = (getComputedStyle(header).display === "contents" ? find("attention") : header).offsetHeight;
    document.documentElement.style.setProperty("--top", `${height}px`);
  }

  print(isPrinting) {
    this.timeline.isPrinting = isPrinting;
    this.timeline.draw();
  }

  // -- what is shown ---------------------------------------------------------------------------------------------------

  /** Show a part of the address. `isVisible`: bring the node onto the screen. */
  show(part, isVisible = false) {
    const isStep =
      ("view" in part && part.view !== this.shown.view) || ("node" in part && part.node !== this.shown.node);
    if (isVisible && !("q" in part)) part = { q: "", ...part };
    // A link to a node must find it, whatever the filter was.
    if (part.node && !("show" in part) && this.shown.show !== "all" && isVisible) part = { show: "all", ...part };
    if (isVisible && !("view" in part)) part = { view: "timeline", ...part };
    this.shown = { ...this.shown, ...part };
    writeAddress(this.shown, isStep);
    if ("q" in part && find("search").value !== this.shown.q) find("search").value = this.shown.q;
    find("sort").value = this.shown.sort;
    if (this.board.isLoaded) this.updateControls();
    this.now();
    if (isVisible && part.node) {
      const entry = this.timeline.entries.find((each) => (each.node ?? each.finished).name === part.node);
      this.timeline.activate(entry?.uid, true);
    }
  }

  get isTimeline() {
    return this.shown.view === "timeline";
  }

  view(view) {
    this.show({ view });
  }

  open(uid) {
    const entry = this.timeline.entries.find((each) => each.uid === uid);
    if (!entry) return;
    const { name } = entry.node ?? entry.finished;
    if (name === this.shown.node) return this.close();
    this.show({ node: name });
    if (matchMedia("(max-width: 999px)").matches) find("detail-title").focus();
  }

  close() {
    this.show({ node: "" });
    if (this.isTimeline) find("grid")?.focus({ preventScroll: true });
  }

  escape() {
    const search = find("search");
    if (document.activeElement === search) {
      if (search.value) this.show({ q: "" });
      else search.blur();
      return;
    }
    if (this.shown.node) this.close();
  }

  search() {
    find("search").focus();
    find("search").select();
  }

  nextFilter() {
    const names = [...find("filters").children].filter((each) => !each.hidden).map((each) => each.dataset.show);
    this.show({ show: names[(names.indexOf(this.shown.show) + 1) % names.length] });
  }

  copy() {
    find("detail").querySelector(".warnings .copy, .pod-groups .copy, .copy")?.click();
  }

  help() {
    find("help").showModal();
  }

  enter(token) {
    setToken(token);
    this.stream.retry();
  }

  theme() {
    const names = Object.keys(THEMES);
    this.setTheme(names[(names.indexOf(document.documentElement.dataset.theme ?? "") + 1) % names.length]);
  }

  setTheme(name) {
    const chosen = name in THEMES ? name : "";
    document.documentElement.dataset.theme = chosen;
    setTheme(chosen);
    setAttribute(find("theme"), "aria-label", `Theme: ${THEMES[chosen]}`);
    setAttribute(find("theme"), "title", `Theme: ${THEMES[chosen]} (t)`);
  }
}

new Page().start();
