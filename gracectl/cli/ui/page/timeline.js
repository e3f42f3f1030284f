// The timeline: a row per node on one axis of time. Only rows on the screen exist as elements.

import { Axis } from "./axis.js";
import { draw, drawMarks, nodeBars, waveMarks } from "./bars.js";
import { h, nameElement, setAttribute, setText } from "./dom.js";
import { answerText, clock, elapsed, ms, rough, tickLabel } from "./format.js";
import { deadlineRisk, haystackOfFinished, isNeverDrained, kept, selected } from "./state.js";
import { finishedBars } from "./history.js";

const BEFORE = 6;
const MARKS = ["▲", "!", ""];
const MARK_TEXTS = ["needs attention: ", "warning: ", ""];

/** The timeline in `root`. `open(uid)`: a row was chosen. */
export class Timeline {
  constructor(root, open) {
    this.open = open;
    this.axis = new Axis();
    this.entries = [];
    this.places = new Map();
    this.rows = new Map();
    this.active = null;
    this.width = 0;
    this.rowHeight = 30;
    this.isPrinting = false;
    this.drawing = 0;
    this.axisElement = h("div", { class: "axis", role: "columnheader", "aria-label": "time" });
    this.head = h(
      "div",
      { class: "row head", role: "row", "aria-rowindex": 1 },
      h("span", { class: "mark", role: "columnheader", "aria-label": "attention" }),
      ...["node", "step", "pods", "left", "waiting for"].map((each) =>
        h("span", { class: each.replace(" ", "-"), role: "columnheader" }, each),
      ),
      this.axisElement,
    );
    this.lines = h("div", { class: "lines", "aria-hidden": "true" });
    this.nowLine = h("div", { class: "now-line" });
    this.body = h("div", { class: "rows", role: "presentation" }, this.lines);
    this.grid = h(
      "div",
      { class: "grid", id: "grid", role: "grid", tabindex: 0, "aria-label": "Nodes" },
      this.head,
      this.body,
    );
    this.empty = h("p", { class: "empty" });
    root.replaceChildren(this.grid, this.empty);
    this.listen();
  }

