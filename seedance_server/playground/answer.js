// One answer, from the request to its last frame, over as many connections as it takes. It applies frames by
// the cursor, holds back what the reader doesn't take, and notes when each token came. It knows no socket.

import { Cursor, FRAME, digestOf, utf8Length } from "./wire.js";

const ENDED = new Set(["done", "failed"]);

export class Answer {
  /**
   * @param request Members of SUBMIT beside its number and key.
   * @param onChange Called after every change.
   */
  constructor(request, onChange = () => {}) {
    this.request = request;
    this.onChange = onChange;
    this.streamId = null;
    this.cursor = new Cursor();
    this.phase = "sent"; // sent, queued, prefill, streaming, done, failed
    this.detail = ""; // the place in the queue, the reason of the end
    this.resuming = false; // frames are dropped until RESUMED
    this.away = false; // its connection is cut
    this.held = false; // the reader takes nothing: what arrives waits here
    this.waiting = []; // applied frames that were not taken
    this.taken = 0; // the last frame taken: what is acknowledged
    this.text = "";
    this.length = 0; // of the text with what waits
    this.marks = []; // {at, kind, …}: where in the text the wire was cut ("cut"), and live text begins ("live")
    this.replayTo = 0; // the last frame that the journal brings back
    this.tokens = 0;
    this.duplicates = 0;
    this.gapsMended = 0;
    this.flow = { action: "run", window: 32 };
    this.final = null;
    this.failure = null;
    this.verified = null; // whether the digest of the text is the server's; null: not looked at
    this.submittedAt = null;
    this.firstAt = null;
    this.lastAt = null;
    this.gaps = []; // milliseconds between tokens, as they came
  }

  get ended() {
    return ENDED.has(this.phase);
  }

  /** Frames that the server counts as unacknowledged here: received, not taken. */
  get unread() {
    return this.cursor.applied - this.taken;
  }

  get firstTokenMs() {
    return this.firstAt === null ? null : this.firstAt - this.submittedAt;
  }

  /** Tokens a second after the first; null before there are two. */
  get tokensPerSecond() {
    const spent = this.lastAt - this.firstAt;
    return this.firstAt === null || spent <= 0 ? null : ((this.tokens - 1) * 1000) / spent;
  }

  accepted({ stream_id: streamId }) {
    this.streamId = Number(streamId);
    this.onChange(this);
  }

  refused({ code, message }) {
    this.#fail({ code, message });
  }

  status({ phase, position, tokens_done: done, tokens_total: total }) {
    if (this.firstAt !== null) return;
    this.phase = phase === "queued" ? "queued" : "prefill";
    this.detail = phase === "queued" ? `${(position ?? 0) + 1}. in line` : total ? `${done ?? 0} of ${total}` : "";
    this.onChange(this);
  }

  flowed({ action, window }) {
    this.flow = { action, window };
    this.onChange(this);
  }

  /** The connection is gone; the stream waits at the server. */
  cut() {
    this.away = true;
    this.resuming = false;
    this.onChange(this);
  }

  /** What RESUME says; frames are dropped from here to RESUMED. */
  resume() {
    this.resuming = true;
    return {
      type: "resume",
      stream_id: this.streamId,
      last_processed_id: this.cursor.applied,
      ...(this.taken < this.cursor.applied ? { taken_id: this.taken } : {}),
    };
  }

  resumed({ epoch, next_id: nextId, last_id: lastId }, awayMs) {
    this.resuming = false;
    if (this.away) {
      this.replayTo = Number(lastId);
      this.marks.push({ at: this.length, kind: "cut", awayMs, nextId: Number(nextId) });
    }
    this.away = false;
    this.cursor.epoch = Math.max(this.cursor.epoch, Number(epoch));
    this.flow = { action: "run", window: this.flow.window };
    this.onChange(this);
  }

  rejected({ code }) {
    this.#fail({ code, message: "the server can't go on with this answer" });
  }

  /** The session is gone, and with it whatever of this answer was still to come. */
  lost() {
    this.#fail({ code: "session_lost", message: "the server no longer knows this session" });
  }

  /** Applies a frame if it is the next one; returns the cursor's verdict, or "crossed" while resuming. */
  receive(frame, now) {
    if (this.resuming) return "crossed";
    const verdict = this.cursor.judge(frame);
    if (verdict === "duplicate") this.duplicates += 1;
    if (verdict !== "apply") return verdict;
    this.cursor.advance(frame, utf8Length(frame.text));
    if (this.replayTo > 0 && frame.id > this.replayTo) {
      this.replayTo = 0;
      this.marks.push({ at: this.length, kind: "live" });
    }
    this.length += frame.text.length;
    this.#time(frame, now);
    this.waiting.push(frame);
    if (!this.held) this.take();
    return verdict;
  }

  /** Takes everything that waits: only now it counts as read. */
  take() {
    for (const frame of this.waiting) {
      this.text += frame.text;
      this.taken = frame.id;
      if (frame.final) this.#finish(frame.final);
      if (frame.failure) this.#fail(frame.failure);
    }
    this.waiting = [];
    this.onChange(this);
  }

  hold(on) {
    this.held = on;
    if (!on) this.take();
    this.onChange(this);
  }

  // A frame of several tokens: the first of them after the gap, the others at once.
  #time(frame, now) {
    if (frame.kind !== FRAME.DELTA || frame.tokens === 0) return;
    this.phase = "streaming";
    this.detail = "";
    const gaps = new Array(frame.tokens).fill(0);
    if (this.firstAt === null) {
      this.firstAt = now;
      gaps.shift();
    } else {
      gaps[0] = now - this.lastAt;
    }
    this.gaps.push(...gaps);
    this.tokens += frame.tokens;
    this.lastAt = now;
  }

  #finish(final) {
    this.final = final;
    this.phase = "done";
    this.detail = final.finish_reason;
    this.away = false;
    digestOf(this.text).then((digest) => {
      this.verified = digest === null ? null : digest === final.digest;
      this.onChange(this);
    });
  }

  #fail(failure) {
    this.failure = failure;
    this.phase = "failed";
    this.detail = failure.code;
    this.away = false;
    this.waiting = [];
    this.onChange(this);
  }
}
