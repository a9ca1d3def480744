// The views: what each asks for, and how it is drawn. A view is {path, name, nav, title, topics, load, draw}.

import { h } from "/page/dom.js";
import {
  Problem, address, ago, amount, ask, cause, causes, coreTime, cores, decimal, duration, exact, link, may, memory, name, now, number, page,
  paged, plural, question, read, said, state, time, toNumber,
} from "/page/core.js";

// What several views share

/** A bar: parts of a whole, each with a word; marks are lines across it. */
function bar(whole, parts, marks, label) {
  const of = (value) => `${whole > 0 ? Math.min(100, (100 * value) / whole) : 0}%`;
  return h("div", { class: "bar", role: "img", "aria-label": label },
    parts.filter((part) => part.value > 0).map((part) => h("span", { class: `part ${part.kind}`, key: part.kind, style: { width: of(part.value) } })),
    marks.filter((mark) => mark.value > 0).map((mark) => h("span", { class: `mark ${mark.kind}`, key: mark.kind, style: { left: of(mark.value) } })));
}

/** A table; in a narrow window each row is a block, in which every cell has the head of its column before it. */
function table(label, heads, rows, empty, more = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const texts = heads.map((head) => (typeof head === "string" ? head : head.tag ? head.children[0]?.children?.[0] : typeof head.text === "string" ? head.text : ""));
  for (const row of rows) {
    row.props.role = "row";
    row.children.forEach((cell_, index) => {
      cell_.props.role = cell_.tag === "th" ? "rowheader" : "cell";
      if (index) cell_.props["data-label"] = texts[index] || null;
    });
  }
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label },
    h("table", { ...more, role: "table" }, h("caption", { class: "hidden" }, label),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, heads.map((head) => (head.tag ? head : h("th", { scope: "col", role: "columnheader", class: head.class || null }, head.text ?? head))))),
      h("tbody", { role: "rowgroup" }, rows)));
}

const num = (text) => ({ text, class: "number" });
const cell = (...content) => h("td", {}, ...content);
const numCell = (...content) => h("td", { class: "number" }, ...content);
const appLink = (app) => link("/app", { id: app }, name(app));
const companyLink = (company) => link("/company", { name: company }, name(company));

async function change(context, path, body, what, method = "POST") {
  try {
    const receipt = await ask(path, {}, { method, body });
    said(`${what}; it is position ${receipt.seq} of the log.`);
    context.reload();
  } catch (error) {
    if (error.name !== "AbortError") said(error.message, true);
  }
}

/** The path of a thing; no name of one has a slash. */
function path(text, thing) {
  if (/[/\\]|^\.+$/.test(thing)) throw new Problem(404, "NotFound", `nothing is named ${thing}: a name has no slash`);
  return text + encodeURIComponent(thing);
}

async function kill(context, app) {
  const needed = page.session.reasons.includes("kill");
  const answer = await question(`Kill ${app}?`, "Its executors are stopped; this cannot be undone.",
    [{ name: "reason", label: needed ? "Reason, which the log keeps" : "Reason (may be left out)", input: { maxlength: 200, required: needed } }], "Kill");
  if (answer) await change(context, `${path("/v1/apps/", app)}/kill`, answer.reason ? { reason: answer.reason } : {}, `${app} is killed`);
}

async function reprioritize(context, app, priority) {
  const answer = await question(`Priority of ${app}`, "Among its user's apps the highest priority goes first.",
    [{ name: "priority", label: "Priority", input: { type: "number", value: priority, required: true, min: -1000, max: 1000 } }], "Set");
  if (answer) {
    await change(context, `${path("/v1/apps/", app)}/reprioritize`, { priority: Number(answer.priority) }, `${app} has priority ${answer.priority}`);
  }
}

/** What the one who looks may do with an app. */
function actions(context, app) {
  if (app.endedAt) return null;
  const whose = [app.company, app.user];
  const at = path("/v1/apps/", app.app);
  const pending = app.state === "pending";
  const button = (text, act) => h("button", { type: "button", class: "small", key: text, "aria-label": `${text} ${app.app}`, onclick: act }, text);
  const found = [
    pending && may("submit", ...whose) && (app.onHold
      ? button("Release", () => change(context, `${at}/release`, {}, `${app.app} is released`))
      : button("Hold", () => change(context, `${at}/hold`, {}, `${app.app} is on hold`))),
    pending && may("submit", ...whose) && button("Priority", () => reprioritize(context, app.app, app.priority)),
    may("kill", ...whose) && button("Kill", () => kill(context, app.app)),
  ].filter(Boolean);
  return found.length ? h("span", { class: "actions" }, found) : null;
}

function progress(app) {
  const found = app.progress;
  if (!found) return h("span", { class: "faint" }, app.tasks ? plural(app.tasks, "task") : "–");
  const text = `${number(found.succeeded)} of ${number(found.tasks)} tasks${found.failed ? `, ${number(found.failed)} failed` : ""}`;
  return h("span", { class: "done" },
    bar(found.tasks, [{ kind: "succeeded", value: found.succeeded }, { kind: "failed", value: found.failed }, { kind: "running", value: found.running }], [], text), text);
}

function decided(each) {
  return h("li", { key: each.seq }, time(each.at), " ", link("/log", { seq: each.seq }, name(each.text)));
}

// 1. Now

const HREFS = {
  never_starts: () => address("/apps", { reason: "no-worker-large-enough" }), worker_lost: () => address("/workers"), worker_suspect: () => address("/workers"),
  no_worker: () => address("/workers"), short: () => address("/fairness"), deviation: () => address("/log"), audit_stopped: () => address("/log"),
};

