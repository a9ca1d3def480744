// Asking the server, the address of the page, and how amounts, times and names are written.

import { h, clean } from "/page/dom.js";

/** A refusal or failure of the server, in its own words. */
export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail);
    this.status = status;
    this.title = title;
  }
}

/** A sentence of the server without what it says to type at a command line, which a page is not. */
const forPages = (sentence) => sentence.replace(/; [^;]*`fairlog [^;]*$/, "");

const WAITS_MS = 60000;
const TOO_LONG = "the log is too long for the page to work this out";
export const page = { session: null, head: 0, at: null, seenAt: 0, now: null, offset: 0 };

/** The answer to a request. While the server is not ready it is asked again; `told` hears what it says meanwhile. */
export async function ask(path, query = {}, { method = "GET", body, signal, told } = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, value);
  }
  const url = search.size ? `${path}?${search}` : path;
  const headers = { accept: "application/json" };
  if (method !== "GET") headers["fairlog-page"] = "1";
  if (body !== undefined)
    headers["content-type"] = typeof body === "string" ? "application/x-ndjson" : "application/json";
  if (method !== "GET" && path.startsWith("/v1/") && !/session|links|audit|what-if/.test(path)) {
    headers["idempotency-key"] = crypto.randomUUID ? crypto.randomUUID() : `${Date.now()}-${Math.random()}`;
  }
  const until = Date.now() + WAITS_MS;
  for (;;) {
    let answer;
    const content = body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body);
    try {
      answer = await fetch(url, { method, headers, signal, body: content, credentials: "same-origin" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, "Unreachable", "the server does not answer; the page asks again by itself");
    }
    const off = Date.parse(answer.headers.get("date")) - Date.now();
    if (Math.abs(off) > 5000) page.offset = off; // this machine's clock and the server's do not agree
    if (answer.ok) return answer.json();
    const problem = await answer.json().catch(() => null);
    const said = new Problem(
      answer.status,
      problem?.title || "Error",
      problem?.title === "TooLong"
        ? TOO_LONG
        : forPages(problem?.detail || "") || `the server answered ${answer.status}`,
    );
    const again = answer.status === 429 || (answer.status === 503 && method === "GET" && said.title === "NotReady");
    if (!again || Date.now() > until) throw said;
    told?.(said.message);
    await wait(1000 * Math.min(5, Number(answer.headers.get("retry-after")) || 1), signal);
  }
}

export function wait(ms, signal) {
  return new Promise((done, fail) => {
    const timer = setTimeout(done, ms);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      fail(new DOMException("", "AbortError"));
    });
  });
}

/** A part of the page at the position that is shown. */
export async function read(path, query, context) {
  const answer = await ask(path, { ...query, at: page.at }, context);
  if (page.at !== null && answer.at) page.seenAt = answer.at;
  if (page.at === null && answer.seq < context.head) context.behind = true;
  return answer.value;
}

// The address: the path names the view, the query its filters and the position.

export function address(path, query = {}, { keepAt = true } = {}) {
  const search = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") search.set(name, String(value));
  }
  if (keepAt && page.at !== null && !search.has("at")) search.set("at", page.at);
  const text = search.toString().replaceAll("%2F", "/").replaceAll("%3A", ":");
  return text ? `${path}?${text}` : path;
}

/** One page of `items`, which the address names by its number in `param`, and the links to the others. */
export function paged(items, path, query, param, size, total = items.length) {
  const last = Math.max(1, Math.ceil(total / size));
  const here = Math.min(last, Math.max(1, Math.trunc(Number(query[param])) || 1));
  const to = (there, text) =>
    h("a", { href: address(path, { ...query, [param]: there > 1 ? there : null }), key: text }, text);
  const nav =
    last === 1
      ? null
      : h(
          "nav",
          { class: "pages", "aria-label": "Pages", key: `pages-${param}` },
          here > 1 ? to(here - 1, "‹ Before") : null,
          h(
            "span",
            { class: "faint" },
            `${number((here - 1) * size + 1)} to ${number(Math.min(total, here * size))} of ${number(total)}`,
          ),
          here < last ? to(here + 1, "Next ›") : null,
        );
  return { part: items.slice((here - 1) * size, here * size), nav, here };
}

export function link(path, query, ...content) {
  return h("a", { href: address(path, query) }, ...content);
}

// What people read.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const one = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const zoned = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
  timeZoneName: "short",
});
const full = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "short",
  day: "numeric",
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
  timeZoneName: "short",
});

export const number = (value) => whole.format(value);
export const decimal = (value) => one.format(value);

export function plural(count, one_, many = `${one_}s`) {
  return `${number(count)} ${count === 1 ? one_ : many}`;
}

/** A quota, which may be a fraction "n/d". */
export function exact(value) {
  if (typeof value !== "string") return number(value);
  const [over, under] = value.split("/").map(Number);
  return decimal(over / under);
}

export function toNumber(value) {
  if (typeof value !== "string") return value;
  const [over, under] = value.split("/").map(Number);
  return over / (under || 1);
}

export const cores = (value) => `${exact(value)} ${value === 1 ? "core" : "cores"}`;

export function memory(mib) {
  const value = toNumber(mib);
  return value >= 1024 ? `${decimal(value / 1024)} GiB` : `${decimal(value)} MiB`;
}

export function amount(kind, value) {
  if (kind === "cores") return cores(value);
  return kind === "memory" ? memory(value) : `${number(value)} ${kind}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const s = Math.max(0, Math.round(ms / 1000));
  if (s < 1) return `${Math.max(0, Math.round(ms))} ms`;
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** A time of the day, with date and zone where that is not clear. */
export function time(ms, { long = false } = {}) {
  if (!ms) return "–";
  const when = new Date(ms);
  const today = new Date();
  const format = long || when.toDateString() !== today.toDateString() ? full : clock;
  return h("time", { datetime: when.toISOString(), title: full.format(when) }, format.format(when));
}

/** Core-seconds in the largest unit of which there is one. */
export function coreTime(seconds) {
  const [unit, size] =
    seconds >= 3600 || seconds === 0 ? ["hours", 3600] : seconds >= 60 ? ["minutes", 60] : ["seconds", 1];
  return `${decimal(seconds / size)} core-${unit}`;
}

export const zone = () => zoned.formatToParts(new Date()).find((part) => part.type === "timeZoneName")?.value || "";
export const clockText = (ms) => (ms ? full.format(new Date(ms)) : "–");

/** The time by the server's clock, or that of the position that is shown. */
export function now() {
  return page.at !== null ? page.seenAt : Date.now() + page.offset;
}

export const ago = (ms) => `${duration(now() - ms)} ago`;

/** A name that somebody chose: a text of its own, whatever it contains. */
export const name = (text) => h("bdi", { class: String(text).length > 28 ? "name long" : "name" }, text);

const SHAPES = {
  pending: "◷",
  waiting: "◔",
  running: "▶",
  finished: "✓",
  failed: "✕",
  killed: "■",
  unmet: "⊘",
  expired: "⧗",
  queued: "◷",
  succeeded: "✓",
  stopped: "■",
  cancelled: "■",
  alive: "●",
  draining: "◐",
  leaving: "◐",
  decommissioned: "○",
  suspect: "▲",
  lost: "✕",
};

/** A state as a word with a shape, so that colour is not needed. */
export function state(value) {
  return h(
    "span",
    { class: `state ${value}` },
    h("span", { "aria-hidden": "true", class: "shape" }, SHAPES[value] || "·"),
    value,
  );
}

/** Cause of waiting -> its few words, as the server names them. */
export function causes() {
  return page.session?.causes ?? {};
}

export function cause(word, rule) {
  return h("span", { class: "cause" }, causes()[word] || word, rule ? h("span", { class: "rule" }, ` ${rule}`) : null);
}

/** Whether the one who looks may do that with what belongs to the company and the user. */
export function may(verb, company = "", user = "") {
  const session = page.session;
  if (!session || page.at !== null) return false;
  const reach = session.can[verb];
  if (reach === "all") return true;
  if (reach === "company") return session.companies.includes(company);
  return (reach === "own" || reach === "shown") && company === session.company && user === session.user;
}

// A question before a change, and what came of it.

export function said(text, bad = false) {
  const place = document.getElementById("said");
  place.className = bad ? "bad" : "";
  place.textContent = clean(text);
  clearTimeout(said.timer);
  said.timer = setTimeout(() => (place.textContent = ""), bad ? 12000 : 6000);
}

/** Ask for confirmation and for the fields; resolves to their values, or null. */
export function question(title, text, fields, button) {
  const dialog = document.getElementById("ask");
  return new Promise((done) => {
    const finish = (value) => {
      dialog.close();
      done(value);
    };
    import("/page/dom.js").then(({ show }) => {
      show(
        dialog,
        h(
          "form",
          {
            method: "dialog",
            key: `${title}${Date.now()}`,
            onsubmit: (event) => {
              event.preventDefault();
              finish(Object.fromEntries(new FormData(event.target)));
            },
          },
          h("h2", { id: "ask-title" }, title),
          h("p", {}, text),
          fields.map((field) =>
            h("label", {}, field.label, h("input", { ...field.input, name: field.name, autocomplete: "off" })),
          ),
          h(
            "div",
            { class: "buttons" },
            h("button", { type: "button", onclick: () => finish(null) }, "Cancel"),
            h("button", { type: "submit", class: "primary" }, button),
          ),
        ),
      );
      dialog.oncancel = () => done(null);
      dialog.showModal();
    });
  });
}
