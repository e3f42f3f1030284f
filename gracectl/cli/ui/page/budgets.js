// The budgets: what each allows now, its queue in order, and what it blocks.

import { fill, h, nameElement, remedyElement } from "./dom.js";
import { byName, counted, listed, ms, rough } from "./format.js";
import { budgetKey, isNeverAllowing, kept, remedyOf } from "./state.js";

const MOST_QUEUED = 8;
const MOST_UNAVAILABLE = 4;
const STATES = { allowing: "allows", spent: "spent", uncounted: "not counted", unobserved: "not observed" };

/** Both kinds of budgets. `open(name)`: a node was chosen. */
export class Budgets {
  constructor(root, open) {
    this.root = root;
    this.open = open;
    this.unfolded = new Set();
    this.lines = new Map();
  }

  update(board, { q }) {
    const { podBudgets, nodeBudgets } = board.data;
    const key = [podBudgets, nodeBudgets, board.data.status.nodes, q, this.unfolded.size];
    if (this.key?.every((each, index) => each === key[index])) return;
    this.key = key;
    [this.board, this.q] = [board, q];
    const wanted = q.trim().toLowerCase();
    const matches = (each) => kept(each, "budget haystack", haystack).includes(wanted);
    const pods = podBudgets.filter(matches).sort(byUrgency);
    const nodes = (nodeBudgets ?? []).filter(matches).sort(byUrgency);
    const focused = this.root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    fill(
      this.root,
      this.section("PodDisruptionBudgets", pods, wanted, "No PodDisruptionBudgets."),
      nodeBudgets === null
        ? h(
            "p",
            { class: "faint" },
            "NodeDisruptionBudgets: the cluster does not serve them, or they may not be listed.",
          )
        : this.section("NodeDisruptionBudgets", nodes, wanted, "No NodeDisruptionBudgets."),
    );
    if (focused) this.root.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  section(title, budgets, wanted, none) {
    const key = title.toLowerCase();
    if (!budgets.length)
      return h(
        "section",
        {},
        h("h2", {}, title),
        h("p", { class: "empty" }, wanted ? `None matches “${wanted}”.` : none),
      );
    return h(
      "section",
      { "aria-labelledby": key },
      h("h2", { id: key }, title),
      h("ul", { class: "budgets" }, ...budgets.map((each) => this.card(each))),
    );
  }

  card(budget) {
    const available = budget.healthy ?? budget.available;
    const never = isNeverAllowing(budget);
    const queue = budget.queue ?? [];
    const state = never ? "never allows" : (STATES[budget.state] ?? budget.state);
    const isSpent = budget.state !== "allowing" && queue.length;
    const level = never && queue.length + budget.blocks.length ? "alarm" : never || isSpent ? "warn" : "";
    const remedy = remedyOf(budget);
    return h(
      "li",
      { class: `budget ${level}` },
      h(
        "div",
        { class: "budget-head" },
        nameElement(budgetKey(budget), "h3"),
        h("span", { class: "bound" }, bound(budget)),
        h("span", { class: `badge ${level}` }, state),
      ),
      gauge(budget, available),
      h(
        "dl",
        { class: "figures" },
        ...[
          ["allowed", budget.allowed],
          [budget.healthy === undefined ? "available" : "healthy", `${available} of ${budget.expected}`],
          ["required", budget.required],
        ].map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, String(value)))),
      ),
      budget.problem ? h("p", { class: "alarm-text" }, `! ${budget.problem}`) : null,
      never && queue.length && remedy ? remedyElement(remedy) : null,
      budget.unavailable.length
        ? h(
            "p",
            { class: "faint" },
            `unavailable: ${listed(
              budget.unavailable.map((each) => `${each.name} (${each.reason})`),
              MOST_UNAVAILABLE,
            )}`,
          )
        : null,
      this.queue(budget, queue),
      this.blocks(budget, queue),
    );
  }

  queue(budget, queue) {
    if (!queue.length) return null;
    const all = budget.queued ?? queue.length;
    const key = `queue ${budgetKey(budget)}`;
    const isOpen = this.unfolded.has(key);
    const shown = isOpen ? queue : queue.slice(0, MOST_QUEUED);
    const { now } = this.board;
    const item = (each) =>
      h(
        "li",
        {},
        nameElement(`${each.namespace}/${each.name}`),
        h(
          "button",
          { type: "button", class: "link node", "data-key": `${key} ${each.uid}`, onclick: () => this.open(each.node) },
          each.node,
        ),
        h("span", { class: "age" }, each.since ? rough((now - ms(each.since)) / 1000) : ""),
      );
    const more =
      queue.length > MOST_QUEUED
        ? h(
            "button",
            {
              type: "button",
              class: "link",
              "data-key": key,
              "aria-expanded": String(isOpen),
              onclick: () => this.toggle(key),
            },
            isOpen ? "show fewer" : `and ${counted(all - MOST_QUEUED, "pod")} more`,
          )
        : null;
    const hidden = isOpen && all > queue.length ? `and ${counted(all - queue.length, "pod")} more` : "";
    return h(
      "div",
      { class: "queue" },
      h("h4", {}, `${counted(all, "pod")} in queue`),
      h("ol", {}, ...shown.map(item)),
      hidden ? h("p", { class: "faint" }, hidden) : null,
      more,
    );
  }

  toggle(key) {
    if (!this.unfolded.delete(key)) this.unfolded.add(key);
    this.key = null;
    this.update(this.board, { q: this.q });
  }

  blocks(budget, queue) {
    if (budget.namespace !== undefined) {
      const nodes = [...new Set(queue.map((each) => each.node))].sort(byName);
      return nodes.length ? h("p", { class: "blocks" }, "blocks ", ...this.nodeLinks(nodes)) : null;
    }
    const due = budget.blocks.filter((each) => each.reason);
    return due.length ? h("p", { class: "blocks" }, "blocks ", ...this.nodeLinks(due.map((each) => each.name))) : null;
  }

  nodeLinks(names) {
    const shown = names
      .slice(0, 12)
      .flatMap((name, index) => [
        index ? ", " : "",
        h("button", { type: "button", class: "link", onclick: () => this.open(name) }, name),
      ]);
    return names.length > 12 ? [...shown, ` and ${counted(names.length - 12, "node")} more`] : shown;
  }
}

function haystack(budget) {
  const queue = (budget.queue ?? []).flatMap((each) => [`${each.namespace}/${each.name}`, each.node]);
  return [budgetKey(budget), budget.state, budget.problem ?? "", ...queue].join("\n").toLowerCase();
}

function byUrgency(a, b) {
  const rank = (each) => (isNeverAllowing(each) ? 0 : each.queue?.length ? 1 : each.state === "allowing" ? 3 : 2);
  return rank(a) - rank(b) || (b.queued ?? 0) - (a.queued ?? 0) || byName(budgetKey(a), budgetKey(b));
}

function bound(budget) {
  if (budget.minAvailable !== null) return `minAvailable ${budget.minAvailable}`;
  return budget.maxUnavailable === null ? "" : `maxUnavailable ${budget.maxUnavailable}`;
}

/** A bar: healthy of all, with a line at what is required. */
function gauge(budget, available) {
  const all = Math.max(budget.expected, available, budget.required, 1);
  const text = `${available} of ${budget.expected} available, ${budget.required} required, ${budget.allowed} allowed`;
  return h(
    "div",
    { class: "gauge", role: "img", "aria-label": text },
    h("i", { class: "has", style: { width: `${(100 * available) / all}%` } }),
    h("i", { class: "needs", style: { left: `${(100 * budget.required) / all}%` } }),
  );
}
