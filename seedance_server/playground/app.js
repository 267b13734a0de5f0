// The page: puts session, lanes, instruments and dialogs together, and draws once a frame at most.

import { Answer } from "./answer.js";
import { Histogram, StageBars, WireStrip } from "./charts.js";
import { Lane } from "./lane.js";
import { Session } from "./session.js";
import { Settings, rememberKey, rememberedKey } from "./settings.js";
import { formatMs, percentile, stagesOf } from "./statistics.js";

const LOG_LINES = 200;
const SUGGESTIONS = {
  chat: ["Tell me a story about a lighthouse.", "Explain how a sailing boat can go against the wind.", "List ten uses of a brick."],
  continue: ["Once upon a time there was a small boat that", "The old lighthouse stood on a rock by the sea.", "It was a cold winter morning and"],
};
const PLACEHOLDERS = { chat: "Ask something", continue: "Begin a text, the model goes on" };

const $ = (id) => document.getElementById(id);
const settings = new Settings($("settings-form"));
const histogram = new Histogram($("histogram"));
const stageBars = new StageBars($("stages"));
const strip = new WireStrip($("strip"));
const socketUrl = new URL("v1/chat", document.baseURI);
socketUrl.protocol = socketUrl.protocol.replace("http", "ws");
const session = new Session({ socket: socketUrl.href, tickets: new URL("v1/tickets", document.baseURI).href });

let lanes = [];
const tally = { cuts: 0, resumes: 0, dropped: 0, lastAway: 0 };

// ---- drawing

let isDue = false;
function drawSoon() {
  if (isDue) return;
  isDue = true;
  const run = () => {
    isDue = false;
    draw();
  };
  if (document.hidden) setTimeout(run, 250);
  else requestAnimationFrame(run);
}

function draw() {
  const now = performance.now();
  for (const lane of lanes) lane.draw();
  const answers = lanes.map((lane) => lane.answer).filter((answer) => answer !== null);
  const gaps = answers.flatMap((answer) => answer.gaps);
  histogram.draw(gaps);
  const firsts = answers.map((answer) => answer.firstTokenMs).filter((ms) => ms !== null);
  $("figure-first").textContent = formatMs(percentile(firsts, 0.5));
  $("figure-p50").textContent = formatMs(percentile(gaps, 0.5));
  $("figure-p99").textContent = formatMs(percentile(gaps, 0.99));
  const rates = answers.map((answer) => answer.tokensPerSecond).filter((rate) => rate !== null);
  $("figure-rate").textContent = rates.length > 0 ? rates.reduce((sum, rate) => sum + rate, 0).toFixed(1) : "–";
  const rows = lanes.filter((lane) => lane.answer !== null).map((lane) => ({ name: lane.name, stages: stagesOf(lane.answer) }));
  stageBars.draw(rows);
  $("stages-empty").hidden = rows.some(({ stages }) => stages !== null);
  $("tally").textContent = tallyWords(answers);
  $("stop-all").hidden = !lanes.some((lane) => lane.isRunning);
  strip.rows = Math.max(1, lanes.length);
  strip.draw(now);
  if (strip.isLive(now)) setTimeout(drawSoon, 40);
}

function tallyWords(answers) {
  if (tally.cuts === 0) return "No cut yet.";
  const ended = answers.filter((answer) => answer.verified !== null);
  const proof = ended.length === 0 ? "" : ended.every((answer) => answer.verified) ? " Digests agree." : " A DIGEST DIFFERS.";
  const times = tally.cuts === 1 ? "Cut once" : `Cut ${tally.cuts} times`;
  const dropped = tally.dropped > 0 ? ` (${tally.dropped} repeats dropped)` : "";
  const back = tally.resumes > 0 ? `, back after ${formatMs(tally.lastAway)}: nothing lost, nothing twice${dropped}.` : ".";
  return `${times}${back}${proof}`;
}

function announce(words) {
  $("announcer").textContent = words;
}

function note({ kind, text, streamId }) {
  const line = document.createElement("li");
  line.dataset.kind = kind;
  const time = document.createElement("time");
  time.textContent = `${(performance.now() / 1000).toFixed(2)}`;
  const lane = lanes.find((one) => one.answer !== null && one.answer.streamId === streamId && streamId !== undefined);
  line.append(time, lane ? `${lane.name.at(-1)} ` : "", text);
  const log = $("log");
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  log.append(line);
  while (log.childElementCount > LOG_LINES) log.firstElementChild.remove();
  if (atEnd) log.scrollTop = log.scrollHeight;
}

// ---- the session

session.addEventListener("note", ({ detail }) => note(detail));
session.addEventListener("welcome", () => {
  $("model").textContent = session.welcome.model;
  strip.mend(performance.now());
});
session.addEventListener("frame", ({ detail: { answer, at, verdict } }) => {
  const lane = lanes.find((one) => one.answer === answer);
  if (verdict !== "apply") tally.dropped += 1;
  if (lane === undefined) return;
  strip.tick(lane.index, at, verdict !== "apply" ? "dropped" : answer.replayTo > 0 ? "replayed" : "live");
  drawSoon();
});
session.addEventListener("resumed", ({ detail: { awayMs } }) => {
  tally.resumes += 1;
  tally.lastAway = awayMs;
  announce(`Connected again after ${formatMs(awayMs)}. The answer goes on, nothing is lost.`);
  drawSoon();
});
session.addEventListener("state", ({ detail: { phase, waitMs, reason } }) => {
  const words = {
    connecting: "connecting",
    open: `open, epoch ${session.welcome?.epoch}`,
    waiting: `${reason}; again in ${formatMs(waitMs)}`,
    key: "a key is wanted",
    stopped: reason,
  };
  $("wire-state").dataset.phase = phase;
  $("wire-words").textContent = words[phase];
  $("cut").disabled = phase !== "open";
  $("reconnect").hidden = phase !== "stopped" && !(phase === "waiting" && waitMs > 3_000);
  if (phase === "waiting" && session.wasOpen) {
    tally.cuts += 1;
    strip.cut(performance.now());
    announce("The connection is cut. The server goes on with the answer.");
  }
  session.wasOpen = phase === "open";
  if (phase === "key") askForKey(reason);
  drawSoon();
});

