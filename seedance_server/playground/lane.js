// One column of answers: its turns, its figures, its window. Text is appended, never parsed as HTML; where the
// wire was cut a seam stays in the text, and what the journal brought back shows for a moment.

import { formatMs } from "./statistics.js";

const NAMES = ["A", "B", "C", "D"];
const REASONS = { stop: "done", length: "at its longest", cancelled: "stopped" };

export class Lane {
  /** @param on {hold(lane), stop(lane)} */
  constructor(index, template, on) {
    this.index = index;
    this.name = `Stream ${NAMES[index]}`;
    this.answer = null;
    this.history = []; // turns for the next request
    this.element = template.content.firstElementChild.cloneNode(true);
    this.element.dataset.lane = index;
    const find = (selector) => this.element.querySelector(selector);
    find("h2").textContent = this.name;
    this.parts = Object.fromEntries(
      ["chip", "turns", "hold", "stop", "first", "tokens", "rate", "window-words", "flow"].map((name) => [name, find(`.${name}`)]),
    );
    this.meter = find("meter");
    this.parts.turns.setAttribute("aria-label", `${this.name}, text`);
    this.parts.hold.addEventListener("click", () => on.hold(this));
    this.parts.stop.addEventListener("click", () => on.stop(this));
  }

  get isRunning() {
    return this.answer !== null && !this.answer.ended;
  }

  /** Shows what was asked, and makes room for the answer. */
  begin(answer, { asked, isContinuation }) {
    this.answer = answer;
    this.shown = 0;
    this.marked = 0;
    const { turns } = this.parts;
    const turn = document.createElement("div");
    turn.className = isContinuation ? "turn continuation" : "turn";
    const question = document.createElement(isContinuation ? "span" : "p");
    question.className = "asked";
    question.textContent = asked;
    this.output = document.createElement(isContinuation ? "span" : "p");
    this.output.className = "answer";
    this.tail = this.output;
    turn.append(question, this.output);
    turns.append(turn);
    turns.scrollTop = turns.scrollHeight;
    this.draw();
  }

  /** Appends the text that has come since, with its marks where they belong. */
  flush() {
    const { answer, parts: { turns } } = this;
    const atEnd = turns.scrollHeight - turns.scrollTop - turns.clientHeight < 40;
    for (const mark of answer.marks.slice(this.marked)) {
      if (mark.at > answer.text.length) break;
      this.#append(answer.text.slice(this.shown, mark.at));
      this.#mark(mark);
      this.marked += 1;
    }
    this.#append(answer.text.slice(this.shown));
    if (atEnd) turns.scrollTop = turns.scrollHeight;
  }

  #append(text) {
    if (text === "") return;
    if (this.tail.lastChild?.nodeType === Node.TEXT_NODE) this.tail.lastChild.appendData(text);
    else this.tail.append(text);
    this.shown += text.length;
  }

  /** A seam where the wire was cut; then what the journal kept, until the text is live again. */
  #mark({ kind, awayMs, nextId }) {
    this.tail = document.createElement("span");
    if (kind === "cut") {
      const seam = document.createElement("span");
      seam.className = "seam";
      seam.title = `cut here; back after ${formatMs(awayMs)}, at frame ${nextId}`;
      seam.setAttribute("role", "img");
      seam.setAttribute("aria-label", "the wire was cut here");
      this.tail.className = "replayed";
      this.output.append(seam);
    }
    this.output.append(this.tail);
  }

  /** Brings the page up to what the answer is now. */
  draw() {
    const { answer, parts } = this;
    if (answer === null) return;
    this.flush();
    const [kind, words] = this.#state();
    parts.chip.dataset.kind = kind;
    parts.chip.textContent = words;
    parts.chip.title = answer.verified ? "its SHA-256 is the one that the server states" : "";
    this.output.classList.toggle("live", !answer.ended);
    parts.first.textContent = formatMs(answer.firstTokenMs);
    parts.tokens.textContent = answer.tokens;
    parts.rate.textContent = answer.tokensPerSecond?.toFixed(1) ?? "–";
    const { action, window } = answer.flow;
    const used = Math.min(answer.unread, window);
    Object.assign(this.meter, { max: window, low: window / 2, high: (3 * window) / 4, value: used });
    parts["window-words"].textContent = `window ${used}/${window}`;
    parts.flow.textContent = action.toUpperCase();
    parts.flow.dataset.action = action;
    parts.hold.hidden = parts.stop.hidden = answer.ended;
    parts.hold.setAttribute("aria-pressed", answer.held);
    parts.hold.lastElementChild.textContent = answer.held ? "Go on" : "Hold";
    if (answer.failure) this.#complain(answer.failure);
  }

  #state() {
    const { answer } = this;
    if (answer.failure) return ["failed", answer.failure.code.replaceAll("_", " ")];
    if (answer.phase === "done") {
      const mark = answer.verified === true ? " ✓" : answer.verified === false ? ": TEXT DIFFERS" : "";
      return [answer.verified === false ? "failed" : "done", `${REASONS[answer.detail] ?? answer.detail}${mark}`];
    }
    if (answer.away) return ["away", "cut off"];
    if (answer.held) return ["held", "held"];
    const words = { sent: "asked", queued: answer.detail, prefill: `reading ${answer.detail}` };
    return [answer.phase, words[answer.phase] ?? "streaming"];
  }

  #complain({ message }) {
    if (this.output.nextElementSibling?.className === "problem") return;
    const problem = document.createElement("p");
    problem.className = "problem";
    problem.textContent = message;
    this.output.after(problem);
  }
}
