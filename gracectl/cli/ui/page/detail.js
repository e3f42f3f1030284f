// One node: its facts, its warnings, and its pods by what holds them, with the remedy of each cause.

import { draw, drawMarks, podBars, stateText } from "./bars.js";
import { commandElement, fill, h, link, nameElement, remedyElement, setAttribute, setText } from "./dom.js";
import { answerText, clock, counted, elapsed, listed, ms, rough } from "./format.js";
import { deadlineRisk, kept } from "./state.js";
import { historyFacts } from "./history.js";

const ORDER = ["blocked", "protected", "replacing", "deleted", "terminating", "leaving", "waiting"];
const MOST_PODS = 150;

/** The panel of the open node. `close()`: it was closed. */
export class Detail {
  constructor(root, close) {
    this.root = root;
    this.title = h("h2", { id: "detail-title", tabindex: -1 });
    this.state = h("span", { class: "badge" });
    const button = h(
      "button",
      { type: "button", class: "close", "aria-label": "Close the details", onclick: close },
      "×",
    );
    this.body = h("div", { class: "detail-body" });
    this.tracks = [];
    this.parts = [];
    fill(root, h("header", {}, this.title, this.state, button), this.body);
    this.seen = new Map();
  }

  /** Show a node, or its end; `axis`: that of the timeline. */
  update(board, name, axis) {
    const node = name ? [...board.nodes.values()].find((each) => each.name === name) : null;
    const finished = name && !node ? board.finished.find((each) => each.name === name) : null;
    const isNew = this.name !== name;
    if (isNew) this.seen.clear();
    this.name = name;
    this.root.hidden = !name;
    setAttribute(this.title, "aria-label", name || null);
    if (!name) return;
    if (node) this.updateNode(board, node, axis, isNew);
    else this.updateFinished(board, finished, name);
  }

  updateFinished(board, finished, name) {
    this.root.dataset.kind = "finished";
    this.shown = null;
    fill(this.title, nameElement(name));
    setText(this.state, finished ? "terminated" : "unknown");
    fill(
      this.body,
      finished ? historyFacts(finished, board) : h("p", {}, "No node of this name is terminating, drained or pending."),
    );
  }

  updateNode(board, node, axis, isNew) {
    const { now } = board;
    const whole = board.withPods(node);
    const { timeline, pods } = whole;
    const parts = [node, board.data.links, timeline, pods];
    if (isNew || parts.some((each, index) => each !== this.parts[index])) {
      // What was focused in it is found again by its text.
      const focused = this.body.contains(document.activeElement)
        ? document.activeElement.getAttribute("aria-label")
        : null;
      this.build(board, whole);
      if (focused)
        [...this.body.querySelectorAll("button")].find((each) => each.getAttribute("aria-label") === focused)?.focus();
      this.shown = node;
      this.parts = parts;
    }
    for (const [element, text] of this.live) setText(element, text(now));
    this.drawTracks(node, axis, now);
  }

  /** A text that changes with the time. */
  ticking(tag, text, attributes = {}) {
    const element = h(tag, attributes);
    this.live.push([element, text]);
    return element;
  }

  build(board, { node, timeline, pods }) {
    this.live = [];
    this.tracks = [];
    this.root.dataset.kind = node.state;
    fill(this.title, nameElement(node.name));
    setText(this.state, node.done ? "drained" : node.state);
    const warned = new Set(node.warnings.filter((each) => each.remedy).flatMap((each) => each.objects));
    fill(this.body, this.facts(board, node), this.warnings(node), this.pods(node, pods, timeline, warned));
  }

