// The board: what the server has sent, and what follows from it for a node. Instants here are milliseconds.
//
// Invariants: an object of the board is never changed, only replaced, so what follows from it is kept beside it and
// forgotten with it; nothing grows but with the cluster.

import { applied } from "./delta.js";
import { byName, ms } from "./format.js";

/** Instants of the server are whole seconds. */
const SLACK = 1000;
/** So long may a forecast be unknown before that needs attention: pods of a budget are about to become Ready. */
const PATIENCE = 60000;
const EMPTY = {
  version: 1,
  id: null,
  status: null,
  withPods: true,
  podBudgets: [],
  nodeBudgets: null,
  nodeDrains: [],
  timelines: {},
  history: [],
  events: [],
  eventsCut: false,
  links: {},
  pace: null,
  breaker: null,
  connection: null,
};

/** All that is known of the cluster. */
export class Board {
  constructor() {
    this.data = EMPTY;
    this.nodes = new Map();
    /** Pods of the open node and their past, where the board has none: `uid`, `pods`, `timeline`. */
    this.opened = null;
    this.offset = null;
    this.counted = null;
    this.stream = { error: "", needsToken: false, lostAt: null };
    this.revision = 0;
  }

  /** Whether the server has read the cluster, and this page the server. */
  get isLoaded() {
    return this.data.status !== null && this.data.connection?.state !== "starting";
  }

  /** Take a snapshot. */
  replace(board) {
    if (board.version !== 1)
      throw new Error(`the server speaks version ${board.version} of the board, this page version 1: reload`);
    this.data = { ...EMPTY, ...board };
    this.index();
    this.touch();
  }

  /** Take a change. */
  apply(change) {
    const before = this.data.status;
    this.data = applied(this.data, change);
    const { status } = this.data;
    if (status?.nodes !== before?.nodes || status?.claims !== before?.claims) this.index();
    this.touch();
  }

  index() {
    const { nodes, claims } = this.data.status ?? { nodes: [], claims: [] };
    this.nodes = new Map(
      [...nodes, ...claims.map((claim) => kept(claim, "node", nodeOfClaim))].map((node) => [node.uid, node]),
    );
  }

  touch() {
    this.note(ms(this.data.status?.at));
    this.revision += 1;
  }

  /** Take note of the API server's clock. What is read of it is late or rounded down, so the latest reading counts. */
  note(at) {
    if (at !== null) this.offset = Math.max(this.offset ?? -Infinity, at - performance.now());
  }

  /** Whether the picture is old: the server or the cluster is away. */
  get isStale() {
    return this.stream.lostAt !== null || this.data.connection?.state === "lost";
  }

  /** Now, by the clock of the API server; it stands still while the picture is old. */
  get now() {
    if (this.data.connection?.state === "lost") return ms(this.data.connection.since) ?? ms(this.data.status.at);
    return (this.offset ?? 0) + (this.stream.lostAt ?? performance.now());
  }

  timeline(uid) {
    return this.data.timelines[uid] ?? null;
  }

  /** A node with its pods and their past, also where the board has no pods. */
  withPods(node) {
    const timeline = this.timeline(node.uid);
    if (this.data.withPods || this.opened?.uid !== node.uid) return { node, timeline, pods: node.pods };
    return {
      node,
      timeline: kept(this.opened, "whole", () => ({ ...timeline, pods: this.opened.timeline })),
      pods: this.opened.pods,
    };
  }

  /** Terminated nodes, the last one first. */
  get finished() {
    return kept(this.data.history, "finished", () => [...this.data.history].reverse());
  }

  budget(key) {
    const found = kept(
      this.data.podBudgets,
      "byKey",
      () => new Map(this.data.podBudgets.map((each) => [budgetKey(each), each])),
    );
    return found.get(key) ?? null;
  }
}

/** `namespace/name`, or the name of a budget for nodes. */
export function budgetKey(budget) {
  return budget.namespace === undefined ? budget.name : `${budget.namespace}/${budget.name}`;
}

const derived = new WeakMap();

/** What follows from an object, computed once as long as the object lives. */
export function kept(object, name, compute) {
  let found = derived.get(object);
  if (!found) derived.set(object, (found = {}));
  if (!(name in found)) found[name] = compute(object);
  return found[name];
}

/** What its deadline means for a node: it `passed`, it `will` or `may` be missed, or it is kept and `cuts` pods short that are held; or null. */
export function deadlineRisk(node, now) {
  const deadline = ms(node.deadline?.at);
  if (deadline === null || node.done) return null;
  if (deadline <= now) return "passed";
  if (!node.podsLeft || !node.drained) return null;
  if (node.drained.answer === "never") return "will";
  if (ms(node.drained.earliest) > deadline + SLACK) return "will";
  const latest = ms(node.drained.latest);
  if (latest === null || latest > deadline + SLACK) return "may";
  return latest >= (ms(node.firstCutAt) ?? Infinity) ? "cuts" : null;
}

/** Whether a budget allows nothing even when all of its pods are healthy. */
export function isNeverAllowing(budget) {
  return (
    Boolean(budget.problem) || (budget.state === "spent" && budget.expected > 0 && budget.required >= budget.expected)
  );
}

