// Settings and keys: what a request carries beside its text, and what a tab remembers. Settings outlive the tab;
// a key stays in memory, or in this tab's own storage where its owner says so, and nowhere else.

const STORED = "seedance.settings";
const KEY = "seedance.key";
const NUMBERS = [
  "temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "repetition_penalty", "presence_penalty", "frequency_penalty",
];

/** What a browser remembers may be switched off; then it remembers nothing. */
function remember(storage, name, value) {
  try {
    if (value === null) globalThis[storage].removeItem(name);
    else globalThis[storage].setItem(name, value);
  } catch {
    // private windows may refuse
  }
}

function recall(storage, name) {
  try {
    return globalThis[storage].getItem(name);
  } catch {
    return null;
  }
}

export class Settings {
  constructor(form) {
    this.form = form;
    this.values = {};
    try {
      this.values = JSON.parse(recall("localStorage", STORED) ?? "{}");
    } catch {
      // written by another version
    }
    this.#show();
    form.addEventListener("input", () => this.#read());
  }

  reset() {
    this.form.reset();
    this.#read();
  }

  /** One of the page's own choices, such as the colours. */
  choice(name, fallback) {
    return this.values[name] ?? fallback;
  }

  choose(name, value) {
    this.values[name] = value;
    this.#keep();
  }

  get system() {
    return (this.values.system ?? "").trim();
  }

  /** Members of SUBMIT; each lane has its own seed, counted on from the one that is set. */
  sampling(lane) {
    const request = {};
    for (const name of NUMBERS) {
      const text = this.values[name];
      if (text !== undefined && text !== "" && Number.isFinite(Number(text))) request[name] = Number(text);
    }
    if (request.seed !== undefined) request.seed += lane;
    const stop = (this.values.stop ?? "").split("\n").filter((line) => line !== "");
    if (stop.length > 0) request.stop = stop;
    if (this.values.durability) request.durability = this.values.durability;
    return request;
  }

  #show() {
    for (const field of this.form.elements) {
      if (field.name && this.values[field.name] !== undefined) field.value = this.values[field.name];
    }
  }

  #read() {
    for (const field of this.form.elements) if (field.name) this.values[field.name] = field.value;
    this.#keep();
  }

  #keep() {
    remember("localStorage", STORED, JSON.stringify(this.values));
  }
}

export function rememberedKey() {
  return recall("sessionStorage", KEY) ?? "";
}

export function rememberKey(key, keep) {
  remember("sessionStorage", KEY, keep ? key : null);
}
