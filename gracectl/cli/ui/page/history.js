// The last terminations with their durations by step, and the Events.

import { fill, h, link, nameElement } from "./dom.js";
import { clock, elapsed, ms } from "./format.js";
import { kept } from "./state.js";

const STEPS = ["cordon", "drain", "volumes", "instance", "finalizer"];

/** Steps of a terminated node: `step`, `from`, `to` (ms). */
function spans(finished) {
  return kept(finished, "spans", () => {
    let at =
      ms(finished.since) ?? ms(finished.until) - 1000 * finished.steps.reduce((sum, each) => sum + each.seconds, 0);
    return finished.steps.map(({ step, seconds }) => ({ step, from: at, to: (at += seconds * 1000) }));
  });
}

/** Bars of a terminated node. */
export function finishedBars(finished) {
  return kept(finished, "bars", () =>
    spans(finished).map(({ step, from, to }) => ({
      kind: step,
      from,
      to,
      label: step,
      title: `${step}: ${elapsed((to - from) / 1000)}`,
    })),
  );
}

/** What its termination was like. */
export function historyFacts(finished, board) {
  const { now } = board;
  const rows = [];
  const row = (name, ...value) => rows.push(h("dt", {}, name), h("dd", {}, ...value));
  if (finished.since) row("requested", clock(ms(finished.since), now));
  row(
    "terminated",
    clock(ms(finished.until), now),
    finished.seconds === null ? null : `, after ${elapsed(finished.seconds)}`,
  );
  for (const { step, seconds } of finished.steps) row(step, elapsed(seconds));
  row("deadline", deadlineText(finished));
  if (finished.trace) row("trace", finished.trace.url ? link(finished.trace.url, "Trace") : finished.trace.id);
  const { grafana } = board.data.links;
  if (grafana) row("see", link(grafana, "Grafana"));
  return h("dl", { class: "facts" }, ...rows);
}

function deadlineText(finished) {
  if (!finished.deadline) return "none";
  return finished.deadlineKept ? "kept" : "missed";
}

/** The table of terminated nodes. `open(name)`: one was chosen. */
export class History {
  constructor(root, open) {
    this.root = root;
    this.open = open;
  }

  update(board, { q }) {
    if (this.shown === board.data.history && this.q === q) return;
    [this.shown, this.q] = [board.data.history, q];
    const wanted = q.trim().toLowerCase();
    const found = board.finished.filter((each) => each.name.toLowerCase().includes(wanted));
    if (!found.length) {
      fill(
        this.root,
        h(
          "p",
          { class: "empty" },
          wanted ? `No terminated node matches “${q}”.` : "No node was terminated since gracectl ui was started.",
        ),
      );
      return;
    }
    this.now = board.now;
    const longest = Math.max(...found.map((each) => each.seconds ?? 0), 1);
    const heads = ["node", "terminated", "duration", ...STEPS, "deadline", "trace"];
    fill(
      this.root,
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          {},
          h("caption", { class: "said" }, "Terminated nodes, the last one first"),
          h("thead", {}, h("tr", {}, ...heads.map((each) => h("th", { scope: "col" }, each)))),
          h("tbody", {}, ...found.map((each) => this.line(each, longest))),
        ),
      ),
    );
  }

  line(each, longest) {
    const by = new Map();
    for (const { step, seconds } of each.steps) by.set(step, (by.get(step) ?? 0) + seconds);
    const share = h("span", { class: "share", "aria-hidden": "true" });
    for (const [step, seconds] of by)
      share.append(
        h("i", {
          class: `bar ${step}`,
          style: { width: `${(100 * seconds) / longest}%` },
          title: `${step}: ${elapsed(seconds)}`,
        }),
      );
    const deadline = deadlineText(each);
    return h(
      "tr",
      {},
      h(
        "th",
        { scope: "row" },
        h(
          "button",
          { type: "button", class: "link", "aria-label": each.name, onclick: () => this.open(each.name) },
          nameElement(each.name),
        ),
      ),
      h("td", { class: "time" }, clock(ms(each.until), this.now)),
      h("td", { class: "time" }, each.seconds === null ? "?" : elapsed(each.seconds), share),
      ...STEPS.map((step) => h("td", { class: "time" }, by.has(step) ? elapsed(by.get(step)) : "–")),
      h("td", { class: deadline === "missed" ? "alarm-text" : "" }, deadline),
      h(
        "td",
        {},
        each.trace ? (each.trace.url ? link(each.trace.url, "Trace") : h("code", {}, each.trace.id.slice(0, 8))) : "–",
      ),
    );
  }
}

/** The table of Events, the newest first. */
export class Events {
  constructor(root) {
    this.root = root;
  }

  update(board, { q }) {
    const { events, eventsCut: cut } = board.data;
    if (this.shown === events && this.q === q && this.cut === cut) return;
    [this.shown, this.q, this.cut] = [events, q, cut];
    const wanted = q.trim().toLowerCase();
    if (!board.data.events) {
      fill(
        this.root,
        h("p", { class: "empty" }, "Events are not shown: gracectl ui has no right to list and watch them."),
      );
      return;
    }
    const found = [...board.data.events].sort((a, b) => ms(b.at) - ms(a.at));
    const shown = found.filter((each) =>
      `${objectText(each.object)} ${each.reason} ${each.message}`.toLowerCase().includes(wanted),
    );
    if (!shown.length) {
      fill(this.root, h("p", { class: "empty" }, wanted ? `No Event matches “${q}”.` : "No Events yet."));
      return;
    }
    fill(
      this.root,
      cut ? h("p", { class: "empty" }, "There are more Events than are read: older ones, and some new ones, are missing.") : null,
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          {},
          h("caption", { class: "said" }, "Events, the newest first"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ...["at", "type", "reason", "object", "message"].map((each) => h("th", { scope: "col" }, each)),
            ),
          ),
          h("tbody", {}, ...shown.map((each) => eventLine(each, board.now))),
        ),
      ),
    );
  }
}

function eventLine(each, now) {
  return h(
    "tr",
    { class: each.type === "Warning" ? "warn" : "" },
    h("td", { class: "time" }, h("time", { datetime: each.at }, clock(ms(each.at), now))),
    h("td", {}, each.type === "Warning" ? h("strong", { class: "warn-text" }, "! Warning") : each.type),
    h("td", {}, each.reason, each.count > 1 ? h("span", { class: "faint" }, ` ×${each.count}`) : null),
    h("td", {}, nameElement(objectText(each.object))),
    h("td", { class: "wide" }, each.message),
  );
}

/** `Pod shop/web-1`. */
function objectText({ kind, namespace, name }) {
  return `${kind} ${namespace && kind === "Pod" ? `${namespace}/` : ""}${name}`;
}
