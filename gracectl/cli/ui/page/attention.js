// What needs attention, the worst first, each with the way to it. It stays on the screen wherever the page is scrolled, so
// it is small: the list of nodes is what the page is for.

import { fill, h, remedyElement, setText } from "./dom.js";
import { clock, counted, elapsed, listed, ms } from "./format.js";
import { budgetOf, deadlineRisk, isLasting, isNeverDrained } from "./state.js";

const MOST = 3;
/** On a telephone: one line. */
const NARROW = matchMedia("(max-width: 699px)");
const SPOKEN_MS = 5000;
/** Warnings that items of their own tell, about all nodes. */
const TOLD = new Set(["NeverDrains", "Overdue", "NoController"]);

/** Items: `level` (0 alarm, 1 warning), `key`, `text`, `detail`, `remedy`, `go` (what to show: part of the address). */
function items(board) {
  const found = [...connection(board)];
  if (board.isLoaded) found.push(...deadlines(board), ...never(board), ...others(board), ...unknown(board));
  return found.sort((a, b) => a.level - b.level);
}

function* connection(board) {
  const { status } = board.data;
  if (board.stream.needsToken) {
    yield {
      level: 0,
      key: "token",
      text: "This page needs the server's token",
      detail: "open the address that gracectl ui has printed, or enter the token",
      needsToken: true,
    };
  } else if (board.stream.lostAt !== null) {
    const since = board.isLoaded ? `; the picture is of ${clock(board.now, board.now)}` : "";
    yield {
      level: 0,
      key: "server",
      text: "gracectl ui does not answer",
      detail: `${board.stream.error}; reconnecting${since}`,
    };
  }
  const loss = board.data.connection;
  if (loss?.state === "lost") {
    const old = loss.since ? `this picture is of ${clock(ms(loss.since), board.now)}` : "nothing was read yet";
    yield { level: 0, key: "api", text: "API server away", detail: `${old}; retrying: ${loss.error}` };
  }
  if (status?.controller.state === "none") {
    yield {
      level: 0,
      key: "controller",
      text: "No controller leads",
      detail: "nothing is evicted or terminated until one does",
      remedy: "see whether a controller runs: gracectl doctor",
    };
  }
  if (status?.freeze)
    yield {
      level: 1,
      key: "freeze",
      text: "Frozen",
      detail: `nothing voluntary begins: ${status.freeze.message}`,
      remedy: "end it: gracectl unfreeze",
    };
  const { breaker } = board.data;
  if (breaker?.open)
    yield {
      level: 0,
      key: "breaker",
      text: "Circuit breaker open",
      detail: `${breaker.unhealthy} of ${counted(breaker.managedNodes, "node")} unhealthy, ${breaker.allowed} allowed: no further one is terminated for its health`,
    };
}

function* deadlines(board) {
  const { now } = board;
  const by = { passed: [], will: [], may: [], cuts: [] };
  for (const node of board.nodes.values()) by[deadlineRisk(node, now)]?.push(node);
  for (const nodes of Object.values(by)) nodes.sort((a, b) => ms(a.deadline.at) - ms(b.deadline.at));
  const go = (nodes) => (nodes.length === 1 ? { node: nodes[0].name } : { node: nodes[0].name, show: "attention" });
  const which = (nodes) => `${listed(nodes.map((node) => node.name))}${nodes.length > 1 ? "; the first" : ""}`;
  const when = ([first]) => elapsed(Math.abs(ms(first.deadline.at) - now) / 1000);
  const texts = {
    passed: [0, "Deadline passed on", (nodes) => `${which(nodes)} ${when(nodes)} ago`],
    will: [
      0,
      "Deadline will be missed by",
      (nodes) => `${which(nodes)} in ${when(nodes)}: pods that are left then are deleted`,
    ],
    may: [1, "Deadline may be missed by", (nodes) => `${which(nodes)} in ${when(nodes)}`],
    cuts: [1, "Deadline may override budgets or protection on", (nodes) => `${which(nodes)} in ${when(nodes)}`],
  };
  for (const [key, nodes] of Object.entries(by)) {
    const [level, text, detail] = texts[key];
    if (nodes.length)
      yield { level, key, text: `${text} ${counted(nodes.length, "node")}`, detail: detail(nodes), go: go(nodes) };
  }
}

/** Titles of what never ends, by the kind of its cause. */
const NEVER = {
  "two-budgets": "Two budgets block each other's pods",
  "budget-not-counted": "Budget never allows",
  "budget-allows-nothing": "Budget never allows",
  "not-replaced": "Budget never allows",
  protection: "Protected indefinitely",
};

/** What the forecast says of nodes that are never drained, each cause once. */
function* never(board) {
  const by = new Map();
  for (const node of board.nodes.values()) {
    if (!isNeverDrained(node)) continue;
    for (const cause of node.drained.causes) {
      const key = cause.budgets.length ? cause.budgets.join(" ") : cause.message;
      if (!by.has(key)) by.set(key, { cause, nodes: new Set(), first: node });
      by.get(key).nodes.add(node.name);
    }
  }
  for (const [key, { cause, nodes, first }] of by) {
    const warnings = first.warnings.filter((each) => each.kind === "NeverDrains");
    const warning = warnings.find((each) => each.objects.includes(cause.pod)) ?? warnings[0];
    yield {
      level: 0,
      key: `never ${key}`,
      text: NEVER[cause.kind] ?? "Never drained",
      detail: `${listed([...nodes])}: ${cause.message}`,
      remedy: warning?.remedy,
      go: cause.budgets.length ? { view: "budgets", q: cause.budgets[0] } : { node: first.name },
    };
  }
}