/** What is wrong in one sentence, the worst first; what goes on if nothing is. Below it, what to do. */
function health(value) {
  const { conditions, severity, sentence } = value.health;
  if (!conditions.length) {
    const living = value.apps.running + value.apps.waiting;
    const used = value.capacity[0];
    return h("h1", { class: "health well" }, h("span", { class: "sign", "aria-hidden": "true" }, "✓"),
      `All is well: ${number(used.used)} of ${plural(used.total, "core")} granted, ${plural(living, "app")} admitted, ${number(value.apps.pending)} pending.`);
  }
  return [
    h("h1", { class: `health ${severity}` }, h("span", { class: "sign", "aria-hidden": "true" }, "!"),
      sentence.charAt(0).toUpperCase() + sentence.slice(1), "."),
    h("details", { class: "conditions", key: "conditions" }, h("summary", {}, "What to do"), h("ul", {}, conditions.slice(0, 12).map((each) => h("li", { key: `${each.condition}/${each.about}` },
      h("span", { class: `severity ${each.severity}` }, each.severity), " ", HREFS[each.condition] ? h("a", { href: HREFS[each.condition]() }, name(each.sentence)) : name(each.sentence), ": ", name(each.do), ". ", each.since ? ["Since ", time(each.since), ": "] : null, name(each.cost), ".")))),
  ];
}

function capacity(each) {
  const parts = [
    { kind: "granted", value: each.used, word: "used" }, { kind: "held", value: each.held, word: "held for apps" },
    { kind: "shut", value: each.shut, word: "on suspected workers" },
  ];
  const told = [...parts.filter((part) => part.value > 0 || part.word === "used"), { value: each.free, word: "free" }];
  const text = told.map((part) => `${amount(each.kind, part.value)} ${part.word}`).join(", ");
  return h("div", { class: "capacity", key: each.kind },
    h("h3", {}, each.kind.charAt(0).toUpperCase() + each.kind.slice(1), h("span", { class: "faint" }, ` ${amount(each.kind, each.total)}`)),
    bar(each.total, parts, [], `${each.kind}: ${text}`),
    h("p", {}, told.map((part, index) => [index ? ", " : "", h("strong", {}, amount(each.kind, part.value)), ` ${part.word}`])));
}


function companyBar(each, total) {
  const quota = toNumber(each.quotaCores);
  const most = Math.max(total, quota, each.claimCores, each.grantedCores);
  const label = `${each.company}: granted ${cores(each.grantedCores)}, demand ${cores(each.claimCores)}, entitled ${cores(each.partCores)}, quota ${cores(each.quotaCores)}`;
  return bar(most, [
    { kind: "granted", value: each.grantedCores }, { kind: "claimed", value: Math.max(0, each.claimCores - each.grantedCores) },
  ], [{ kind: "assured", value: each.partCores }, { kind: "quota", value: quota }], label);
}

function waiter(each) {
  const longest = each.longest;
  if (!longest) return h("span", { class: "faint" }, each.pending ? "on hold or waiting for other apps" : "nobody waits");
  return h("span", { class: "waiter" }, h("strong", {}, duration(now() - longest.since)), " ",
    longest.app ? [appLink(longest.app), " of ", name(longest.user), ": "] : null, cause(longest.cause, longest.rule));
}

const nowView = {
  path: "/", name: "overview", nav: "Now", title: () => "Now", topics: ["apps", "workers", "companies", "settings"], still: true, ticks: true,
  load: (context) => read("/v1/overview", {}, context),
  draw(value) {
    const total = value.capacity[0].total;
    return [
      health(value),
      value.masters ? h("p", { class: "faint masters" }, value.masters.serving ? ["Master ", name(value.masters.serving), ", "] : null,
        plural(value.masters.standbys.length, "standby", "standbys"), `, ${plural(Object.values(value.workers).reduce((sum, each) => sum + each, 0), "worker")}, `,
        "log at position ", number(value.head), ".") : null,
      h("section", {}, h("h2", { id: "capacity" }, "Capacity"), h("div", { class: "capacities" }, value.capacity.map(capacity))),
      h("section", {}, h("h2", { id: "companies" }, "Companies"),
        table("Companies: what each holds, claims, is assured and has bought, in cores", [
          "Company", { text: legend(), class: "wide" }, num("Granted"), num("Demand"), num("Entitled"), num("Quota"), num("Pending"), "Longest wait",
        ], value.companies.map((each) => h("tr", { key: each.company },
          h("th", { scope: "row" }, companyLink(each.company)), h("td", { class: "wide" }, companyBar(each, total)),
          numCell(cores(each.grantedCores)), numCell(cores(each.claimCores)), numCell(cores(each.partCores)), numCell(cores(each.quotaCores)),
          numCell(link("/apps", { company: each.company, state: "pending" }, plural(each.pending, "app"))), cell(waiter(each)))),
        "No company is registered yet; an operator adds one.", { class: "companies" })),
      h("section", {}, h("h2", { id: "decisions" }, "Last decisions"),
        value.decisions.length ? h("ol", { class: "decisions", "aria-label": "The last decisions, the newest first" }, value.decisions.slice(0, 20).map(decided))
          : h("p", { class: "empty" }, "Nothing was decided yet.")),
    ];
  },
};

function legend() {
  const item = (kind, text) => [h("span", { class: `key ${kind}`, "aria-hidden": "true" }), `${text} `];
  return h("span", { class: "legend" }, item("granted", "granted"), item("claimed", "claimed"), item("assured", "assured"), item("quota", "quota"));
}

// 2. Apps

const STATES = ["living", "pending", "waiting", "running", "ended", "finished", "failed", "killed", "unmet", "expired", "all"];
const STATE_WORDS = { living: "not ended", all: "all" };
const MOST = 100;
const ROWS = 100;

