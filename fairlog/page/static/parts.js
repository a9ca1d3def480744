// What several views share: bars, tables, what may be done with an app.

import { h } from "/page/dom.js";
import {
  ask,
  cause,
  cores,
  duration,
  link,
  may,
  memory,
  name,
  now,
  number,
  page,
  plural,
  Problem,
  question,
  said,
  time,
  toNumber,
} from "/page/core.js";

/** A bar: parts of a whole, each with a word; marks are lines across it. */
export function bar(whole, parts, marks, label) {
  const of = (value) => `${whole > 0 ? Math.min(100, (100 * value) / whole) : 0}%`;
  return h(
    "div",
    { class: "bar", role: "img", "aria-label": label },
    parts
      .filter((part) => part.value > 0)
      .map((part) => h("span", { class: `part ${part.kind}`, key: part.kind, style: { width: of(part.value) } })),
    marks
      .filter((mark) => mark.value > 0)
      .map((mark) => h("span", { class: `mark ${mark.kind}`, key: mark.kind, style: { left: of(mark.value) } })),
  );
}

/** A table; in a narrow window each row is a block, in which every cell has the head of its column before it. */
export function table(label, heads, rows, empty, more = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const texts = heads.map((head) =>
    typeof head === "string"
      ? head
      : head.tag
        ? head.children[0]?.children?.[0]
        : typeof head.text === "string"
          ? head.text
          : "",
  );
  for (const row of rows) {
    row.props.role = "row";
    row.children.forEach((cell_, index) => {
      cell_.props.role = cell_.tag === "th" ? "rowheader" : "cell";
      if (index) cell_.props["data-label"] = texts[index] || null;
    });
  }
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h(
      "table",
      { ...more, role: "table" },
      h("caption", { class: "hidden" }, label),
      h(
        "thead",
        { role: "rowgroup" },
        h(
          "tr",
          { role: "row" },
          heads.map((head) =>
            head.tag
              ? head
              : h("th", { scope: "col", role: "columnheader", class: head.class || null }, head.text ?? head),
          ),
        ),
      ),
      h("tbody", { role: "rowgroup" }, rows),
    ),
  );
}

export const num = (text) => ({ text, class: "number" });
export const cell = (...content) => h("td", {}, ...content);
export const numCell = (...content) => h("td", { class: "number" }, ...content);
export const appLink = (app) => link("/app", { id: app }, name(app));
export const companyLink = (company) => link("/company", { name: company }, name(company));

export async function change(context, path, body, what, method = "POST") {
  try {
    const receipt = await ask(path, {}, { method, body });
    said(`${what}; it is position ${receipt.seq} of the log.`);
    context.reload();
  } catch (error) {
    if (error.name !== "AbortError") said(error.message, true);
  }
}

/** The path of a thing; no name of one has a slash. */
export function path(text, thing) {
  if (/[/\\]|^\.+$/.test(thing)) throw new Problem(404, "NotFound", `nothing is named ${thing}: a name has no slash`);
  return text + encodeURIComponent(thing);
}

/** Ask for a reason, which operators must give, and do that with the app. */
async function endWhatRuns(context, app, verb, [title, text, name, done]) {
  const needed = page.session.reasons.includes("kill");
  const answer = await question(
    title,
    text,
    [
      {
        name: "reason",
        label: needed ? "Reason, which the log keeps" : "Reason (may be left out)",
        input: { maxlength: 200, required: needed },
      },
    ],
    name,
  );
  if (answer) {
    const body = answer.reason ? { reason: answer.reason } : {};
    await change(context, `${path("/v1/apps/", app)}/${verb}`, body, done);
  }
}

export async function kill(context, app) {
  const text = "Its executors are stopped; this cannot be undone.";
  await endWhatRuns(context, app, "kill", [`Kill ${app}?`, text, "Kill", `${app} is killed`]);
}

async function requeue(context, app) {
  const text = "What runs of it is stopped, and runs again from its queue.";
  const done = `${app} is put back into its queue`;
  await endWhatRuns(context, app, "requeue", [`Put ${app} back?`, text, "Requeue", done]);
}

export async function reprioritize(context, app, priority) {
  const answer = await question(
    `Priority of ${app}`,
    "Among its user's apps the highest priority goes first.",
    [
      {
        name: "priority",
        label: "Priority",
        input: { type: "number", value: priority, required: true, min: -1000, max: 1000 },
      },
    ],
    "Set",
  );
  if (answer) {
    await change(
      context,
      `${path("/v1/apps/", app)}/reprioritize`,
      { priority: Number(answer.priority) },
      `${app} has priority ${answer.priority}`,
    );
  }
}

