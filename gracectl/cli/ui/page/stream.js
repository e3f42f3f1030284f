// Connection to `gracectl ui`: the snapshot, then changes by server-sent events, with reconnection.
//
// EventSource can send no bearer token, so the stream is read by fetch. Invariant: changes reach the board in order and
// without a gap: a reconnect names the last id, and the server answers with what came after it, or with a snapshot.

import { ms } from "./format.js";
import { base, token } from "./url.js";

const FIRST_DELAY = 500;
const LONGEST_DELAY = 10000;
const SILENCE = 45000;

/** The server refused: a token is missing or wrong. */
class Unauthorized extends Error {}

/** Reads the board for as long as the page lives. `on`: functions `snapshot`, `change`, `clock`, `state`. */
export class Stream {
  constructor(on) {
    this.on = on;
    this.id = null;
    this.delay = FIRST_DELAY;
    this.lostAt = null;
    this.wake = null;
  }

  /** Never returns. */
  async run() {
    for (;;) {
      try {
        if (this.id === null) await this.readSnapshot();
        await this.readChanges();
        this.lost(new Error("the server ended the stream"));
      } catch (error) {
        this.lost(error);
      }
      await this.pause();
    }
  }

  /** Try again now: the token was typed, the network is back, the tab is shown again. */
  retry() {
    this.delay = FIRST_DELAY;
    if (this.wake) this.wake();
  }

  lost(error) {
    if (this.lostAt === null) this.lostAt = performance.now();
    const needsToken = error instanceof Unauthorized;
    this.on.state({ error: error.message, needsToken, lostAt: this.lostAt });
  }

  async pause() {
    const wait = this.delay * (0.75 + Math.random() / 2);
    this.delay = Math.min(this.delay * 2, LONGEST_DELAY);
    await new Promise((resolve) => {
      this.wake = resolve;
      setTimeout(resolve, wait);
    });
    this.wake = null;
  }

  async request(path, headers, signal) {
    const bearer = token();
    if (bearer) headers.Authorization = `Bearer ${bearer}`;
    const answer = await fetch(base + path, { headers, signal, credentials: "same-origin" });
    if (answer.status === 401) throw new Unauthorized("the server wants its token");
    this.on.clock(ms(answer.headers.get("X-Gracectl-Time")));
    if (!answer.ok) throw new Error(`the server answers ${answer.status} ${answer.statusText}`.trim());
    return answer;
  }

  async readSnapshot() {
    const answer = await this.request("api/v1/board", {}, AbortSignal.timeout(30000));
    const board = await answer.json();
    this.id = board.id;
    this.on.snapshot(board);
  }

  /** The pods of a node and their past; null: none are to be had. */
  async readPods(uid) {
    try {
      return await (await this.request(`api/v1/pods?node=${encodeURIComponent(uid)}`, {}, AbortSignal.timeout(10000))).json();
    } catch {
      return null; // the stream says what is wrong
    }
  }

  async readChanges() {
    const abort = new AbortController();
    let timer = null;
    const heard = () => {
      clearTimeout(timer);
      timer = setTimeout(() => abort.abort(new Error("the server is silent")), SILENCE);
    };
    heard();
    try {
      const headers = { Accept: "text/event-stream", "Last-Event-ID": this.id };
      const answer = await this.request("api/v1/changes", headers, abort.signal);
      this.lostAt = null;
      this.delay = FIRST_DELAY;
      this.on.state({ error: "", needsToken: false, lostAt: null });
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      const parser = new EventParser((event) => this.take(event));
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        heard();
        parser.feed(value);
      }
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
  }

  take({ type, id, data }) {
    if (type !== "snapshot" && type !== "change") return;
    // If it cannot be applied, what is shown is no longer what the server has: the next attempt begins anew.
    this.id = null;
    this.on[type](JSON.parse(data));
    this.id = id || null;
  }
}

/** Parser of text/event-stream, fed piece by piece. */
class EventParser {
  constructor(emit) {
    this.emit = emit;
    this.rest = "";
    this.clear();
  }

  clear() {
    this.type = "message";
    this.id = "";
    this.data = [];
  }

  feed(text) {
    // A snapshot is one long line: it is looked at once, when its end is there.
    if (!/[\r\n]/.test(text)) {
      this.rest += text;
      return;
    }
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop();
    for (const line of lines) this.line(line);
  }

  line(line) {
    if (line === "") {
      if (this.data.length) this.emit({ type: this.type, id: this.id, data: this.data.join("\n") });
      this.clear();
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "event") this.type = value;
    else if (field === "id") this.id = value;
    else if (field === "data") this.data.push(value);
  }
}