const appsView = {
  path: "/apps", name: "apps", nav: "Apps", title: () => "Apps", topics: ["apps", "companies"], still: true, ticks: true,
  load(context) {
    const { start, sort, order, ...filters } = context.query;
    return read("/v1/board", { ...filters, start, limit: MOST, sort, descending: order ? order === "down" : null }, context);
  },
  draw(value, context) {
    const query = context.query;
    const to = (changed) => address("/apps", { ...query, start: null, ...changed });
    const field = (field_, label, control) => h("label", { key: field_ }, label, control);
    const choose = (field_, label, options) => field(field_, label, h("select", {
      name: field_, value: query[field_] ?? "", onchange: (event) => context.go(to({ [field_]: event.target.value })),
    }, options.map(([each, text]) => h("option", { value: each, key: each }, text))));
    const typed = (field_, label) => field(field_, label, h("input", {
      name: field_, type: "search", value: query[field_] ?? "", spellcheck: "false", onchange: (event) => context.go(to({ [field_]: event.target.value.trim() })),
    }));
    const sorted = query.sort || "submitted";
    const down = (query.order || "down") === "down";
    const head = (key, text, numeric) => h("th", {
      scope: "col", role: "columnheader", class: numeric ? "number" : null, "aria-sort": sorted === key ? (down ? "descending" : "ascending") : null,
    }, h("a", { href: to({ sort: key, order: sorted === key && down ? "up" : "down" }) }, text, sorted === key ? h("span", { "aria-hidden": "true" }, down ? " ▾" : " ▴") : null));
    const first = value.start + 1;
    const last = value.start + value.apps.length;
    return [
      h("h1", {}, plural(value.number, "app"), filtersText(query)),
      h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
        typed("company", "Company"), typed("user", "User"),
        choose("state", "State", STATES.map((each) => [each === "living" ? "" : each, STATE_WORDS[each] || each])),
        choose("reason", "Waits because", [["", "any reason"], ...Object.entries(causes)]), typed("text", "Id contains"),
        Object.values(query).some(Boolean) ? h("a", { href: address("/apps"), class: "clear" }, "Clear") : null),
      table("Apps", [
        head("app", "App"), head("company", "Company"), head("user", "User"), head("state", "State"), head("cores", "Cores", true),
        "Progress", head("waited", "Waited"), head("submitted", "Submitted"), { text: h("span", { class: "hidden" }, "Actions") },
      ], value.apps.map((app) => h("tr", { key: app.app },
        h("th", { scope: "row" }, appLink(app.app), app.name !== app.app ? h("span", { class: "faint sub" }, name(app.name)) : null),
        cell(companyLink(app.company)), cell(link("/apps", { ...query, user: app.user, company: app.company, start: null }, name(app.user))),
        cell(state(app.state), app.cause ? h("span", { class: "sub" }, cause(app.cause, app.rule)) : null),
        numCell(`${number(app.grantedCores)} of ${cores(app.requestedCores)}`), cell(progress(app)),
        cell(app.admittedAt ? duration(app.admittedAt - app.submittedAt) : duration((app.endedAt ?? now()) - app.submittedAt)),
        cell(time(app.submittedAt)), h("td", { class: "last" }, actions(context, app)))),
      "No app passes these filters."),
      value.number > value.apps.length ? h("nav", { class: "pages", "aria-label": "Pages" },
        value.start > 0 ? h("a", { href: address("/apps", { ...query, start: Math.max(0, value.start - MOST) || null }) }, "‹ Before") : null,
        h("span", {}, `${number(first)} to ${number(last)} of ${number(value.number)}`),
        last < value.number ? h("a", { href: address("/apps", { ...query, start: value.start + MOST }) }, "After ›") : null) : null,
    ];
  },
};

function filtersText(query) {
  const parts = [
    query.state && query.state !== "all" ? ` ${query.state}` : query.state ? "" : " not ended",
    query.company ? [" of ", name(query.company)] : null, query.user ? [" by ", name(query.user)] : null,
    query.reason ? `, because ${causes[query.reason] || query.reason}` : null,
  ];
  return h("span", { class: "faint" }, parts);
}

// 3. One app