/** What the one who looks may do with an app. */
export function actions(context, app) {
  if (app.endedAt) return null;
  const whose = [app.company, app.user];
  const at = path("/v1/apps/", app.app);
  const pending = app.state === "pending";
  const button = (text, act) =>
    h("button", { type: "button", class: "small", key: text, "aria-label": `${text} ${app.app}`, onclick: act }, text);
  const found = [
    pending &&
      may("submit", ...whose) &&
      (app.onHold
        ? button("Release", () => change(context, `${at}/release`, {}, `${app.app} is released`))
        : button("Hold", () => change(context, `${at}/hold`, {}, `${app.app} is on hold`))),
    pending && may("submit", ...whose) && button("Priority", () => reprioritize(context, app.app, app.priority)),
    !pending && may("kill", ...whose) && button("Requeue", () => requeue(context, app.app)),
    may("kill", ...whose) && button("Kill", () => kill(context, app.app)),
  ].filter(Boolean);
  return found.length ? h("span", { class: "actions" }, found) : null;
}

export function progress(app) {
  const found = app.progress;
  if (!found) return h("span", { class: "faint" }, app.tasks ? plural(app.tasks, "task") : "–");
  const text = `${number(found.succeeded)} of ${number(found.tasks)} tasks${found.failed ? `, ${number(found.failed)} failed` : ""}`;
  return h(
    "span",
    { class: "done" },
    bar(
      found.tasks,
      [
        { kind: "succeeded", value: found.succeeded },
        { kind: "failed", value: found.failed },
        { kind: "running", value: found.running },
      ],
      [],
      text,
    ),
    text,
  );
}

export function decided(each) {
  return h("li", { key: each.seq }, time(each.at), " ", link("/log", { seq: each.seq }, name(each.text)));
}

export function companyBar(each, total) {
  const quota = toNumber(each.quotaCores);
  const most = Math.max(total, quota, each.claimCores, each.grantedCores);
  const label = `${each.company}: granted ${cores(each.grantedCores)}, demand ${cores(each.claimCores)}, entitled ${cores(each.partCores)}, quota ${cores(each.quotaCores)}`;
  return bar(
    most,
    [
      { kind: "granted", value: each.grantedCores },
      { kind: "claimed", value: Math.max(0, each.claimCores - each.grantedCores) },
    ],
    [
      { kind: "assured", value: each.partCores },
      { kind: "quota", value: quota },
    ],
    label,
  );
}

export function waiter(each) {
  const longest = each.longest;
  if (!longest)
    return h("span", { class: "faint" }, each.pending ? "on hold or waiting for other apps" : "nobody waits");
  return h(
    "span",
    { class: "waiter" },
    h("strong", {}, duration(now() - longest.since)),
    " ",
    longest.app ? [appLink(longest.app), " of ", name(longest.user), ": "] : null,
    cause(longest.cause, longest.rule),
  );
}

export function legend() {
  const item = (kind, text) => [h("span", { class: `key ${kind}`, "aria-hidden": "true" }), `${text} `];
  return h(
    "span",
    { class: "legend" },
    item("granted", "granted"),
    item("claimed", "demand"),
    item("assured", "entitled"),
    item("quota", "quota"),
  );
}

export const unlessGone = (error) => {
  if (error.name === "AbortError" || error.status === 401) throw error;
  return { detail: error.message };
};

export const facts = (items) =>
  h(
    "dl",
    { class: "facts" },
    items.filter(Boolean).map(([term, ...told]) => h("div", { key: term }, h("dt", {}, term), h("dd", {}, ...told))),
  );
export const words = (text) =>
  text
    .replace(/([a-z])([A-Z])/g, (_, before, after) => `${before} ${after.toLowerCase()}`)
    .replace(/^./, (first) => first.toUpperCase());

/** What ended executors used of what they were granted, as their workers say (semantics O5). */
export function used(spent) {
  const hours = (ms) => `${(ms / 3.6e6).toFixed(3)}`;
  const unknown = spent.coreMs - spent.toldCoreMs;
  if (!spent.toldCoreMs) return `not known of ${hours(unknown)} core-hours`;
  const part = Math.round((100 * spent.cpuMs) / spent.toldCoreMs);
  const peak = `${memory(spent.peakMemory)} of ${memory(spent.peakOfMemory)}`;
  const more = unknown ? `; not known of ${hours(unknown)} core-hours more` : "";
  return `${hours(spent.cpuMs)} of ${hours(spent.toldCoreMs)} core-hours (${part}%), at most ${peak} of an executor, as their workers say${more}`;
}

/** A form for the month of a statement, the present one unless another is `shown`; `choose` is called with it. */
export function monthForm(shown, choose) {
  const present = new Date().toISOString().slice(0, 7);
  return h(
    "form",
    {
      class: "filters",
      onsubmit: (event) => {
        event.preventDefault();
        choose(event.target.elements.month.value);
      },
    },
    h(
      "label",
      {},
      "Month, in UTC",
      h("input", {
        name: "month",
        type: "month",
        value: shown || present,
        max: present,
        required: true,
        pattern: "\\d{4}-\\d{2}",
        placeholder: "2026-03",
      }),
    ),
    h("button", {}, "Show"),
  );
}

export function download(file, value) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = file.replace(/[^\w.-]/g, "_");
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

/** What proves something, behind a click: people read the sentence before it. */
export const digest = (title, text) =>
  h("details", { class: "digest", key: title }, h("summary", {}, title), h("code", {}, text));
