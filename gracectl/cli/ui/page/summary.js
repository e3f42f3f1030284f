// The header: which cluster, who leads, how much is done, until when it takes, and what holds it.

import { fill, h, link, setAttribute, setText } from "./dom.js";
import { answerText, clock, counted, elapsed, ms } from "./format.js";
import { budgetOf, counts } from "./state.js";

const MOST_CAUSES = 3;
/** Seconds: the age of an older forecast is shown. */
const FRESH = 5;
/** Tiles that a telephone shows only if they are alarming. */
const QUIET = new Set(["breaker", "pace"]);

/** The top line and the summary. `find(query)`: show the nodes of a cause. */
export class Summary {
  constructor(top, root, find) {
    this.find = find;
    this.context = h("span", { class: "context" });
    this.leader = h("span", { class: "leader" });
    this.connection = h("span", { class: "connection", role: "status" });
    this.links = h("span", { class: "links" });
    this.grafana = null;
    fill(top, this.context, this.leader, this.connection, this.links);
    this.tiles = Object.fromEntries(
      ["remaining", "terminating", "pending", "done", "pods left", "breaker", "pace"].map((name) => [
        name,
        new Tile(name),
      ]),
    );
    this.causes = h("ol", { class: "causes" });
    this.areAllShown = false;
    this.moreCauses = h("button", { type: "button", class: "link more", onclick: () => this.toggleCauses() });
    this.causesBox = h(
      "section",
      { class: "held", "aria-labelledby": "held-title" },
      h("div", { class: "held-head" }, h("h2", { id: "held-title" }, "What holds them"), this.moreCauses),
      this.causes,
    );
    fill(root, h("dl", { class: "tiles" }, ...Object.values(this.tiles).map((tile) => tile.element)), this.causesBox);
  }

  update(board) {
    this.board = board;
    const { status, breaker, pace, links } = board.data;
    setText(this.context, status.cluster.context ?? "this cluster");
    setAttribute(this.context, "title", status.cluster.server);
    const { controller } = status;
    setText(this.leader, leaderText(controller));
    this.leader.classList.toggle("alarm-text", controller.state === "none");
    this.updateConnection(board);
    const found = counts(board);
    const { progress } = status;
    this.tiles.terminating.set(found.terminating, found.maintenance ? `+ ${found.maintenance} maintenance` : "");
    this.tiles.pending.set(found.pending, "");
    this.tiles.done.set(progress ? `${progress.nodesDone} of ${progress.nodes}` : found.done, "");
    this.tiles.done.meter("nodes done", progress?.nodesDone ?? 0, progress?.nodes ?? 0);
    const left = progress ? progress.pods - progress.podsDone : 0;
    this.tiles["pods left"].set(progress ? `${left.toLocaleString()} of ${progress.pods.toLocaleString()}` : "0", "");
    this.tiles["pods left"].meter("pods gone", progress?.podsDone ?? 0, progress?.pods ?? 0);
    this.tiles.remaining.set(...remaining(board));
    this.tiles.breaker.set(...breakerText(breaker));
    this.tiles.pace.set(...paceText(pace));
    this.updateCauses(progress?.causes ?? []);
    document.title = titleText(progress, found, status);
    if (links.grafana !== this.grafana) {
      this.grafana = links.grafana;
      fill(this.links, links.grafana ? link(links.grafana, "Grafana") : null);
    }
  }

  updateConnection(board) {
    const [kind, text] =
      board.stream.lostAt !== null
        ? ["away", "reconnecting"]
        : board.isStale
          ? ["away", "API server away"]
          : ["live", "live"];
    this.connection.className = `connection ${kind}`;
    setText(this.connection, text);
    setAttribute(this.connection, "title", `as of ${clock(board.now, board.now)} by the server's clock`);
  }

  updateCauses(causes) {
    this.causesBox.hidden = !causes.length;
    const key = JSON.stringify([
      this.areAllShown,
      ...causes.map((each) => [each.message, each.pods, each.never]),
    ]);
    if (key !== this.causesKey) {
      this.causesKey = key;
      this.texts = [];
      const shown = this.areAllShown ? causes : causes.slice(0, MOST_CAUSES);
      fill(
        this.causes,
        shown.map((cause) => this.cause(cause)),
      );
      this.causesBox.classList.toggle("open", this.areAllShown);
      this.moreCauses.hidden = causes.length <= MOST_CAUSES;
      setAttribute(this.moreCauses, "aria-expanded", this.areAllShown);
      setText(this.moreCauses, this.areAllShown ? "show fewer" : `and ${causes.length - MOST_CAUSES} more`);
    }
    for (const [element, cause] of this.texts) {
      const text = causeText(cause, this.board.now);
      setText(element, text);
      setAttribute(element, "title", text);
    }
  }

  toggleCauses() {
    this.areAllShown = !this.areAllShown;
    this.updateCauses(this.board.data.status.progress?.causes ?? []);
  }