  listen() {
    this.body.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (!row || this.isDragged) return;
      this.activate(row.dataset.uid);
      this.open(row.dataset.uid);
    });
    this.grid.addEventListener("focus", () => this.activate(this.active ?? this.entries[0]?.uid));
    new ResizeObserver(() => this.draw()).observe(this.grid);
    addEventListener("scroll", () => this.isReady && this.drawRows(), { passive: true });
    this.body.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    this.body.addEventListener("pointerdown", (event) => this.drag(event));
  }

  /** Show what is selected now. */
  update(board, shown) {
    this.board = board;
    this.shown = shown;
    const wanted = shown.q.trim().toLowerCase();
    this.entries = shown.show === "done" ? [] : selected(board, shown, this.places.keys());
    if (shown.show === "all" || shown.show === "done") {
      for (const each of board.finished) {
        if (board.nodes.has(each.uid) || (wanted && !haystackOfFinished(each).includes(wanted))) continue;
        this.entries.push({ uid: each.uid, finished: each, severity: 2, since: ms(each.since) ?? ms(each.until) });
      }
    }
    let longest = 8;
    for (const each of this.entries) longest = Math.max(longest, (each.node ?? each.finished).name.length);
    this.grid.style.setProperty(
      "--names",
      `${Math.min(Math.max(longest * 8.6, 110), innerWidth < 1400 ? 200 : 320)}px`,
    );
    this.places = new Map(this.entries.map((each, index) => [each.uid, index]));
    this.draw();
  }

  /** The axis by what is selected: from the first request to the last end that is expected soon. */
  fit() {
    const { now } = this.board;
    const active = this.entries.filter(({ node }) => node && !node.done);
    const shown = active.length ? active : this.entries;
    const begin = shown.reduce((first, each) => Math.min(first, each.since), now);
    const ends = active.flatMap(({ node }) => kept(node, "ends", endsOf));
    // When all is over the picture stays, and time goes on without it.
    const last = active.length
      ? now
      : shown.reduce((end, each) => Math.max(end, each.finished ? ms(each.finished.until) : now), begin);
    this.axis.fit(
      begin,
      ends.filter((end) => end > now),
      Math.min(now, last + (last - begin) * 0.2),
    );
  }

  get isReady() {
    return this.board?.isLoaded && !this.grid.closest("[hidden]");
  }

  /** Draw what is on the screen. */
  draw() {
    if (!this.isReady) return;
    this.drawing += 1;
    this.fit();
    const style = getComputedStyle(this.grid);
    this.rowHeight = parseFloat(style.getPropertyValue("--row")) || 30;
    this.width = this.axisElement.clientWidth;
    const count = this.entries.length;
    this.body.style.height = `${count * this.rowHeight}px`;
    setAttribute(this.grid, "aria-rowcount", count + 1);
    this.drawAxis();
    this.drawRows();
    this.empty.hidden = count > 0;
    if (!count) setText(this.empty, this.emptyText());
  }

  /** Draw the rows on the screen that are not drawn yet: after scrolling, only those that have come. */
  drawRows() {
    const count = this.entries.length;
    const top = this.body.getBoundingClientRect().top;
    const first = this.isPrinting ? 0 : Math.max(Math.floor(-top / this.rowHeight) - BEFORE, 0);
    const last = this.isPrinting ? count : Math.min(Math.ceil((innerHeight - top) / this.rowHeight) + BEFORE, count);
    const visible = new Set();
    for (let index = first; index < last; index += 1) visible.add(this.entries[index].uid);
    for (const [uid, row] of this.rows) {
      if (visible.has(uid)) continue;
      row.element.remove();
      this.rows.delete(uid);
    }
    for (let index = first; index < last; index += 1) this.drawRow(index);
    setAttribute(this.grid, "aria-activedescendant", this.rows.has(this.active) ? `row-${this.active}` : null);
  }

  emptyText() {
    const { withPods } = this.board.data;
    if (this.shown.q)
      return `Nothing matches “${this.shown.q}”.${withPods ? "" : " With this many pods, the search finds nodes only."}`;
    return this.shown.show === "all" ? "No node is terminating, drained or pending." : "No node of this kind.";
  }

  drawAxis() {
    const ticks = this.axis.ticks(this.width);
    const now = this.board.now;
    const labels = [];
    const lines = [];
    for (const { at, step } of ticks) {
      const left = `${(this.axis.place(at) * 100).toFixed(3)}%`;
      const place = this.axis.place(at) * this.width;
      if (place > 24 && place < this.width - 24)
        labels.push(h("span", { class: "tick", style: { left } }, tickLabel(at, step)));
      lines.push(h("i", { class: "tick-line", style: { left } }));
    }
    const place = this.axis.place(now);
    if (place >= 0 && place <= 1) {
      const left = `${(place * 100).toFixed(3)}%`;
      labels.push(h("span", { class: "tick now", style: { left } }, this.board.isStale ? "last seen" : "now"));
      lines.push(h("i", { class: "now-line", style: { left } }));
    }
    this.axisElement.replaceChildren(...labels);
    this.lines.replaceChildren(...lines);
  }

  drawRow(index) {
    const entry = this.entries[index];
    let row = this.rows.get(entry.uid);
    if (!row) {
      row = this.newRow(entry);
      this.rows.set(entry.uid, row);
      this.body.append(row.element);
    }
    if (row.drawing === this.drawing) return;
    row.drawing = this.drawing;
    const { element } = row;
    element.style.transform = `translateY(${index * this.rowHeight}px)`;
    setAttribute(element, "aria-rowindex", index + 2);
    setAttribute(element, "aria-selected", entry.uid === this.shown.node);
    element.classList.toggle("active", entry.uid === this.active);
    element.classList.toggle("open", (entry.node ?? entry.finished).name === this.shown.node);
    element.classList.toggle("alarm", entry.severity === 0);
    element.classList.toggle("warn", entry.severity === 1);
    element.classList.toggle("finished", Boolean(entry.finished));
    if (entry.node) this.drawNode(row, entry);
    else this.drawFinished(row, entry.finished);
  }

  newRow(entry) {
    const cells = Object.fromEntries(
      ["step", "pods", "left", "waiting-for"].map((name) => [name, h("span", { class: name, role: "gridcell" })]),
    );
    const mark = h("span", { class: "mark", role: "gridcell" });
    const track = h("span", { class: "track", "aria-hidden": "true" });
    const said = h("span", { class: "said" });
    const name = nameElement((entry.node ?? entry.finished).name, "span", { class: "node", role: "rowheader" });
    const cell = h("span", { class: "time", role: "gridcell" }, track, said);
    const element = h(
      "div",
      { class: "row", role: "row", id: `row-${entry.uid}`, "data-uid": entry.uid },
      mark,
      name,
      ...Object.values(cells),
      cell,
    );
    return { element, mark, cells, track, said };
  }

  drawNode(row, { node, severity }) {
    const { now } = this.board;
    const timeline = this.board.timeline(node.uid);
    setText(row.mark, MARKS[severity]);
    setAttribute(row.mark, "aria-label", MARK_TEXTS[severity] || null);
    setText(row.cells.step, node.step || node.state);
    setText(row.cells.pods, podsText(node));
    const left = leftText(this.board, node);
    setText(row.cells.left, left);
    setAttribute(row.cells.left, "title", left);
    row.cells.left.classList.toggle(
      "alarm-text",
      isNeverDrained(node) || ["passed", "will"].includes(deadlineRisk(node, now)),
    );
    const waits = waitsFor(node);
    setText(row.cells["waiting-for"], waits);
    setAttribute(row.cells["waiting-for"], "title", waits);
    const used = draw(row.track, nodeBars(this.board, node), this.axis, this.width);
    drawMarks(row.track, [...waves(timeline), ...deadlines(node)], this.axis, used);
    setText(row.said, deadlineText(node, now));
  }

  drawFinished(row, finished) {
    setText(row.mark, finished.deadlineKept === false ? "!" : "✓");
    setText(row.cells.step, "terminated");
    setText(row.cells.pods, "");
    setText(row.cells.left, elapsed((ms(finished.until) - ms(finished.since)) / 1000));
    setText(row.cells["waiting-for"], "");
    let used = draw(row.track, finishedBars(finished), this.axis, this.width);
    if (!used && ms(finished.until) < this.axis.from) {
      const label = `‹ until ${clock(ms(finished.until), this.board.now)}`;
      used = draw(
        row.track,
        [{ kind: "before", from: this.axis.from, to: this.axis.to, label, title: label }],
        this.axis,
        this.width,
      );
    }
    drawMarks(row.track, [], this.axis, used);
    setText(row.said, "");
  }

  // -- choosing, zooming, moving ---------------------------------------------------------------------------------------

  /** Make a row the active one, and bring it onto the screen. */
  activate(uid, isVisible = false) {
    if (uid === undefined || uid === null) return;
    this.active = uid;
    if (isVisible) this.reveal(this.places.get(uid));
    this.draw();
  }

  reveal(index) {
    if (index === undefined) return;
    const top = this.body.getBoundingClientRect().top + index * this.rowHeight;
    const roof = this.head.getBoundingClientRect().bottom;
    if (top < roof) scrollBy(0, top - roof);
    else if (top + this.rowHeight > innerHeight) scrollBy(0, top + this.rowHeight - innerHeight);
  }

  /** Move the active row by so many rows; Infinity: to the end. */
  move(by) {
    if (!this.entries.length) return;
    const at = this.places.get(this.active) ?? (by > 0 ? -1 : this.entries.length);
    const index = Math.min(Math.max(at + by, 0), this.entries.length - 1);
    this.activate(this.entries[index].uid, true);
  }

  /** How many rows fit the screen. */
  get page() {
    return Math.max(Math.floor((innerHeight - this.head.getBoundingClientRect().bottom) / this.rowHeight) - 1, 1);
  }

  zoom(factor, around) {
    this.axis.zoom(factor, around ?? Math.min(Math.max(this.axis.place(this.board.now), 0), 1));
    this.draw();
  }

  pan(share) {
    this.axis.pan(share);
    this.draw();
  }

  follow() {
    this.axis.isFollowing = true;
    this.draw();
  }

  toNow() {
    this.axis.center(this.board.now);
    this.draw();
  }

  wheel(event) {
    const box = this.axisElement.getBoundingClientRect();
    if (
      event.clientX < box.left ||
      !(event.ctrlKey || event.metaKey || event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY))
    )
      return;
    event.preventDefault();
    if (event.ctrlKey || event.metaKey) this.zoom(Math.exp(event.deltaY / 400), (event.clientX - box.left) / box.width);
    else this.pan((event.deltaX || event.deltaY) / box.width);
  }

  drag(event) {
    const box = this.axisElement.getBoundingClientRect();
    this.isDragged = false;
    if (event.button !== 0 || event.pointerType !== "mouse" || event.clientX < box.left) return;
    let last = event.clientX;
    const move = (moved) => {
      if (!this.isDragged && Math.abs(moved.clientX - event.clientX) < 4) return;
      this.isDragged = true;
      this.pan((last - moved.clientX) / box.width);
      last = moved.clientX;
    };
    const end = () => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", end);
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", end);
  }
}

