// Texts: elapsed times as the terminal prints them, instants, windows, counts.

const DAY = 86400;
const two = (number) => String(number).padStart(2, "0");
const clockFormat = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const minuteFormat = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayFormat = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });
const instants = new Map();
const MOST_INSTANTS = 20000;

/** Milliseconds of an instant of the API server; null for null. Equal texts are parsed once. */
export function ms(text) {
  if (text === null || text === undefined) return null;
  let found = instants.get(text);
  if (found === undefined) {
    if (instants.size >= MOST_INSTANTS) instants.clear();
    found = Date.parse(text);
    instants.set(text, found);
  }
  return Number.isNaN(found) ? null : found;
}

/** `0:05`, `4:32`, `1:04:32`, `2d 03:00:00`; whole seconds, rounded down. */
export function elapsed(seconds) {
  const whole = Math.trunc(seconds);
  const sign = whole < 0 ? "-" : "";
  const all = Math.abs(whole);
  const [days, hours, minutes, rest] = [
    Math.floor(all / DAY),
    Math.floor((all % DAY) / 3600),
    Math.floor((all % 3600) / 60),
    all % 60,
  ];
  if (days) return `${sign}${days}d ${two(hours)}:${two(minutes)}:${two(rest)}`;
  if (hours) return `${sign}${hours}:${two(minutes)}:${two(rest)}`;
  return `${sign}${minutes}:${two(rest)}`;
}

/** `12 s`, `4 min`, `1 h 20 min`, `3 d`: for labels of an axis and for headlines. */
export function rough(seconds) {
  const all = Math.max(Math.round(seconds), 0);
  if (all < 60) return `${all} s`;
  if (all < 3600)
    return all % 60 && all < 600 ? `${Math.floor(all / 60)} min ${all % 60} s` : `${Math.round(all / 60)} min`;
  if (all < 2 * DAY) {
    const minutes = Math.round((all % 3600) / 60) % 60;
    return minutes ? `${Math.floor(all / 3600)} h ${minutes} min` : `${Math.round(all / 3600)} h`;
  }
  return `${Math.round(all / DAY)} d`;
}

/** `0:00`, `0:00–4:32`, `1:10 (0:00–4:32)`, `unknown`, `never`: an answer of the forecast, in seconds from now. */
export function answerText(answer, now) {
  if (answer.answer !== "range") return answer.answer;
  const left = (at) => elapsed(Math.max((ms(at) - now) / 1000, 0));
  const [earliest, latest] = [left(answer.earliest), left(answer.latest)];
  if (earliest === latest || answer.certain) return earliest;
  const range = `${earliest}–${latest}`;
  const expected = answer.expected === null ? earliest : left(answer.expected);
  return expected === earliest || expected === latest ? range : `${expected} (${range})`;
}

/** `14:02:11` of the day that is now, `Jan 12 14:02:11` of another one. */
export function clock(at, now) {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date(now).toDateString();
  return isToday ? clockFormat.format(date) : `${dayFormat.format(date)} ${clockFormat.format(date)}`;
}

/** The label of a tick: with seconds only where ticks are closer than a minute, with the day where they are far. */
export function tickLabel(at, step) {
  const date = new Date(at);
  if (step >= DAY * 1000) return dayFormat.format(date);
  const text = (step < 60000 ? clockFormat : minuteFormat).format(date);
  return date.getHours() === 0 && date.getMinutes() === 0 && date.getSeconds() === 0
    ? `${dayFormat.format(date)} ${text}`
    : text;
}

/** `1 pod`, `2 pods`. */
export function counted(number, one) {
  return `${number.toLocaleString()} ${one}${number === 1 ? "" : "s"}`;
}

/** The first names, and how many more: `a, b and 4 more`. */
export function listed(names, most = 3) {
  const shown = names.slice(0, most);
  const more = names.length - shown.length;
  if (more) return `${shown.join(", ")} and ${more.toLocaleString()} more`;
  return shown.length > 1 ? `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}` : shown.join("");
}

/** Order of names in which worker-2 comes before worker-10. */
export const byName = new Intl.Collator("en", { numeric: true }).compare;