const appView = {
  path: "/app", name: "app", under: "/apps", title: (query) => query.id || "App", topics: ["apps"], app: true, still: true, ticks: true, polls: (query) => query.task !== undefined,
  async load(context) {
    if (!context.query.id) throw new Problem(400, "BadRequest", "name an app, as in /app?id=report-7");
    const at = path("/v1/apps/", context.query.id);
    const card = await read(`${at}/card`, { reason: context.query.reason }, context);
    const [timeline, tasks, charts] = await Promise.all([
      read(`${at}/timeline`, {}, context).catch(unlessGone),
      page.at === null && card.tasks ? ask(`${at}/tasks`, { limit: ROWS, cursor: tasksPage(card, context).here > 1 ? (tasksPage(card, context).here - 1) * ROWS - 1 : null }, context).catch(unlessGone) : null,
      import("/page/charts.js"),
    ]);
    const output = page.at === null && context.query.task !== undefined ? await outputOf(at, context) : null;
    return { card, timeline, tasks, charts, output };
  },
  draw(value, context) {
    const { card, timeline, tasks, charts, output } = value;
    const waits = card.waitsFor;
    const executors = paged([...(timeline?.executors || [])].reverse(), "/app", context.query, "executors", ROWS);
    const asked = paged([...(timeline?.asked || [])].reverse(), "/app", context.query, "asked", ROWS);
    return [
      h("h1", {}, name(card.app), " ", state(card.state)),
      h("p", { class: "happened" }, happened(card, timeline)),
      h("p", { class: "lead" }, card.name !== card.app ? [name(card.name), " · "] : null, companyLink(card.company), " / ",
        link("/apps", { company: card.company, user: card.user }, name(card.user)), " · submitted ", time(card.submittedAt),
        card.endedAt ? [" · ended ", time(card.endedAt)] : null, actions(context, card)),
      card.detail ? h("p", { class: "detail" }, name(card.detail)) : null,
      card.standing ? h("p", {}, name(card.standing.text)) : null,
      waits ? h("section", { class: "why" }, h("h2", { id: "why" }, "Why it waits"),
        h("p", {}, cause(waits.cause), ": ", name(waits.text), ". ", h("span", { class: "rule" }, `Rule ${waits.rule}`)),
        waits.facts.ahead?.length ? h("p", {}, h("strong", {}, "Who goes first: "), first(waits.facts.ahead)) : null,
        card.queue ? h("p", {}, `Number ${number(card.queue.place)} of ${number(card.queue.of)} that `, name(card.user), " has pending.") : null,
        h("p", {}, h("strong", {}, "What would help: "), card.help)) : null,
      h("section", {}, h("h2", { id: "timeline" }, "Timeline"),
        timeline?.detail ? h("p", { class: "empty" }, timeline.detail) : timeline ? charts.timeline(timeline, now(), context.query) : null),
      h("section", {}, h("h2", { id: "facts" }, "What it asked for"), facts([
        ["Cores", `${number(card.grantedCores)} granted of ${cores(card.requestedCores)}`],
        ["Memory", `${memory(card.grantedMemory)} granted of ${memory(card.requestedMemory)}`],
        ["Tasks", card.tasks ? [plural(card.tasks, "task"), ` of ${plural(card.coresPerTask, "core")} each`] : "none of its own"],
        ["Priority", number(card.priority)], card.maxRuntime ? ["May run", duration(card.maxRuntime * 1000)] : null,
        card.after ? ["Starts after", Object.entries(card.after).map(([app, how]) => [appLink(app), ` (${how}) `])] : null,
        card.command.length ? ["Command", h("code", {}, name(card.command.join(" ")))] : ["Command", privatePart(card, context)],
        card.cwd ? ["Folder", h("code", {}, name(card.cwd))] : null,
        ...Object.entries(card.links ?? {}).filter(([, href]) => /^https?:/.test(href)).map(([label, href]) => [`Its ${label}`, h("a", { href, target: "_blank", rel: "noopener noreferrer" }, name(href))]),
      ])),
      tasks ? h("section", {}, h("h2", { id: "tasks" }, "Tasks ", card.progress ? progress(card) : null), tasksTable(card, tasks, context), tasks.items?.length ? tasksPage(card, context).nav : null, output ? outputPart(card, output, context) : null) : null,
      timeline?.executors ? h("section", {}, h("h2", { id: "executors" }, "Executors"), table("Executors", [
        "Executor", "Worker", num("Cores"), num("Memory"), "Granted", "Ran", "End", "Why there",
      ], executors.part.map((lane) => h("tr", { key: lane.id },
        h("th", { scope: "row" }, name(lane.id)), cell(link("/workers", { worker: lane.worker }, name(lane.worker))), numCell(cores(lane.cores)), numCell(memory(lane.memory)),
        cell(time(lane.from)), cell(duration((lane.to ?? now()) - (lane.running ?? lane.from))),
        cell(lane.end ?? (lane.told ? "told to leave" : "runs"), lane.loss?.claimant ? h("span", { class: "sub" }, "for ", name(lane.loss.claimant), " of ", name(lane.loss.claimantCompany ?? ""), h("span", { class: "rule" }, ` ${lane.loss.rule ?? ""}`)) : null),
        cell(link("/log", { seq: lane.seq }, "candidates")))), "It had no executor yet."), executors.nav) : null,
      timeline?.asked?.length ? h("section", {}, h("h2", { id: "asked" }, "Who asked for what"), table("Who asked for what", ["When", "Who", "What", "Position"],
        asked.part.map((each) => h("tr", { key: each.seq }, cell(time(each.at)), cell(name(each.account), h("span", { class: "faint" }, ` ${each.role}`)),
          cell(words(each.command), each.reason ? [": ", name(each.reason)] : null, each.refused ? h("span", { class: "bad" }, " refused: ", name(each.refused)) : null),
          cell(link("/log", { seq: each.seq }, number(each.seq))))), ""), asked.nav) : null,
    ];
  },
};

/** What happened to the app, in a sentence. */
function happened(card, timeline) {
  const admitted = card.admittedAt ?? null;
  const waited = duration((admitted ?? card.endedAt ?? now()) - card.submittedAt);
  const many = timeline?.executors ? `, on ${plural(timeline.executors.length, "executor")}` : "";
  if (card.endedAt) {
    const end = ENDS[card.state] ?? `ended as ${card.state}`;
    return admitted === null ? `It ${end} after ${waited}, before it was admitted.` : `It waited ${waited}, ran for ${duration(card.endedAt - admitted)}${many}, and ${end}.`;
  }
  if (card.state === "running") return `It waited ${waited} and has run for ${duration(now() - admitted)}${many}.`;
  if (card.state === "waiting") return `It was admitted after ${waited}, and has no executor that runs.`;
  return card.ready ? `It has waited for ${waited} to be admitted.` : `It was submitted ${waited} ago and is not ready to start.`;
}

const ENDS = { finished: "finished", failed: "failed", killed: "was killed", expired: "was stopped at its maximum runtime", unmet: "ended, because what it was to start after ended otherwise" };

const unlessGone = (error) => {
  if (error.name === "AbortError" || error.status === 401) throw error;
  return { detail: error.message };
};

function privatePart(card, context) {
  if (!page.session.can.private || !page.session.reasons.includes("private")) return h("span", { class: "faint" }, "not shown");
  return h("button", { type: "button", class: "small", onclick: async () => {
    const answer = await question("Show the private part", "Your account, the app and the reason are recorded.", [{ name: "reason", label: "Reason", input: { required: true, maxlength: 200 } }], "Show");
    if (answer) context.go(address("/app", { ...context.query, reason: answer.reason }));
  } }, "Show, with a reason");
}

const facts = (items) => h("dl", { class: "facts" }, items.filter(Boolean).map(([term, ...told]) => h("div", { key: term }, h("dt", {}, term), h("dd", {}, ...told))));
export const words = (text) => text.replace(/([a-z])([A-Z])/g, (_, before, after) => `${before} ${after.toLowerCase()}`).replace(/^./, (first) => first.toUpperCase());