/** What has been unknown for a while. */
function* unknown(board) {
  for (const cause of board.data.status.progress?.causes ?? []) {
    if (!isLasting(board, cause)) continue;
    const key = budgetOf(cause);
    yield {
      level: 1,
      key: `unknown ${cause.message.slice(0, 60)}`,
      text: key ? "Budget blocks until its pods are Ready" : "Time unknown",
      detail: cause.message,
      remedy: cause.remedy,
      go: key ? { view: "budgets", q: key } : { show: "terminating" },
    };
  }
}

function* others(board) {
  const by = new Map();
  for (const node of board.nodes.values()) {
    for (const warning of node.warnings) {
      if (!warning.blocking || TOLD.has(warning.kind)) continue;
      if (!by.has(warning.kind)) by.set(warning.kind, []);
      by.get(warning.kind).push({ node, warning });
    }
  }
  for (const [kind, found] of by) {
    const names = found.map(({ node }) => node.name);
    const [first] = found;
    yield {
      level: 0,
      key: kind,
      text: spaced(kind),
      detail: `${listed(names)}: ${first.warning.message}`,
      remedy: first.warning.remedy,
      go: { node: first.node.name },
    };
  }
}

/** `NodeBudgetBlocks` as words. */
function spaced(kind) {
  const words = kind.replace(/(?!^)([A-Z])/g, " $1").toLowerCase();
  return words[0].toUpperCase() + words.slice(1);
}

/** The strip. `go(part)`: show a part of the address; `enter(token)`: a token was typed. */
export class Attention {
  constructor(root, spoken, { go, enter }) {
    this.root = root;
    this.spoken = spoken;
    this.go = go;
    this.enter = enter;
    this.isOpen = false;
    this.saidAt = -SPOKEN_MS;
  }

  update(board) {
    const found = items(board);
    const most = NARROW.matches ? 1 : MOST;
    const key = JSON.stringify([
      this.isOpen,
      most,
      board.isLoaded,
      ...found.map((each) => [each.key, each.text, each.detail]),
    ]);
    if (key === this.key) return;
    this.key = key;
    this.root.classList.toggle("calm", !found.length);
    this.root.classList.toggle("open", this.isOpen);
    const shown = this.isOpen ? found : found.slice(0, most);
    const list = shown.map((each) => this.item(each));
    // On a telephone the one line has no room for details and commands.
    if (found.length > most || (NARROW.matches && found.some((each) => each.remedy))) {
      const more = found.length - most;
      const text = this.isOpen ? "show fewer" : more ? `${more} more` : "details";
      list.push(
        h(
          "li",
          { class: "more" },
          h(
            "button",
            { type: "button", class: "link", "aria-expanded": String(this.isOpen), onclick: () => this.toggle(board) },
            text,
          ),
        ),
      );
    }
    if (!found.length)
      list.push(h("li", { class: "none" }, board.isLoaded ? "Nothing needs attention." : "Reading the cluster …"));
    const hadFocus = this.root.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    if (hadFocus !== "token") fill(this.root, list);
    if (hadFocus) this.root.querySelector(`[data-key="${CSS.escape(hadFocus)}"]`)?.focus();
    this.say(found);
  }

  toggle(board) {
    this.isOpen = !this.isOpen;
    this.update(board);
  }

  item(each) {
    const body = [h("strong", {}, each.text), " ", h("span", { class: "detail" }, each.detail)];
    const text = each.go
      ? h("button", { type: "button", class: "go", "data-key": each.key, onclick: () => this.go(each.go) }, ...body)
      : h("div", { class: "go" }, ...body);
    return h(
      "li",
      { class: each.level ? "warn" : "alarm" },
      h("span", { class: "sign", role: "img", "aria-label": each.level ? "warning" : "alarm" }, each.level ? "!" : "▲"),
      h("div", {}, text, each.needsToken ? this.form() : null, each.remedy ? remedyElement(each.remedy) : null),
    );
  }

  form() {
    const field = h("input", {
      type: "password",
      name: "token",
      "data-key": "token",
      "aria-label": "Token",
      autocomplete: "off",
      required: true,
    });
    const enter = (event) => {
      event.preventDefault();
      field.blur();
      this.enter(field.value);
    };
    return h("form", { class: "token", onsubmit: enter }, field, h("button", { type: "submit" }, "Enter"));
  }

  /** Tell screen readers what is new, not more often than they can speak. */
  say(found) {
    const text = found
      .filter((each) => each.level === 0)
      .map((each) => each.text)
      .join("; ");
    if (text === this.said || performance.now() - this.saidAt < SPOKEN_MS) return;
    this.said = text;
    this.saidAt = performance.now();
    setText(this.spoken, text);
  }
}
