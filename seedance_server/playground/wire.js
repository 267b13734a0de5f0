// What seedance.v1.json asks of a receiver: the apply rule, and messages read from text. Pure: no socket, clock
// or page. Numbers beyond 2^53 come as strings of digits; those that the page counts with never get that far.

export const SUBPROTOCOL = "seedance.v1.json";
export const TICKET_PREFIX = "seedance.ticket.";

export const FRAME = Object.freeze({ DELTA: 1, FLUSH: 2, ERROR: 3 });

const encoder = new TextEncoder();

/** UTF-8 bytes of a text: what offsets count in. */
export function utf8Length(text) {
  return encoder.encode(text).length;
}

/** How far a stream has been applied: drops the duplicate, sees the gap, never moves back. */
export class Cursor {
  constructor(epoch = 0, applied = 0, appliedBytes = 0) {
    this.epoch = epoch;
    this.applied = applied;
    this.appliedBytes = appliedBytes;
  }

  /** "apply", "duplicate", "stale" or "gap"; changes nothing. */
  judge({ id, epoch, offset }) {
    if (epoch < this.epoch) return "stale";
    if (id <= this.applied) return "duplicate";
    return id === this.applied + 1 && offset === this.appliedBytes ? "apply" : "gap";
  }

  /** Moves behind a frame that `judge` said to apply. */
  advance({ id, epoch }, textBytes) {
    this.epoch = epoch;
    this.applied = id;
    this.appliedBytes += textBytes;
  }
}

/** The messages of one WebSocket message, in order; frames have `type` "frame" and long names. */
export function readMessages(text) {
  const value = JSON.parse(text);
  const values = value.type === "frames" ? value.frames : [value];
  return values.map((each) => (each.type === undefined && each.t !== undefined ? readFrame(each) : each));
}

function readFrame({ s, e, id, t, o, d, n = 1, final, code, retryable }) {
  return {
    type: "frame",
    kind: t,
    streamId: Number(s),
    epoch: Number(e),
    id: Number(id),
    offset: o,
    text: t === FRAME.DELTA ? d : "",
    tokens: t === FRAME.DELTA ? n : 0,
    final,
    failure: t === FRAME.ERROR ? { code, message: d, retryable } : undefined,
  };
}

/** A WebSocket close code to what follows: "resume", "move", "wait" or "stop"; unknown ones count as a cut. */
export function reactionTo(code) {
  if ([1002, 1003, 1007, 1008, 1009, 4400, 4401, 4403, 4409, 4410].includes(code)) return "stop";
  if ([1001, 4001].includes(code)) return "move";
  return [1013, 4429].includes(code) ? "wait" : "resume";
}

/** Milliseconds to wait before attempt number `attempt` (from 0): full jitter under a growing cap. */
export function fullJitter(attempt, random = Math.random) {
  return random() * Math.min(10_000, 250 * 2 ** Math.min(attempt, 16));
}

/** SHA-256 of a text's UTF-8 as hexadecimal digits; null where the browser has no digests (plain HTTP). */
export async function digestOf(text) {
  if (!globalThis.crypto?.subtle) return null;
  const digest = await crypto.subtle.digest("SHA-256", encoder.encode(text));
  return Array.from(new Uint8Array(digest), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** A fresh idempotency key: 16 random bytes as hexadecimal digits. */
export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
