// Three pictures: gaps between tokens, where the time to the first token went, and the wire of the last seconds.
// Colours come from the style sheet; nothing here knows sessions or answers.

import { formatMs, histogram } from "./statistics.js";

const SVG = "http://www.w3.org/2000/svg";
const STAGES = {
  queue: "queue",
  preprocess: "tokenise",
  prefill: "prefill",
  first_decode: "first decode",
  cache_sync: "cache",
  egress: "send",
  way: "network, browser",
};

function shape(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  parent?.append(element);
  return element;
}

/** Bars with their counts, and a line of the share at or below. */
export class Histogram {
  static #WIDTH = 340;
  static #HEIGHT = 132;
  static #FOOT = 20;
  static #HEAD = 16;

  constructor(svg) {
    this.svg = svg;
    svg.setAttribute("viewBox", `0 0 ${Histogram.#WIDTH} ${Histogram.#HEIGHT}`);
    const step = Histogram.#WIDTH / histogram([]).length;
    this.step = step;
    this.bars = histogram([]).map(({ label }, index) => {
      const x = index * step;
      const foot = Histogram.#HEIGHT - 5;
      shape("text", { x: x + step / 2, y: foot, class: "tick" }, svg).textContent = label;
      const bar = shape("rect", { x: x + 5, width: step - 10, rx: 3, class: "bar" }, svg);
      return { bar, count: shape("text", { x: x + step / 2, class: "count" }, svg) };
    });
    this.line = shape("polyline", { class: "share" }, svg);
    this.draw([]);
  }

  draw(gaps) {
    const buckets = histogram(gaps);
    const most = Math.max(1, ...buckets.map(({ count }) => count));
    const floor = Histogram.#HEIGHT - Histogram.#FOOT;
    const room = floor - Histogram.#HEAD;
    const points = buckets.map(({ count, share }, index) => {
      const height = Math.max(count > 0 ? 2 : 0, (room * count) / most);
      const { bar, count: text } = this.bars[index];
      bar.setAttribute("y", floor - height);
      bar.setAttribute("height", height);
      text.setAttribute("y", floor - height - 4);
      text.textContent = count > 0 ? count : "";
      return `${(index + 0.5) * this.step},${floor - room * share}`;
    });
    this.line.setAttribute("points", gaps.length > 0 ? points.join(" ") : "");
    const words = buckets.filter(({ count }) => count > 0).map(({ label, count }) => `${count} ${label} ms`);
    this.svg.setAttribute("aria-label", `Gaps between tokens: ${words.join(", ") || "none yet"}`);
  }
}

/** One bar a lane, cut into the server's stages. */
export class StageBars {
  constructor(list) {
    this.list = list;
  }

  /** @param rows {name, stages, totalMs} each; stages null while the answer runs. */
  draw(rows) {
    const longest = Math.max(1, ...rows.map(({ stages }) => (stages ?? []).reduce((sum, { ms }) => sum + ms, 0)));
    this.list.replaceChildren(...rows.filter(({ stages }) => stages !== null).map((row) => this.#row(row, longest)));
  }

  #row({ name, stages }, longest) {
    const item = document.createElement("li");
    const total = stages.reduce((sum, { ms }) => sum + ms, 0);
    const head = document.createElement("p");
    head.textContent = `${name}: ${formatMs(total)} to the first token`;
    const bar = shape("svg", { viewBox: "0 0 300 14", preserveAspectRatio: "none", "aria-hidden": "true" });
    const legend = document.createElement("p");
    legend.className = "legend";
    let x = 0;
    for (const stage of stages) {
      const width = (300 * stage.ms) / longest;
      shape("rect", { x, width, y: 0, height: 14, class: `stage ${stage.name}` }, bar);
      x += width;
      if (stage.ms < 0.05) continue;
      const key = document.createElement("span");
      key.className = `key ${stage.name}`;
      key.textContent = `${STAGES[stage.name]} ${formatMs(stage.ms)}`;
      legend.append(key);
    }
    item.append(head, bar, legend);
    return item;
  }
}

/** The last seconds of the wire: a tick for each frame, a row for each lane, a hatched band for each cut. */
export class WireStrip {
  static SPAN_MS = 8_000;

  constructor(canvas) {
    this.canvas = canvas;
    this.ticks = []; // {row, at, kind}
    this.cuts = []; // {from, to}
    this.rows = 1;
  }

  tick(row, at, kind) {
    this.ticks.push({ row, at, kind });
  }

  cut(at) {
    this.cuts.push({ from: at, to: null });
  }

  mend(at) {
    for (const cut of this.cuts) cut.to ??= at;
  }

  /** Whether there is anything to see, now or soon. */
  isLive(now) {
    const last = this.ticks.at(-1)?.at ?? -Infinity;
    return now - last < WireStrip.SPAN_MS || this.cuts.some(({ to }) => to === null || now - to < WireStrip.SPAN_MS);
  }

  draw(now) {
    const since = now - WireStrip.SPAN_MS;
    this.ticks = this.ticks.filter(({ at }) => at > since);
    this.cuts = this.cuts.filter(({ to }) => to === null || to > since);
    const { canvas } = this;
    const { width, height } = canvas.getBoundingClientRect();
    const scale = globalThis.devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * scale)) canvas.width = Math.round(width * scale);
    if (canvas.height !== Math.round(height * scale)) canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.clearRect(0, 0, width, height);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const place = (at) => width * ((at - since) / WireStrip.SPAN_MS);
    const rowHeight = height / this.rows;
    pen.lineWidth = 1;
    for (let row = 0; row < this.rows; row += 1) {
      pen.fillStyle = colour("line");
      pen.fillRect(0, Math.round((row + 0.5) * rowHeight), width, 1);
    }
    for (const { from, to } of this.cuts) {
      const [left, right] = [Math.max(0, place(from)), place(to ?? now)];
      pen.fillStyle = colour("cut-soft");
      pen.fillRect(left, 0, right - left, height);
      pen.fillStyle = colour("cut");
      pen.fillRect(left, 0, 2, height);
      pen.fillStyle = colour("good");
      if (to !== null) pen.fillRect(right - 2, 0, 2, height);
    }
    for (const { row, at, kind } of this.ticks) {
      const long = kind === "live" ? 0.26 : 0.4;
      pen.fillStyle = kind === "live" ? colour(`lane-${row}`) : colour(kind === "replayed" ? "good" : "cut");
      pen.fillRect(Math.round(place(at)), (row + 0.5 - long) * rowHeight, 1, 2 * long * rowHeight);
    }
  }
}
