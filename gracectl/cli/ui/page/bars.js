// Bars of nodes and pods: what was, solid; what the forecast expects, hatched. Instants are milliseconds.

import { deadlineRisk, kept } from "./state.js";
import { elapsed, listed, ms } from "./format.js";

const NAMES = {
  leaving: "pods leave",
  deleted: "pods are deleted for the deadline",
  terminating: "pods stop",
  replacing: "replaced before they leave",
  blocked: "blocked by a budget",
  protected: "protected",
  waiting: "waiting for an earlier wave",
};

/** What a state of pods means, in words. */
export function stateText(state) {
  return NAMES[state] ?? state;
}

/** Stretches of a drain by what held it: `state`, `from`, `to` (Infinity: still so). */
function holds(timeline) {
  return kept(timeline, "spans", () =>
    (timeline.holds ?? []).map(({ state, from, to }) => ({ state, from: ms(from), to: ms(to) ?? Infinity })),
  );
}

/** Bars of a node in progress: `kind` (a class), `from`, `to` (Infinity: beyond what is known), `label`, `title`. */
export function nodeBars(board, node) {
  const { now } = board;
  const timeline = board.timeline(node.uid);
  const found = [];
  for (const step of timeline?.steps ?? []) {
    const from = ms(step.from);
    const to = Math.min(ms(step.to) ?? now, now);
    if (step.step === "drain") found.push(...drainBars(timeline, from, to));
    else
      found.push({
        kind: step.step,
        from,
        to,
        label: step.step,
        title: `${step.step}: ${elapsed((to - from) / 1000)}`,
      });
  }
  if (!found.length && node.since) {
    const from = ms(node.since);
    found.push({ kind: node.step || node.state, from, to: now, label: node.step || node.state, title: node.waitsFor });
  }
  found.push(...forecastBars(board, node));
  return found;
}

function drainBars(timeline, from, to) {
  const found = [];
  let at = from;
  const plain = (until) => {
    if (until > at) found.push({ kind: "drain", from: at, to: until, label: "drain", title: "drain" });
  };
  for (const hold of holds(timeline)) {
    const [begin, end] = [Math.max(hold.from, at), Math.min(hold.to, to)];
    if (end <= begin) continue;
    plain(begin);
    const text = stateText(hold.state);
    found.push({
      kind: `drain ${hold.state}`,
      from: begin,
      to: end,
      label: text,
      title: `drain: ${text} for ${elapsed((end - begin) / 1000)}`,
    });
    at = end;
  }
  plain(to);
  return found;
}

/** By the forecast: until it is surely drained, and until it perhaps is. */
function forecastBars(board, node) {
  const { now } = board;
  const { drained } = node;
  if (!drained) return [];
  const beyond = { from: now, to: Infinity };
  if (drained.answer === "never")
    return [
      {
        ...beyond,
        kind: "forecast never",
        label: "never, unless something is changed",
        title: "forecast: never drained",
      },
    ];
  if (drained.answer === "unknown") {
    const title = `forecast: unknown ${listed(drained.missing)}`;
    return [{ ...beyond, kind: "forecast perhaps", label: "unknown", title }];
  }
  const risk = deadlineRisk(node, now);
  const late = risk === "will" || risk === "passed" ? " late" : "";
  const earliest = Math.max(ms(drained.earliest), now);
  const latest = Math.max(ms(drained.latest), earliest);
  const found = [
    {
      kind: `forecast${late}`,
      from: now,
      to: earliest,
      label: "",
      title: `forecast: drained in ${elapsed((earliest - now) / 1000)} at the earliest`,
    },
  ];
  if (latest > earliest + 500) {
    const title = `forecast: drained in ${elapsed((latest - now) / 1000)} at the latest`;
    found.push({ kind: `forecast perhaps${late}`, from: earliest, to: latest, label: "", title });
  }
  return found;
}

/** Where a wave begins, with its name. */
export function waveMarks(timeline) {
  return (timeline?.waves ?? [])
    .filter((each) => each.from)
    .map((each) => ({ at: ms(each.from), label: each.name ?? `wave ${each.wave}` }));
}

/** Bars of a pod. */
export function podBars(segments, now) {
  return segments.map((each) => {
    const [from, to] = [ms(each.from), Math.min(ms(each.to) ?? now, now)];
    return { kind: each.state, from, to, label: "", title: `${stateText(each.state)}: ${elapsed((to - from) / 1000)}` };
  });
}

/** Draw bars into a track: elements are used again, and only what is inside the window is drawn. */
export function draw(track, bars, axis, width) {
  let used = 0;
  const next = () => track.children[used] ?? track.appendChild(document.createElement("i"));
  for (const bar of bars) {
    const [start, end] = [Math.max(axis.place(bar.from), 0), Math.min(axis.place(bar.to), 1)];
    if (!(end > 0 && start < 1) || end < start) continue;
    const element = next();
    const beyond = axis.place(bar.to) > 1 ? " beyond" : "";
    const kind = `bar ${bar.kind}${beyond}`;
    if (element.className !== kind) element.className = kind;
    element.style.left = `${(start * 100).toFixed(3)}%`;
    element.style.width = `${((end - start) * 100).toFixed(3)}%`;
    const room = (end - start) * width;
    const text = room > bar.label.length * 6.6 + 10 ? bar.label : "";
    if (element.textContent !== text) element.textContent = text;
    if (element.title !== bar.title) element.title = bar.title;
    used += 1;
  }
  return used;
}

/** Draw lines at instants, such as deadlines, after so many elements; elements that are left over are removed. */
export function drawMarks(track, marks, axis, used) {
  for (const mark of marks) {
    const place = axis.place(mark.at);
    if (!(place >= 0 && place <= 1)) continue;
    const element = track.children[used] ?? track.appendChild(document.createElement("i"));
    if (element.className !== mark.kind) element.className = mark.kind;
    element.style.left = `${(place * 100).toFixed(3)}%`;
    element.style.width = "";
    if (element.textContent !== "") element.textContent = "";
    if (element.title !== mark.title) element.title = mark.title;
    used += 1;
  }
  while (track.children.length > used) track.lastChild.remove();
}
