// Changes of the board, as gracectl/cli/ui/board.py makes them and docs/ui.md describes them.
//
// Invariant: nothing is changed in place; what a change does not name keeps its identity.

const NESTED = new Set(["status"]);
const KEYED = new Set(["nodes", "pods", "podBudgets", "nodeBudgets", "nodeDrains", "queue", "history", "events", "timelines"]);

/** The object after a change. */
export function applied(old, delta) {
  const state = { ...old };
  for (const [name, value] of Object.entries(delta)) {
    const before = old[name];
    if (NESTED.has(name) && isObject(before) && isObject(value)) state[name] = applied(before, value);
    else if (KEYED.has(name) && Array.isArray(before) && isObject(value)) state[name] = appliedToList(before, value);
    else if (KEYED.has(name) && isObject(before) && isObject(value)) state[name] = appliedToMap(before, value);
    else state[name] = value;
  }
  return state;
}

function appliedToList(before, { remove = [], set = [], order = null }) {
  const removed = new Set(remove);
  const found = new Map();
  for (const each of before) if (!removed.has(each.uid)) found.set(each.uid, each);
  for (const each of set) found.set(each.uid, found.has(each.uid) ? applied(found.get(each.uid), each) : each);
  if (!order) return [...found.values()];
  if (order.some((uid) => !found.has(uid))) throw new Error("a change names an object that is not there");
  return order.map((uid) => found.get(uid));
}

function appliedToMap(before, { remove = [], set = {} }) {
  const state = { ...before };
  for (const uid of remove) delete state[uid];
  for (const [uid, each] of Object.entries(set)) {
    state[uid] = isObject(state[uid]) && isObject(each) ? applied(state[uid], each) : each;
  }
  return state;
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