// ---- asking

function ask(text) {
  const mode = chosen("mode");
  const isContinuation = mode === "continue";
  $("welcome").hidden = true;
  $("lanes").hidden = false;
  for (const lane of lanes) {
    if (lane.isRunning) session.cancel(lane.answer);
    const messages = isContinuation ? [] : [...conversationOf(lane), { role: "user", content: text }];
    const system = settings.system && !isContinuation ? [{ role: "system", content: settings.system }] : [];
    const input = isContinuation ? { prompt: text } : { messages: [...system, ...messages] };
    const answer = new Answer({ ...input, ...settings.sampling(lane.index) }, () => changed(lane, answer));
    lane.history = messages;
    lane.begin(answer, { asked: text, isContinuation });
    session.submit(answer);
  }
  drawSoon();
}

/** What was said so far, the last answer included as far as it came. */
function conversationOf(lane) {
  if (lane.answer === null || lane.history.length === 0) return [];
  return lane.answer.text === "" ? lane.history.slice(0, -1) : [...lane.history, { role: "assistant", content: lane.answer.text }];
}

function changed(lane, answer) {
  if (lane.answer !== answer) return;
  if (answer.ended && answer.announced === undefined) {
    answer.announced = true;
    announce(answer.failure ? `${lane.name} failed: ${answer.failure.message}` : `${lane.name} has ended: ${answer.tokens} tokens.`);
  }
  drawSoon();
}

function stopAll() {
  for (const lane of lanes) if (lane.isRunning) stop(lane);
}

function stop(lane) {
  if (lane.answer.held) session.hold(lane.answer, false);
  session.cancel(lane.answer);
}

function setLanes(count) {
  while (lanes.length > count) {
    const lane = lanes.pop();
    if (lane.isRunning) stop(lane);
    lane.element.remove();
  }
  while (lanes.length < count) {
    const on = { hold: (lane) => session.hold(lane.answer, !lane.answer.held), stop };
    lanes.push(new Lane(lanes.length, $("lane-template"), on));
    $("lanes").append(lanes.at(-1).element);
  }
  $("lanes").dataset.count = count;
  drawSoon();
}

function startOver() {
  stopAll();
  const count = lanes.length;
  for (const lane of lanes) lane.element.remove();
  lanes = [];
  setLanes(count);
  $("welcome").hidden = false;
  $("lanes").hidden = true;
  $("prompt").focus();
}

function chosen(name) {
  return $("composer").elements[name].value;
}

function setMode(mode) {
  $("prompt").placeholder = PLACEHOLDERS[mode];
  const buttons = SUGGESTIONS[mode].map((text) => {
    const item = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.addEventListener("click", () => ask(text));
    item.append(button);
    return item;
  });
  $("suggestions").replaceChildren(...buttons);
}

// ---- dialogs and colours

function askForKey(problem = "") {
  $("key-problem").textContent = problem;
  $("key").setAttribute("aria-invalid", problem !== "");
  if (!$("key-dialog").open) $("key-dialog").showModal();
  $("key").select();
}

const THEMES = ["auto", "light", "dark"];
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const words = { auto: "as the system has them", light: "light", dark: "dark" };
  $("theme").setAttribute("aria-label", `Colours: ${words[theme]}`);
  drawSoon();
}

function grow() {
  const prompt = $("prompt");
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

function submit() {
  const text = $("prompt").value;
  if (text.trim() === "") return;
  $("prompt").value = "";
  grow();
  ask(chosen("mode") === "chat" ? text.trim() : text);
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("composer").addEventListener("change", ({ target }) => {
  if (target.name === "mode") setMode(target.value);
  if (target.name === "count") setLanes(Number(target.value));
  if (target.name) settings.choose(target.name, target.value);
});
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  submit();
});
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) stopAll();
  if (event.altKey && event.code === "KeyX") {
    event.preventDefault();
    session.cut();
  }
});
$("cut").addEventListener("click", () => session.cut());
$("reconnect").addEventListener("click", () => session.connect());
$("new").addEventListener("click", startOver);
$("stop-all").addEventListener("click", stopAll);
$("open-settings").addEventListener("click", () => $("settings").showModal());
$("reset-settings").addEventListener("click", () => settings.reset());
document.querySelector("[data-close]").addEventListener("click", () => $("settings").close());
$("settings-form").addEventListener("submit", (event) => {
  event.preventDefault();
  $("settings").close();
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = $("key").value.trim();
  rememberKey(key, $("keep-key").checked);
  $("key-dialog").close();
  session.useKey(key);
});
$("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(settings.choice("theme", "auto")) + 1) % THEMES.length];
  settings.choose("theme", next);
  setTheme(next);
});
addEventListener("resize", drawSoon);
addEventListener("pagehide", () => session.end());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);

setTheme(settings.choice("theme", "auto"));
for (const name of ["mode", "count"]) {
  $("composer").elements[name].value = settings.choice(name, $("composer").elements[name].value);
}
setMode(chosen("mode"));
setLanes(Number(chosen("count")));
$("lanes").hidden = true;
if (matchMedia("(pointer: fine)").matches) $("prompt").focus({ preventScroll: true });
session.useKey(rememberedKey());