const AHEAD = 10;

/** The first of those that go before: apps by their ids, else companies and users. */
function first(ahead) {
  const told = ahead.slice(0, AHEAD).map((each, index) => [index ? ", " : "", typeof each === "string" ? appLink(each) : name(Object.values(each).filter((part) => typeof part === "string").join(" / "))]);
  return [told, ahead.length > AHEAD ? ` and ${number(ahead.length - AHEAD)} more` : null];
}

const tasksPage = (card, context) => paged([], "/app", context.query, "tasks", ROWS, card.tasks);

function tasksTable(card, tasks, context) {
  if (tasks.detail) return h("p", { class: "empty" }, tasks.detail);
  return table("Tasks", [num("Task"), "State", "Executor", num("Attempts"), "Message", { text: h("span", { class: "hidden" }, "Output") }], tasks.items.map((task) => h("tr", { key: task.task, class: String(task.task) === context.query.task ? "chosen" : null },
    h("th", { scope: "row", class: "number" }, number(task.task)), cell(state(task.state)), cell(task.executor ? name(task.executor) : "–"), numCell(number(task.attempts)), cell(task.exit_code ? `exit code ${task.exit_code} ` : null, name(task.message)),
    cell(h("a", { href: address("/app", { ...context.query, task: task.task }) }, "Output")))), "No task has begun.", { class: "tasks" });
}

async function outputOf(at, context) {
  const { task, reason } = context.query;
  try {
    const [printed] = (await ask(`${at}/output`, { task, reason }, context)).items;
    return { parts: partsOf(printed), missing: printed.written[0] + printed.written[1] - atob(printed.output).length, task };
  } catch (error) {
    if (error.name === "AbortError" || error.status === 401) throw error;
    return { problem: error.message, task };
  }
}

/** Pieces of output in their order, each of one stream. */
function partsOf({ output, stderr }) {
  const bytes = Uint8Array.from(atob(output), (each) => each.charCodeAt(0));
  const ends = [0, ...stderr.flat(), bytes.length];
  return ends.slice(1).map((end, index) => ({ stream: index % 2 ? "stderr" : "stdout", text: new TextDecoder().decode(bytes.subarray(ends[index], end)) }));
}

/** Lines, each a list of pieces. */
function linesOf(parts) {
  const lines = [[]];
  for (const { stream, text } of parts) {
    text.split("\n").forEach((piece, index) => {
      if (index) lines.push([]);
      if (piece) lines.at(-1).push({ stream, piece });
    });
  }
  return lines;
}

/** The lines as few pieces. */
function joined(lines) {
  const pieces = [];
  for (const { stream, piece } of lines.flatMap((line, index) => (index ? [{ stream: "stdout", piece: "\n" }, ...line] : line))) {
    if (pieces.at(-1)?.stream === stream) pieces.at(-1).text += piece;
    else pieces.push({ stream, text: piece });
  }
  return pieces.length ? pieces : [{ stream: "stdout", text: "It has printed nothing." }];
}

function outputPart(card, output, context) {
  const { find = "", stream = "" } = context.query;
  const go = (changed) => context.go(address("/app", { ...context.query, ...changed }), { replace: true });
  const parts = (output.parts || []).filter((part) => !stream || part.stream === stream);
  const lines = linesOf(parts);
  const found = find ? lines.filter((line) => line.map((each) => each.piece).join("").toLowerCase().includes(find.toLowerCase())) : lines;
  const live = !card.endedAt;
  const need = output.problem && page.session.reasons.includes("private");
  const what = output.task === "driver" ? "the driver" : `task ${output.task}`;
  return h("div", { class: "output", key: "output" }, h("h3", {}, `Output of ${what}`, live ? h("span", { class: "faint" }, " · followed") : null),
    output.missing > 0 ? h("p", { class: "faint", key: "missing" }, `${number(output.missing)} bytes before these are not shown; its worker has them in its files.`) : null,
    output.problem ? h("p", { class: "empty" }, output.problem, " ", need ? privatePart(card, context) : null) : [
      h("p", { class: "filters" },
        h("label", {}, "Find ", h("input", { type: "search", value: find, onchange: (event) => go({ find: event.target.value }) })),
        h("label", {}, "Stream ", h("select", { value: stream, onchange: (event) => go({ stream: event.target.value }) },
          [["", "both"], ["stdout", "stdout"], ["stderr", "stderr"]].map(([value, text]) => h("option", { value, key: value }, text)))),
        !stream && parts.some((part) => part.stream === "stderr" && part.text) ? h("span", { class: "stderr", key: "colour" }, "in this colour: stderr") : null,
        find ? h("span", { class: "faint", key: "found" }, `${plural(found.length, "line")} of ${number(lines.length)}`) : null),
      h("pre", { tabindex: 0, "aria-label": `Output of ${what}` }, joined(found).map(({ stream: from, text }) => (from === "stderr" && !stream ? h("span", { class: "stderr" }, text) : text))),
    ]);
}

// 4. A company

