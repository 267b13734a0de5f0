// A session with the server that outlives its connections: what was asked and not answered is sent again,
// every stream that has not ended is resumed, each piece comes out once. PROTOCOL.md is the reference.
//
// Emits "state" (detail: {phase, waitMs, reason}), "welcome", "note" (detail: {kind, text, streamId}: what
// crossed the wire, in words) and "frame" (detail: {answer, at, verdict}), "resumed" (detail: {awayMs}).

import { FRAME, SUBPROTOCOL, TICKET_PREFIX, fullJitter, newKey, reactionTo, readMessages, utf8Length } from "./wire.js";

const ACK_EVERY_MS = 40; // a server takes 50 a second
const SILENCE_MS = 20_000; // an answer is due and nothing comes: the connection may be dead without a word
const MOVE_MS = 500; // a server that leaves has said so; only a crowd must be spread
const GAPS_ALLOWED = 3;
const NUMBER_BYTES = 40; // what a request's number adds to it

/** What an HTTP answer says is wrong: our own servers say it in an object, what is in between in its own way. */
function reasonOf(body) {
  try {
    return JSON.parse(body).error.message;
  } catch {
    return body.trim().slice(0, 200);
  }
}

export class Session extends EventTarget {
  #socket = null;
  #identity = null; // id and token of WELCOME
  #lastSequence = 0;
  #pending = []; // SUBMITs without an answer, CANCELs of running streams: sent again on each connection
  #answers = new Map(); // by stream
  #unsent = new Map(); // acks by stream
  #ackTimer = 0;
  #ackedAt = 0;
  #retryTimer = 0;
  #attempt = 0;
  #gaps = 0;
  #heardAt = 0;
  #cutAt = null;
  #leaving = false; // GOAWAY was said: what is asked now waits for the next connection
  #key = "";

  /** @param urls {socket, tickets}: where the WebSocket and its tickets are. */
  constructor(urls, { random = Math.random } = {}) {
    super();
    this.urls = urls;
    this.random = random;
    this.phase = "idle"; // idle, connecting, open, waiting, key, stopped
    this.welcome = null;
    setInterval(() => this.#listenForSilence(), 1_000);
    addEventListener("online", () => this.phase === "waiting" && this.connect());
  }

  /** Streams that have not ended, in the order of their numbers. */
  get running() {
    return [...this.#answers.values()].filter((answer) => !answer.ended);
  }

  useKey(key) {
    this.#key = key;
    this.connect();
  }

  /** Asks for an answer; it goes out now, or with the next connection. */
  submit(answer) {
    answer.submittedAt = performance.now();
    const message = { type: "submit", idempotency_key: newKey(), ...answer.request };
    const room = this.welcome?.limits.max_message_bytes ?? Infinity;
    if (utf8Length(JSON.stringify(message)) + NUMBER_BYTES > room) {
      return answer.refused({ code: "too_long", message: `This server reads requests of up to ${room} bytes.` });
    }
    this.#queue({ message, answer });
    if (this.phase === "idle" || this.phase === "stopped") this.connect();
  }

  /** Ends an answer early; its last frame says that it was cancelled. */
  cancel(answer) {
    if (answer.ended || answer.isCancelled) return;
    answer.isCancelled = true;
    if (answer.streamId !== null) this.#queueCancel(answer);
  }

  /** The reader takes what waits here, or stops taking: then the window fills, and the model pauses. */
  hold(answer, on) {
    answer.hold(on);
    if (!on) this.#acknowledge(answer);
  }

  /** Drops the connection without a goodbye, as a tunnel would, and stays away for a moment. */
  cut(awayMs = 1_500) {
    if (this.#socket === null) return;
    this.#note("cut", "you cut the wire");
    this.#leave(3001);
    this.#comeBackIn(awayMs + fullJitter(0, this.random), "the wire is cut");
  }

  /** The page is closed: nobody will come back for what still runs. */
  end() {
    for (const answer of this.running) this.cancel(answer);
    this.#send({ type: "bye" });
  }

  async connect() {
    clearTimeout(this.#retryTimer);
    if (this.phase === "connecting" || this.phase === "open") return;
    this.#setPhase("connecting");
    const ticket = await this.#fetchTicket();
    if (ticket === null) return;
    const socket = new WebSocket(this.urls.socket, [SUBPROTOCOL, TICKET_PREFIX + ticket]);
    this.#socket = socket;
    this.#leaving = false;
    this.#heardAt = performance.now();
    socket.onopen = () => {
      const back = this.#identity ?? {};
      this.#send({ type: "hello", minor_version: 0, sdk_name: "playground", sdk_version: "1", ...back });
    };
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code, reason }) => this.#closed(code, reason);
  }

  // ---- the way in

  /** A ticket, or null after it has been arranged what happens instead. */
  async #fetchTicket() {
    const headers = this.#key ? { Authorization: `Bearer ${this.#key}` } : {};
    let answer;
    try {
      const signal = AbortSignal.timeout(10_000);
      answer = await fetch(this.urls.tickets, { method: "POST", headers, cache: "no-store", signal });
      if (answer.ok) return (await answer.json()).ticket;
    } catch {
      this.#comeBackIn(this.#backoff(), "no connection to the server");
      return null;
    }
    const reason = reasonOf(await answer.text());
    if (answer.status === 401) {
      this.#setPhase("key", { reason: this.#key ? "This key opens nothing." : "" });
    } else if (answer.status === 429 || answer.status >= 500) {
      const seconds = Number(answer.headers.get("Retry-After") ?? 1);
      this.#comeBackIn(seconds * 1000 + this.#backoff(), reason);
    } else {
      this.#setPhase("stopped", { reason: reason || `HTTP ${answer.status}` });
    }
    return null;
  }

  #backoff() {
    return fullJitter(this.#attempt++, this.random);
  }

  #comeBackIn(waitMs, reason) {
    this.#setPhase("waiting", { waitMs, reason });
    this.#retryTimer = setTimeout(() => this.connect(), waitMs);
  }