/** When a node is drained by its forecast, and its deadline. */
function endsOf(node) {
  return [ms(node.drained?.latest) ?? ms(node.drained?.earliest), ms(node.deadline?.at)];
}

/** How many pods are left; empty where pods play no part. */
function podsText(node) {
  if (node.state === "pending" || node.state === "idle" || !node.step) return "";
  return node.podsLeft === null ? "?" : String(node.podsLeft);
}

/** The time until it is drained, by its forecast. */
function leftText(board, node) {
  return node.drained ? answerText(node.drained, board.now) : "";
}

/** What a node waits for, in one line. */
function waitsFor(node) {
  if (node.state === "pending" && node.pending?.hold) return node.waitsFor;
  return node.warnings.find((each) => each.blocking && each.kind !== "NeverDrains")?.message ?? node.waitsFor;
}

/** The deadline in words, for who does not see its line: `deadline in 9:57`. */
function deadlineText(node, now) {
  if (!node.deadline) return "";
  const left = (ms(node.deadline.at) - now) / 1000;
  return left > 0 ? `deadline in ${elapsed(left)}` : `deadline passed ${rough(-left)} ago`;
}

function deadlines(node) {
  return node.deadline ? [{ kind: "deadline-mark", at: ms(node.deadline.at), title: `deadline of ${node.name}` }] : [];
}

function waves(timeline) {
  return waveMarks(timeline).map((each) => ({ kind: "wave-mark", at: each.at, title: `${each.label} begins` }));
}