const companyView = {
  path: "/company", name: "company", nav: "Company", title: (query) => query.name || "Company", topics: ["apps", "companies", "workers"], ticks: true,
  home: (session) => address("/company", session.company ? { name: session.company } : {}),
  async load(context) {
    const wanted = context.query.name || page.session.company;
    const listed = await read("/v1/overview", {}, context);
    if (!wanted) return { companies: listed.companies, total: listed.capacity[0].total };
    const at = path("/v1/companies/", wanted);
    const [card, decisions] = await Promise.all([read(`${at}/card`, {}, context), read("/v1/entries", { company: wanted, kind: Object.keys(OF_RULE).join(","), before: context.query.before, limit: DECISIONS }, context)]);
    const mine = page.session.can.statement === "all" || (page.session.can.statement === "company" && page.session.company === wanted);
    const month = context.query.month;
    const statement = mine && month && page.at === null ? await ask(`${at}/statement`, { month }, context).catch(unlessGone) : null;
    const audit = context.query.audit && page.at === null ? await auditOf(context) : null;
    const fairness = context.query.audit ? await read("/v1/fairness", {}, context).catch(unlessGone) : null;
    return { card, decisions, total: listed.capacity[0].total, statement, mine, audit, fairness };
  },
  draw(value, context) {
    if (value.companies) {
      return [h("h1", {}, "Companies"), value.companies.length ? legend() : null, h("ul", { class: "choices" }, value.companies.map((each) => h("li", { key: each.company },
        h("p", {}, h("strong", {}, companyLink(each.company)), ` ${cores(each.grantedCores)} granted of ${cores(each.quotaCores)} quota, ${plural(each.pending, "app")} pending`), companyBar(each, value.total)))),
        value.companies.length ? null : h("p", { class: "empty" }, "No company is registered yet; an operator adds one.")];
    }
    const { card, statement, audit } = value;
    const quota = card.quota === "amounts" ? "amounts" : card.quota === "default" ? "an equal part of the cluster" : `${card.quota} of the cluster`;
    return [
      h("h1", {}, name(card.company)),
      h("p", { class: "lead" }, card.shortCores > 0 ? h("strong", { class: "bad" }, `Its apps are ${cores(card.shortCores)} below their entitlements. `)
        : "No app of it is below its entitlement. ",
        card.pending ? [plural(card.pending, "app"), " pending", card.longest ? ["; the longest: ", waiter(card)] : ", on hold or waiting for other apps", "."] : "No app is pending."),
      h("section", {}, h("h2", { id: "holds" }, "What it holds ", legend()), companyBar(card, value.total), facts([
        ["Granted", cores(card.grantedCores), ", ", memory(card.grantedMemory)], ["Demand", cores(card.claimCores), ", ", memory(card.claimMemory)],
        ["Entitled", cores(card.partCores), ", ", memory(card.partMemory)], ["Quota", cores(card.quotaCores), ", ", memory(card.quotaMemory), h("span", { class: "faint" }, ` ${quota}`)],
        ["Below its entitlement", cores(card.shortCores)], ["Lent to it", cores(card.beyondCores)], ["May borrow", card.borrow ? "yes" : "no"],
      ])),
      h("section", {}, h("h2", { id: "queue" }, "Queue by user"), table("Queue by user", ["User", num("Granted"), num("Occupied"), num("Admitted"), num("Pending"), num("Oldest wait")],
        card.byUser.map((each) => h("tr", { key: each.user }, h("th", { scope: "row" }, link("/apps", { company: card.company, user: each.user }, name(each.user))), numCell(cores(each.grantedCores ?? 0)), numCell(cores(each.occupiedCores ?? 0)),
          numCell(plural(each.admitted, "app")), numCell(plural(each.pending, "app")), numCell(each.since ? duration(now() - each.since) : "–"))), "Nobody of it has submitted an app."),
      Object.keys(card.causes).length ? h("p", { class: "chips" }, "Waiting because: ", Object.entries(card.causes).map(([word, count]) => h("a", { class: "chip", key: word, href: address("/apps", { company: card.company, reason: word }) }, cause(word), ` ${number(count)}`))) : null),
      page.at === null ? h("section", {}, h("h2", { id: "fair" }, page.session.company === card.company ? "Was I treated fairly?" : ["Was ", name(card.company), " treated fairly?"]), audit ? fairly(card, audit, value.fairness) : h("p", {}, "Every decision can be worked out again from the log. ",
        h("a", { class: "button", href: address("/company", { ...context.query, name: card.company, audit: "yes" }) }, "Check now"))) : null,
      value.mine && page.at === null ? h("section", {}, h("h2", { id: "statement" }, "Statement"), statementPart(card, statement, context)) : null,
      h("section", {}, h("h2", { id: "concerned" }, "Decisions that concerned it"), concerned(value.decisions, context.query)),
    ];
  },
};

async function auditOf(context) {
  const answer = await ask("/v1/audit", {}, context).catch(unlessGone);
  return answer.value ?? answer;
}

function fairly(card, audit, fairness) {
  if (audit.detail) return h("p", { class: "bad" }, audit.detail);
  const row = fairness?.rows?.find((each) => each.company === card.company);
  return [
    h("p", {}, audit.verdicts.length ? h("strong", { class: "bad" }, `The log deviates from its rules in ${plural(audit.verdicts.length, "case")}. `) : h("strong", { class: "good" }, "✓ The log follows its rules. "),
      `Audited up to position ${number(audit.endsAt)}: ${number(audit.events)} entries and ${plural(audit.decisions, "decision")} were worked out again.`),
    audit.verdicts.length ? h("ul", {}, audit.verdicts.slice(0, 20).map((each, index) => h("li", { key: index }, name(each.verdict ?? each.done)))) : null,
    row ? h("p", {}, `On average it was entitled to ${decimal(row.entitledCores ?? 0)} cores and held ${decimal(row.occupiedCores ?? 0)}; `,
      row.shortfallCoreS > 0 ? `${coreTime(row.shortfallCoreS)} were due and not held.` : "nothing was due that it did not hold.") : null,
    h("p", { class: "digest" }, "Checkpoint ", h("code", {}, `${audit.endsAt}:${audit.digest}`)),
  ];
}