/** What helps against a budget that never allows; null for a budget for nodes. */
export function remedyOf({ namespace, name }) {
  return namespace === undefined ? null : `widen it, or run more pods: kubectl edit pdb -n ${namespace} ${name}`;
}

/** The budget that a cause names, as `namespace/name`; undefined for other causes. */
export function budgetOf(cause) {
  return /^budget ([^\s:,]+)/.exec(cause.message)?.[1];
}

/** Whether it has been unknown for a while when the pods of a cause leave: a budget does not recover by itself. */
export function isLasting(board, cause) {
  if (cause.left?.answer !== "unknown") return false;
  // The age is as of when the cause has changed last, which is when it was seen first.
  const seen = kept(cause, "seen", () => board.now);
  return cause.ageSeconds * 1000 + board.now - seen > PATIENCE;
}

/** Whether a node is never drained, by the forecast, which alone says so. */
export function isNeverDrained(node) {
  return node.drained?.answer === "never";
}

/** 0: alarm, 1: warning, 2: in order. */
function severity(node, now) {
  const risk = deadlineRisk(node, now);
  if (risk === "passed" || risk === "will" || isNeverDrained(node)) return 0;
  const warnings = node.warnings.filter((each) => each.kind !== "NeverDrains");
  if (warnings.some((each) => each.blocking)) return 0;
  return risk || warnings.length || (node.state === "pending" && node.pending?.hold) ? 1 : 2;
}

/** A terminating NodeClaim without a terminating node, as a row of its own. */
function nodeOfClaim(claim) {
  const node = claim.nodes.length
    ? `${claim.waitsFor}; node ${claim.nodes.join(", ")} not deleted yet`
    : claim.waitsFor;
  const none = { pending: null, podsLeft: null, drained: null, never: null, warnings: [], pods: [] };
  return {
    ...none,
    ...claim,
    name: `NodeClaim ${claim.name}`,
    uid: `claim-${claim.name}`,
    state: "claim",
    step: "claim",
    done: false,
    waitsFor: node,
  };
}

/** `terminating`, `maintenance`, `pending`; an uncordoning node counts to maintenance. */
function groupOf(node) {
  return node.state === "uncordoning" ? "maintenance" : node.state;
}

/** All that a search finds a node by, in lower case. */
function haystack(node) {
  return kept(node, "haystack", () => {
    const pods = (node.pods ?? []).flatMap((pod) => [`${pod.namespace}/${pod.name}`, pod.state, ...pod.budgets]);
    return [node.name, node.state, node.step, node.waitsFor, ...pods].join("\n").toLowerCase();
  });
}

/** All that a search finds a terminated node by. */
export function haystackOfFinished(finished) {
  return `${finished.name}\nterminated`.toLowerCase();
}

/** When the drain of a node is over at the latest, for sorting: Infinity where it never is or is not known. */
function end(node) {
  const window = node.drained;
  return window?.answer === "range" ? ms(window.latest) : Infinity;
}

/** Milliseconds after which nodes are counted again although none has changed: deadlines pass. */
const COUNT_AGAIN = 200;
const GROUPS = ["terminating", "claim", "pending", "maintenance", "idle"];
const ORDERS = {
  urgency: (a, b) => a.severity - b.severity || GROUPS.indexOf(a.group) - GROUPS.indexOf(b.group) || a.since - b.since,
  left: (a, b) => end(a.node) - end(b.node),
  since: (a, b) => a.since - b.since,
  name: () => 0,
};

/** The nodes in progress that a search and a filter select, in order; terminated ones are in `board.finished`.
 *  `before`: uids in the order of the last time, which makes the next sort of thousands of nodes short. */
export function selected(board, { q, show, sort }, before = []) {
  const { now } = board;
  const wanted = q.trim().toLowerCase();
  const found = [];
  for (const uid of new Set([...before, ...board.nodes.keys()])) {
    const node = board.nodes.get(uid);
    if (!node || (wanted && !haystack(node).includes(wanted))) continue;
    const [grave, group] = [severity(node, now), groupOf(node)];
    if (show === "attention" ? grave < 2 : show === "all" || group === show)
      found.push({ uid, node, severity: grave, group, since: ms(node.since) ?? Infinity });
  }
  const order = ORDERS[sort];
  return found.sort((a, b) => order(a, b) || byName(a.node.name, b.node.name));
}

/** How many nodes each filter selects. */
export function counts(board) {
  const { now, revision } = board;
  if (board.counted?.revision === revision && now - board.counted.at < COUNT_AGAIN) return board.counted.found;
  const found = { all: 0, attention: 0, terminating: 0, pending: 0, maintenance: 0, done: board.data.history.length };
  for (const node of board.nodes.values()) {
    const group = groupOf(node);
    if (group in found) found[group] += 1;
    if (severity(node, now) < 2) found.attention += 1;
  }
  found.all = board.nodes.size + found.done;
  board.counted = { revision, at: now, found };
  return found;
}