  cause(cause) {
    const budget = budgetOf(cause);
    const text = budget ? h("button", { type: "button", class: "link", onclick: () => this.find(budget) }) : h("span");
    this.texts.push([text, cause]);
    const swatch = h("i", { class: `swatch ${swatchOf(cause.reason)}`, "aria-hidden": "true" });
    return h("li", { class: cause.never ? "cause never" : "cause" }, swatch, text);
  }
}

/** A number with its name. */
class Tile {
  constructor(name) {
    this.name = name;
    this.value = h("dd", { class: "value" });
    this.note = h("dd", { class: "note" });
    this.element = h(
      "div",
      { class: `tile ${name === "remaining" ? "main" : ""}` },
      h("dt", {}, name),
      this.value,
      this.note,
    );
  }

  set(value, note, kind = "") {
    setText(this.value, String(value));
    if (!this.bar) setText(this.note, note);
    this.element.classList.toggle("alarm", kind === "alarm");
    this.element.classList.toggle("warn", kind === "warn");
    this.element.classList.toggle("absent", value === "–");
    this.element.classList.toggle("nothing", value === 0);
    this.element.classList.toggle("quiet", kind !== "alarm" && (QUIET.has(this.name) || value === 0));
  }

  /** In place of the note: a bar of how much is done. */
  meter(label, done, all) {
    if (!this.bar) {
      this.bar = h("i", {});
      this.track = h("div", { class: "meter", role: "progressbar", "aria-label": label, "aria-valuemin": 0 }, this.bar);
      fill(this.note, this.track);
    }
    this.track.hidden = !all;
    setAttribute(this.track, "aria-valuemax", all);
    setAttribute(this.track, "aria-valuenow", done);
    this.bar.style.width = `${all ? (100 * done) / all : 0}%`;
  }
}

/** Its sentence, with the time that is left now. */
function causeText(cause, now) {
  return cause.left?.answer === "range"
    ? cause.message.replace(/about [\d:d ()-]+ left$/, () => `about ${answerText(cause.left, now)} left`)
    : cause.message;
}

function swatchOf(reason) {
  if (reason === "budget" || reason === "unobserved-budget" || reason === "misconfiguration") return "blocked";
  if (reason === "protection" || reason === "neighbour") return "protected";
  return reason === "step" ? "instance" : "terminating";
}

function leaderText(controller) {
  if (controller.state === "none") return "no controller leads";
  return controller.holder ? `led by ${controller.holder}` : controller.state === "unknown" ? "leader unknown" : "";
}

/** The time until the last node is drained, and by which time of the day; as `status` says it. */
function remaining(board) {
  const { now } = board;
  const { progress } = board.data.status;
  if (!progress) return ["–", ""];
  if (progress.nodesDone === progress.nodes) return ["0:00", `over after ${elapsed(progress.elapsedSeconds)}`];
  const { drained, unknown, never } = progress;
  if (!drained) return ["–", "no pod left"];
  const old = progress.forecastAt ? (now - ms(progress.forecastAt)) / 1000 : 0;
  const age = old > FRESH && !board.isStale ? `forecast ${elapsed(old)} old` : "";
  const note = (...parts) => parts.filter(Boolean).join(", ");
  const lost = never.length ? `never for ${counted(never.length, "node")}` : "";
  const level = lost ? "alarm" : "";
  if (unknown.length) return ["unknown", note(`for ${counted(unknown.length, "node")}`, lost, age), level];
  if (drained.answer === "never") return ["never", note(`for ${counted(never.length, "node")}`, age), level];
  const others = note(`${shortRange(drained, now)} for the others`, age);
  if (lost) return ["never", `for ${counted(never.length, "node")}, ${others}`, level];
  const by = `by ${clock(Math.max(ms(drained.latest), now), now)}`;
  const text = answerText(drained, now);
  const range = shortRange(drained, now);
  // What is likely is the number; the range stands below it.
  return text.endsWith(")") ? [text.split(" ")[0], note(range, by, age)] : [range, note(by, age)];
}

/** `1:58–1:59 h` where seconds do not matter. */
function shortRange(answer, now) {
  const text = answerText({ ...answer, expected: null }, now);
  const parts = text.split("–");
  return parts.every((part) => /^\d+:\d\d:\d\d$/.test(part))
    ? `${[...new Set(parts.map((part) => part.slice(0, -3)))].join("–")} h`
    : text;
}

function breakerText(breaker) {
  if (!breaker) return ["–", ""];
  const unhealthy = `${breaker.unhealthy} unhealthy, limit ${breaker.allowed}`;
  return breaker.open ? ["open", unhealthy, "alarm"] : ["closed", unhealthy];
}

function paceText(pace) {
  if (!pace) return ["–", ""];
  return [pace.maximum === null ? "any" : `${pace.maximum} at once`, `${pace.inProgress} in progress`];
}

function titleText(progress, found, status) {
  const where = status.cluster.context ? ` · ${status.cluster.context}` : "";
  const alarm = found.attention ? `(${found.attention}!) ` : "";
  if (!progress || progress.nodesDone === progress.nodes) return `${alarm}gracectl${where}`;
  return `${alarm}${progress.nodesDone}/${progress.nodes} nodes${where}`;
}