function statementPart(card, statement, context) {
  const this_ = new Date().toISOString().slice(0, 7);
  const month = context.query.month;
  return [
    h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); context.go(address("/company", { ...context.query, name: card.company, month: event.target.elements.month.value })); } },
      h("label", {}, "Month, in UTC", h("input", { name: "month", type: "month", value: month || this_, max: this_, required: true, pattern: "\\d{4}-\\d{2}", placeholder: "2026-03" })), h("button", {}, "Show")),
    statement?.detail ? h("p", { class: "empty" }, statement.detail) : statement ? [
      facts([["Granted", `${decimal(statement.value.total.grantedCoreHours)} core-hours, ${decimal(statement.value.total.grantedGiBHours)} GiB-hours`],
        ["Requested", `${decimal(statement.value.total.requestedCoreHours)} core-hours, ${decimal(statement.value.total.requestedGiBHours)} GiB-hours`],
        ["Lost to claims", plural(statement.value.total.executorsLost, "executor")],
        ["Digest", h("code", { class: "digest" }, `${statement.value.log.to}:${statement.value.log.digest}`)]]),
      table("Use by user", ["User", num("Granted core-hours"), num("Requested core-hours"), num("Apps")], statement.value.users.map((each) => h("tr", { key: each.user }, h("th", { scope: "row" }, name(each.user)),
        numCell(decimal(each.grantedCoreHours)), numCell(decimal(each.requestedCoreHours)), numCell(number(each.apps.length)))), "Nobody used anything."),
      h("button", { type: "button", onclick: () => download(`statement-${card.company}-${month}.json`, statement.value) }, "Download with its digest"),
    ] : null,
  ];
}

export function download(file, value) {
  const url = URL.createObjectURL(new Blob([JSON.stringify(value, null, 2)], { type: "application/json" }));
  const anchor = document.createElement("a");
  anchor.href = url;
  anchor.download = file.replace(/[^\w.-]/g, "_");
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

const DECISIONS = 50;
const OF_RULE = {
  AppAdmitted: "Admitted (A3, H4)", ExecutorAllocated: "Executors placed (P)", DriverAllocated: "Drivers placed (D2)", ExecutorRevoked: "Told to leave (A5, E, H7)", RoomReserved: "Room reserved (C7)",
  ReservationLapsed: "Reservations that lapsed (C7)", RoomHeld: "Room held (P8, E5)", HoldEnded: "Holds that ended (P8)", NeedBegan: "Needs that began (H6)", NeedEnded: "Needs that ended (H6)", SlotAwaited: "Slots awaited (H10)", SlotBegan: "Slots that began (H10)", SlotEnded: "Slots that ended (H10)", TargetSet: "Targets set (H6)", TargetEnded: "Targets that ended (H7)", AppReady: "Became ready (J2)", AppDue: "Times to begin that have come (J4)", AppExpired: "Time was over (X2)",
};

function concerned({ entries, before }, query) {
  const groups = new Map();
  for (const each of entries) {
    if (!groups.has(each.type)) groups.set(each.type, []);
    groups.get(each.type).push(each);
  }
  const to = (position, text) => h("a", { href: address("/company", { ...query, before: position }), key: text }, text);
  return [
    groups.size ? h("div", { class: "groups" }, [...groups].map(([type, found]) => h("details", { key: type, open: type === "AppAdmitted" }, h("summary", {}, OF_RULE[type], h("span", { class: "faint" }, ` ${plural(found.length, "decision")}`)),
      h("ol", { class: "decisions" }, found.map((each) => h("li", { key: each.seq }, time(each.at), " ", link("/log", { seq: each.seq }, name(each.data.executor || each.data.app || each.type), each.data.worker ? [" on ", name(each.data.worker)] : null))))))) : h("p", { class: "empty" }, before ? "No decision here was about it." : "No decision was about it."),
    before || query.before ? h("nav", { class: "pages", "aria-label": "Pages of decisions" }, query.before ? to(null, "‹ Newest") : null,
      entries.length ? h("span", { class: "faint" }, `positions ${number(entries.at(-1).seq)} to ${number(entries[0].seq)}`) : null, before ? to(before, "Earlier ›") : null) : null,
  ];
}

// 5. Workers

const GROUPS = Object.assign(Object.create(null), { rack: "rack", host: "host", state: "state", none: "nothing" });
const LABEL = "label:"; // begins the name of a group by the label of that key

const workersView = {
  path: "/workers", name: "workers", nav: "Workers", title: () => "Workers", topics: ["workers", "apps"], ticks: true,
  async load(context) {
    const { group } = context.query;
    if (group && !(group in GROUPS) && !group.startsWith(LABEL)) throw new Problem(400, "BadRequest", `group is ${Object.keys(GROUPS).join(" or ")} or ${LABEL}KEY, not '${group}'`);
    return read("/v1/fleet", {}, context);
  },
  draw(value, context) {
    const query = context.query;
    const group = query.group || "rack";
    const shown = value.workers.filter((each) => (!query.condition || each.condition === query.condition) && (!query.worker || each.worker === query.worker) && (!query.label || labelsOf(each).includes(query.label)) && (!query.company || each.runs.some((run) => run.company === query.company)));
    const label = group.startsWith(LABEL) ? group.slice(LABEL.length) : null;
    const none = group === "none" ? "" : `no ${label ?? group}`;
    const groupOf = (each) => (label !== null ? new Map(Object.entries(each.labels)).get(label) : each[group === "state" ? "condition" : group]);
    const groups = new Map();
    for (const each of shown) {
      const key = groupOf(each) || none;
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(each);
    }
    const keys = new Set(value.workers.flatMap((each) => Object.keys(each.labels)));
    if (label !== null) keys.add(label);
    const labels = [...keys].sort().map((key) => [LABEL + key, `label ${key}`]);
    const counts = {};
    for (const each of value.workers) counts[each.condition] = (counts[each.condition] || 0) + 1;
    const choose = (field, label, options) => h("label", { key: field }, label, h("select", { value: query[field] ?? "", onchange: (event) => context.go(address("/workers", { ...query, [field]: event.target.value })) }, options.map(([each, text]) => h("option", { value: each, key: each }, text))));
    return [
      h("h1", {}, plural(value.workers.length, "worker"), h("span", { class: "faint" }, Object.entries(counts).map(([word, count]) => `, ${number(count)} ${word}`))),
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, choose("group", "By", Object.entries(GROUPS).map(([value, text]) => [value === "rack" ? "" : value, text]).concat(labels)),
        choose("condition", "State", [["", "all"], ...Object.keys(counts).map((word) => [word, word])]), query.label ? h("span", { class: "faint" }, "label ", name(query.label)) : null, query.worker || query.company || query.label ? h("a", { class: "clear", href: address("/workers") }, "Show all") : null),
      shown.length ? [...groups].sort(([a], [b]) => (a === none) - (b === none) || a.localeCompare(b, undefined, { numeric: true })).map(([key, workers]) => h("section", { key: `group ${key}`, "aria-label": key || "Workers" }, h("h2", { class: groups.size > 1 && key ? "given" : "hidden" }, key ? name(key) : "Workers"),
        h("ul", { class: "grid" }, workers.map((each) => workerCard(each, context))))) : h("p", { class: "empty" }, value.workers.length ? "No worker passes these filters." : "No worker is registered: run `fairlog worker` on a machine."),
    ];
  },
};