  facts(board, node) {
    const rows = [];
    const row = (name, ...value) => rows.push(h("dt", {}, name), h("dd", {}, ...value));
    row("step", node.step || "none", node.waitsFor ? h("span", { class: "faint" }, ` ${node.waitsFor}`) : null);
    if (node.owner) {
      const assists = node.owner.assisted ? "; gracectl assists" : "";
      row("drained by", node.owner.name, h("span", { class: "faint" }, ` ${node.owner.reason}${assists}`));
    }
    if (node.since)
      row(
        "since",
        this.ticking("span", (now) => `${elapsed((now - ms(node.since)) / 1000)}, since ${clock(ms(node.since), now)}`),
      );
    if (node.pending?.causes.length) row("due as", node.pending.causes.join(", "));
    if (node.drained)
      row(
        "forecast",
        this.ticking("span", (now) => forecastText(node, now)),
      );
    row("deadline", this.deadline(node));
    const links = [];
    if (node.trace?.url) links.push(link(node.trace.url, "Trace"));
    else if (node.trace) links.push(h("span", {}, `trace ${node.trace.id}`));
    if (board.data.links.grafana) links.push(link(board.data.links.grafana, "Grafana"));
    if (links.length) row("see", ...links.flatMap((each) => [each, " "]));
    if (node.state !== "claim") row("watch", commandElement(`gracectl status -w ${node.name}`));
    return h("dl", { class: "facts" }, ...rows);
  }

  deadline(node) {
    if (!node.deadline) return "none; the drain takes as long as its pods need";
    const risks = {
      passed: " (passed)",
      will: " (will be missed)",
      may: " (may be missed)",
      cuts: " (may override budgets or protection)",
    };
    const text = (now) => {
      const left = (ms(node.deadline.at) - now) / 1000;
      const when =
        left > 0
          ? `in ${elapsed(left)}, at ${clock(ms(node.deadline.at), now)}`
          : `${elapsed(-left)} ago, at ${clock(ms(node.deadline.at), now)}`;
      const holder = node.deadline.holder ? `, of ${node.deadline.holder}` : "";
      return `${when}${holder}${risks[deadlineRisk(node, now)] ?? ""}`;
    };
    return this.ticking("span", text);
  }

  warnings(node) {
    const found = node.warnings;
    if (!found.length) return null;
    const each = (warning) =>
      h(
        "li",
        { class: warning.blocking ? "alarm" : "warn" },
        h("strong", {}, warning.kind),
        " ",
        warning.message,
        warning.remedy ? remedyElement(warning.remedy) : null,
      );
    return h("ul", { class: "warnings", "aria-label": "Warnings" }, ...found.map(each));
  }

  pods(node, present, timeline, warned) {
    if (present === null) {
      const text = node.podsLeft === null ? "Its pods are not listed yet." : "Reading its pods …";
      return h("p", { class: "faint" }, text);
    }
    for (const pod of present) this.seen.set(pod.uid, `${pod.namespace}/${pod.name}`);
    const groups = kept(present, "causes", () => byCause(present));
    const sections = [];
    let room = MOST_PODS;
    for (const { pods, state } of groups) {
      const [first] = pods;
      const shown = pods.slice(0, Math.max(room, 0));
      room -= shown.length;
      const remedy =
        first.remedy && !warned.has(`${first.namespace}/${first.name}`) ? remedyElement(first.remedy) : null;
      sections.push(
        h(
          "section",
          { class: `group ${state}` },
          h(
            "h3",
            {},
            h("i", { class: `swatch ${state}`, "aria-hidden": "true" }),
            `${counted(pods.length, "pod")}: ${stateText(state)}`,
          ),
          pods.length > 1 && groupText(first) ? h("p", { class: "cause" }, groupText(first)) : null,
          remedy,
          h("ul", { class: "pods" }, ...shown.map((pod) => this.pod(pod, timeline, pods.length === 1))),
          shown.length < pods.length
            ? h(
                "p",
                { class: "faint" },
                `and ${counted(pods.length - shown.length, "pod")} more: gracectl status -v ${node.name}`,
              )
            : null,
        ),
      );
    }
    return h("div", { class: "pod-groups" }, ...sections, this.gone(present, timeline));
  }

