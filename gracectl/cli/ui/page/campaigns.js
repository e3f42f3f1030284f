// NodeDrains: a row for each that runs, or has finished within the last hour.

import { fill, h, setAttribute } from "./dom.js";
import { clock, counted, ms } from "./format.js";

const HOUR = 3600000;
const MOST = 5;
const LEVELS = { failed: "alarm", blocked: "alarm", canceling: "warn", paused: "warn", waiting: "warn", new: "warn" };
const REST = ["inProgress", "pending", "skipped", "failed", "canceled"];

/** A list below the summary. */
export class Campaigns {
  constructor(root) {
    this.list = h("ul", { class: "campaigns", "aria-label": "NodeDrains" });
    root.append(this.list);
  }

  update(board) {
    const { now } = board;
    const all = board.data.nodeDrains ?? [];
    const recent = all.filter((each) => !each.completionTime || now - ms(each.completionTime) < HOUR);
    this.list.hidden = !recent.length;
    if (this.drains === board.data.nodeDrains && this.number === recent.length) return;
    [this.drains, this.number] = [board.data.nodeDrains, recent.length];
    const more = recent.length - MOST;
    fill(
      this.list,
      recent.slice(0, MOST).map((each) => row(each, now)),
      more > 0 ? h("li", { class: "faint" }, `and ${counted(more, "more NodeDrain")}: gracectl drains`) : null,
    );
  }
}

function row(drain, now) {
  const { counts } = drain;
  const rest = REST.filter((name) => counts[name]).map((name) => `${counts[name]} ${words(name)}`);
  const bar = h("i", { style: { width: `${counts.total ? (100 * counts.done) / counts.total : 0}%` } });
  const label = `nodes of ${drain.name} done`;
  const meter = h("div", { class: "meter", role: "progressbar", "aria-label": label, "aria-valuemin": 0 }, bar);
  setAttribute(meter, "aria-valuemax", counts.total);
  setAttribute(meter, "aria-valuenow", counts.done);
  const done = `${counts.done} of ${counted(counts.total, "node")}`;
  const end = drain.estimatedEnd && !drain.completionTime ? `ends about ${clock(ms(drain.estimatedEnd), now)}` : "";
  const who = drain.requestedBy ? `requested by ${drain.requestedBy}` : "";
  const text = [rest.join(", "), end, drain.message].filter(Boolean).join("; ");
  const title = [[who, drain.reason].filter(Boolean).join(": "), text].filter(Boolean).join("\n");
  return h(
    "li",
    { class: "campaign", title },
    h("b", {}, drain.name),
    h("span", { class: "faint" }, drain.action.toLowerCase()),
    meter,
    h("span", { class: "share" }, done),
    h("span", { class: `badge ${LEVELS[drain.state] ?? ""}` }, drain.state),
    h("span", { class: "text" }, text),
  );
}

function words(name) {
  return name === "inProgress" ? "in progress" : name;
}