function labelsOf(worker) {
  return Object.entries(worker.labels).map(([key, value]) => `${key}=${value}`);
}

function workerCard(each, context) {
  const notes = [
    /draining|leaving|decommissioned/.test(each.status) ? [each.status, each.since ? ` for ${duration(now() - each.since)}` : "", each.reason ? [": ", name(each.reason)] : null] : null,
    each.condition === "lost" ? ["lost", each.lostAt ? ` ${ago(each.lostAt)}` : "", each.reason ? `: ${each.reason}` : "", each.rememberedUntil ? [", remembered until ", time(each.rememberedUntil)] : null] : null,
    each.suspicion ? [`suspected for ${duration(now() - each.suspicion.since)}: ${plural(each.suspicion.executors.length, "executor")} failed soon after their start; until `, time(each.suspicion.until)] : null,
    ...each.holds.map((hold) => [`${cores(hold.cores)} held for `, appLink(hold.app), ` for ${duration(now() - hold.since)}`, hold.reason === "reclaim" ? " by a claim" : hold.reason === "hold" ? "" : `, which is below its entitlement (${hold.reason})`]),
    each.excludedApps.length ? [`${plural(each.excludedApps.length, "app")} excluded after failures here`] : null,
  ].filter(Boolean);
  return h("li", { key: each.worker, class: `worker ${each.condition}` }, h("div", { class: "title" }, h("h3", {}, name(each.worker)), state(each.condition)),
    h("p", { class: "faint" }, each.host ? [name(each.host), each.rack ? [" · ", name(each.rack)] : null] : "host not known"),
    labelsOf(each).length ? h("ul", { class: "labels", "aria-label": "Labels" }, labelsOf(each).map((label) => h("li", { key: label }, h("a", { href: address("/workers", { ...context.query, label }) }, name(label))))) : null,
    bar(each.cores, each.runs.length ? [{ kind: "granted", value: each.grantedCores }, { kind: "held", value: each.holds.reduce((sum, hold) => sum + hold.cores, 0) }] : [{ kind: "granted", value: each.grantedCores }], [], `${each.worker}: ${number(each.grantedCores)} of ${cores(each.cores)} granted`),
    h("p", {}, h("strong", {}, `${number(each.grantedCores)} of ${cores(each.cores)}`), `, ${memory(each.grantedMemory)} of ${memory(each.memory)}`),
    notes.length ? h("ul", { class: "notes" }, notes.map((note, index) => h("li", { key: index }, note))) : null,
    each.runs.length ? h("details", { key: "runs" }, h("summary", {}, plural(each.runs.length, "executor")), h("ul", { class: "runs" }, each.runs.map((run) => h("li", { key: run.id }, appLink(run.app), h("span", { class: "faint" }, ` ${cores(run.cores)} · `, name(run.company), ` · ${run.status}`))))) : h("p", { class: "faint" }, each.condition === "lost" ? "" : "runs nothing"),
    may("cluster") && each.condition !== "lost" ? h("div", { class: "buttons" }, each.status === "draining"
      ? h("button", { type: "button", class: "small", "aria-label": `Undrain ${each.worker}`, onclick: () => change(context, `${path("/v1/workers/", each.worker)}/undrain`, {}, `${each.worker} is in service again`) }, "Undrain")
      : each.status === "alive" ? h("button", { type: "button", class: "small", "aria-label": `Drain ${each.worker}`, onclick: () => drain(context, each.worker) }, "Drain") : null) : null);
}

async function drain(context, worker) {
  const answer = await question(`Drain ${worker}?`, "Nothing new is granted on it; what runs there goes on.",
    [{ name: "reason", label: "Reason (may be left out)", input: { maxlength: 200 } }], "Drain");
  if (answer) await change(context, `${path("/v1/workers/", worker)}/drain`, answer.reason ? { reason: answer.reason } : {}, `${worker} is draining`);
}

// The views that come later are loaded when they are looked at.

function later(view, file) {
  let loaded = null;
  return {
    ...view,
    async load(context) {
      loaded = (await import(file))[view.name];
      return loaded.load(context);
    },
    draw: (value, context) => loaded.draw(value, context),
  };
}

export const views = [
  nowView, appsView, appView, companyView, workersView,
  later({ path: "/fairness", name: "fairness", nav: "Fairness", title: () => "Fairness", topics: ["apps", "companies", "workers"] }, "/page/fairness.js"),
  later({ path: "/log", name: "log", nav: "Log", title: (query) => (query.seq ? `Position ${query.seq}` : "Log"), topics: ["apps", "workers", "companies", "settings", "log"] }, "/page/log.js"),
  later({ path: "/what-if", name: "whatif", nav: "What if", title: () => "What if", topics: [] }, "/page/whatif.js"),
  later({ path: "/settings", name: "settings", nav: "Settings", title: () => "Settings", topics: ["settings", "companies", "workers"] }, "/page/settings.js"),
];

export { table, num, cell, numCell, appLink, companyLink, facts, bar, legend, decided };