  pod(pod, timeline, isAlone) {
    const segments = timeline?.pods?.[pod.uid] ?? [{ state: pod.state, from: pod.since, to: null }];
    const track = h("span", { class: "track", "aria-hidden": "true" });
    const marks = pod.deleteAt
      ? [{ kind: "deletion-mark", at: ms(pod.deleteAt), title: "deleted for the deadline, if it is still there" }]
      : [];
    if (pod.protection?.until)
      marks.push({ kind: "until-mark", at: ms(pod.protection.until), title: "its protection ends" });
    this.tracks.push({ track, segments, marks });
    return h(
      "li",
      {},
      h(
        "div",
        { class: "pod-line" },
        nameElement(`${pod.namespace}/${pod.name}`),
        this.ticking("span", (now) => rough((now - ms(pod.since)) / 1000), { class: "age" }),
      ),
      track,
      this.ticking("p", (now) => messageText(pod, now, isAlone), { class: "message" }),
    );
  }

  /** Pods that were on it: with names if the page has seen them. */
  gone(present, timeline) {
    const left = new Set(present.map((pod) => pod.uid));
    const uids = Object.keys(timeline?.pods ?? {}).filter((uid) => !left.has(uid));
    if (!uids.length) return null;
    const names = uids.map((uid) => this.seen.get(uid)).filter(Boolean);
    const items = names.slice(-MOST_PODS).map((name) => h("li", {}, nameElement(name)));
    return h(
      "section",
      { class: "group gone" },
      h("h3", {}, "✓ ", `${counted(uids.length, "pod")} gone`),
      items.length ? h("ul", { class: "pods" }, ...items) : null,
    );
  }

  drawTracks(node, axis, now) {
    const deadline = node.deadline ? [{ kind: "deadline-mark", at: ms(node.deadline.at), title: "deadline" }] : [];
    const present = [{ kind: "now-mark", at: now, title: "now" }];
    const width = this.tracks[0]?.track.clientWidth ?? 0;
    for (const { track, segments, marks } of this.tracks) {
      const used = draw(track, podBars(segments, now), axis, width);
      drawMarks(track, [...present, ...deadline, ...marks], axis, used);
    }
  }
}

/** Pods by state and cause, what an operator can act on first. */
function byCause(pods) {
  const found = new Map();
  for (const pod of pods) {
    const key = [
      pod.state,
      pod.state === "protected"
        ? `${pod.protection?.kind} ${pod.protection?.value}`
        : pod.state === "terminating"
          ? ""
          : pod.budgets.join(),
    ].join("\n");
    if (!found.has(key)) found.set(key, { state: pod.state, pods: [] });
    found.get(key).pods.push(pod);
  }
  return [...found.values()].sort(
    (a, b) => ORDER.indexOf(a.state) - ORDER.indexOf(b.state) || b.pods.length - a.pods.length,
  );
}

/** What all pods of a cause have in common. */
function groupText(pod) {
  return pod.state === "terminating" || pod.state === "leaving" ? "" : pod.reason;
}

/** The sentence of a pod, with its times as of now; of one among many only what is its own. */
function messageText(pod, now, isAlone) {
  if (pod.state === "terminating") {
    const left = pod.until === null ? null : (ms(pod.until) - now) / 1000;
    if (left === null) return "deletion requested";
    return left > 0 ? `grace ends in ${elapsed(left)}` : `grace ended ${elapsed(-left)} ago`;
  }
  const parts = [];
  if (isAlone || pod.state === "leaving") parts.push(pod.reason);
  const place = pod.queuePosition;
  if (place && place.of > 1) {
    const after = place.after ? `, after ${place.after}` : "";
    parts.push(
      place.undecided
        ? `${place.of} pods share this budget; order not decided yet`
        : `${place.number} of ${place.of} in queue${after}`,
    );
  }
  if (pod.state === "protected" && pod.until !== null)
    parts.push(`until ${clock(ms(pod.until), now)}, in ${elapsed(Math.max((ms(pod.until) - now) / 1000, 0))}`);
  if (pod.deleteAt && pod.state !== "deleted")
    parts.push(`deleted within ${elapsed(Math.max((ms(pod.deleteAt) - now) / 1000, 0))}`);
  return parts.filter(Boolean).join("; ");
}

function forecastText({ drained }, now) {
  if (drained.answer === "never") return "never drained, unless something is changed";
  if (drained.answer === "unknown") return `unknown ${listed(drained.missing)}`;
  return `drained in ${answerText(drained, now)}, by ${clock(Math.max(ms(drained.latest), now), now)}`;
}