  // ---- the end of a connection

  #closed(code, reason) {
    this.#leave(code);
    const reaction = reactionTo(code);
    const words = reason || `closed with ${code}`;
    this.#note("cut", `connection lost: ${words}`);
    if (code === 4401) return this.#setPhase("key", { reason: words });
    if (code === 4410) this.#forget();
    if (reaction === "stop") return this.#setPhase("stopped", { reason: words });
    if (reaction === "move") return this.#comeBackIn(this.random() * MOVE_MS, words);
    this.#comeBackIn((reaction === "wait" ? 1_000 : 0) + this.#backoff(), words);
  }

  /** Lets go of the socket: from here nothing that it still brings is looked at. */
  #leave(code) {
    const socket = this.#socket;
    this.#socket = null;
    socket.onopen = socket.onmessage = socket.onclose = null;
    if (socket.readyState <= WebSocket.OPEN) socket.close(code >= 3000 ? code : 3000);
    this.#cutAt = performance.now();
    this.#unsent.clear();
    for (const answer of this.running) answer.cut();
  }

  #forget() {
    for (const answer of this.running) answer.lost();
    this.#answers.clear();
    this.#identity = null;
    this.#pending = this.#pending.filter(({ message }) => message.type === "submit");
  }

  #listenForSilence() {
    const due = this.#pending.length > 0 || this.running.some((answer) => !answer.held);
    if (this.#socket === null || (this.phase === "open" && !due)) {
      this.#heardAt = performance.now();
    } else if (performance.now() - this.#heardAt > SILENCE_MS) {
      this.#note("cut", "nothing heard for 20 seconds");
      this.#leave(3002);
      this.#comeBackIn(this.#backoff(), "the connection went silent");
    }
  }

  // ---- what the server says

  #receive(data) {
    const now = performance.now();
    this.#heardAt = now;
    for (const message of readMessages(data)) {
      const answer = this.#answers.get(Number(message.streamId ?? message.stream_id));
      if (message.type === "frame") this.#frame(answer, message, now);
      else if (message.type === "welcome") this.#welcomed(message);
      else if (message.type === "accepted" || message.type === "refused") this.#answered(message);
      else if (message.type === "goaway") this.#goAway(message);
      else if (answer !== undefined) this.#about(answer, message);
    }
  }

  #goAway({ reason }) {
    this.#leaving = true;
    this.#note("info", `GOAWAY: ${reason}`);
  }

  #about(answer, message) {
    if (message.type === "status") answer.status(message);
    else if (message.type === "flow") this.#flowed(answer, message);
    else if (message.type === "resumed") this.#resumed(answer, message);
    else if (message.type === "resume_rejected") {
      answer.rejected(message);
      this.#settle(answer);
      this.#note("fail", `RESUME_REJECTED: ${message.code}`, answer.streamId);
    }
  }

  #welcomed(welcome) {
    const came = this.#identity !== null && welcome.session_present;
    if (this.#identity !== null && !came) {
      this.#note("fail", "the session is gone: another one begins");
      this.#forget();
    }
    this.welcome = welcome;
    this.#identity = welcome.resume_token
      ? { session_id: welcome.session_id, resume_token: welcome.resume_token }
      : null;
    const words = came ? `back in the session, epoch ${welcome.epoch}` : `a session begins, epoch ${welcome.epoch}`;
    this.#note("good", `WELCOME: ${words}`);
    this.#setPhase("open");
    this.dispatchEvent(new Event("welcome"));
    this.#sendAgain(Number(welcome.last_sequence_id));
    for (const answer of this.running) this.#resume(answer);
  }

  /** First what the server has, under its old numbers, then the rest, numbered on from there. */
  #sendAgain(last) {
    const held = this.#pending.filter(({ message }) => message.sequence_id <= last);
    const rest = this.#pending.filter(({ message }) => !(message.sequence_id <= last));
    this.#lastSequence = last;
    for (const { message } of rest) message.sequence_id = ++this.#lastSequence;
    for (const { message } of [...held, ...rest]) this.#send(message);
  }

  #answered(message) {
    const index = this.#pending.findIndex((one) => one.message.sequence_id === Number(message.sequence_id));
    if (index < 0) return;
    const [entry] = this.#pending.splice(index, 1);
    const { answer } = entry;
    if (message.type === "refused" && message.code === "draining") {
      delete entry.message.sequence_id;
      this.#pending.push(entry); // the next server takes it
      return;
    }
    if (message.type === "refused") {
      answer.refused(message);
      this.#note("fail", `REFUSED: ${message.message}`);
      return;
    }
    this.#answers.set(Number(message.stream_id), answer);
    answer.accepted(message);
    const words = message.replayed ? ": it was there already" : "";
    this.#note("info", `ACCEPTED, ${message.durability}${words}`, answer.streamId);
    if (message.replayed) this.#resume(answer);
    if (answer.isCancelled) this.#queueCancel(answer);
  }

  #frame(answer, frame, at) {
    if (answer === undefined) return;
    const verdict = answer.receive(frame, at);
    this.dispatchEvent(new CustomEvent("frame", { detail: { answer, at, verdict } }));
    if (verdict === "gap") this.#mend(answer);
    if (verdict !== "apply") return;
    this.#gaps = 0;
    this.#attempt = 0; // the session made progress: the next wait begins small again
    this.#acknowledge(answer);
    if (frame.final || frame.kind === FRAME.ERROR) this.#settle(answer);
  }

  #mend(answer) {
    this.#gaps += 1;
    if (this.#gaps > GAPS_ALLOWED) {
      this.#leave(4400);
      this.#setPhase("stopped", { reason: "the server's frames don't fit together" });
      return;
    }
    answer.gapsMended += 1;
    this.#resume(answer);
  }

  #resume(answer) {
    const message = answer.resume();
    this.#note("info", `RESUME after frame ${message.last_processed_id}`, answer.streamId);
    this.#send(message);
  }

  #resumed(answer, message) {
    const awayMs = answer.away ? performance.now() - this.#cutAt : 0;
    answer.resumed(message, awayMs);
    const written = Math.max(0, message.last_id - message.next_id + 1);
    this.#note("good", `RESUMED at frame ${message.next_id}: ${written} were written meanwhile`, answer.streamId);
    if (awayMs > 0) this.dispatchEvent(new CustomEvent("resumed", { detail: { awayMs } }));
  }

  #flowed(answer, message) {
    answer.flowed(message);
    this.#note("flow", `FLOW: ${message.action.toUpperCase()}, window ${message.window}`, answer.streamId);
  }

  /** It has ended: its CANCEL need not be sent again. */
  #settle(answer) {
    this.#pending = this.#pending.filter((one) => one.answer !== answer);
  }

  // ---- what we say

  #queue(entry) {
    this.#pending.push(entry);
    if (this.phase !== "open" || (this.#leaving && entry.message.type === "submit")) return;
    entry.message.sequence_id = ++this.#lastSequence;
    this.#send(entry.message);
  }

  #queueCancel(answer) {
    this.#queue({ message: { type: "cancel", stream_id: answer.streamId }, answer });
    this.#note("info", "CANCEL", answer.streamId);
  }

  #acknowledge(answer) {
    this.#unsent.set(answer.streamId, answer.taken);
    const waitMs = this.#ackedAt + ACK_EVERY_MS - performance.now();
    // At once where it may be: in a tab that nobody sees, timers come late, and the model would wait for them.
    if (waitMs <= 0) this.#sendAcks();
    else this.#ackTimer ||= setTimeout(() => this.#sendAcks(), waitMs);
  }

  #sendAcks() {
    clearTimeout(this.#ackTimer);
    this.#ackTimer = 0;
    this.#ackedAt = performance.now();
    const processed = [...this.#unsent].filter(([, id]) => id > 0).map(([s, id]) => ({ s, id }));
    this.#unsent.clear();
    if (this.phase === "open" && processed.length > 0) this.#send({ type: "ack", processed });
  }

  #send(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  #setPhase(phase, detail = {}) {
    this.phase = phase;
    this.dispatchEvent(new CustomEvent("state", { detail: { phase, ...detail } }));
  }

  #note(kind, text, streamId) {
    this.dispatchEvent(new CustomEvent("note", { detail: { kind, text, streamId } }));
  }
}
