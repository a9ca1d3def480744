// The cluster now: its health, its capacity, its companies and the last decisions.

import { overlaid, widthOf } from "/page/charts.js";
import { h } from "/page/dom.js";
import { barOf, departmentLink, tree } from "/page/department.js";
import { address, amount, cores, link, name, now, number, plural, read, time } from "/page/core.js";
import {
  bar,
  cell,
  companyBar,
  companyLink,
  decided,
  legend,
  num,
  numCell,
  table,
  unlessGone,
  waiter,
} from "/page/parts.js";

const HREFS = {
  never_starts: () => address("/apps", { reason: "no-worker-large-enough" }),
  worker_lost: () => address("/workers"),
  worker_suspect: () => address("/workers"),
  worker_unwell: () => address("/workers"),
  unused: (app) => address("/app", { id: app }),
  no_worker: () => address("/workers"),
  short: () => address("/fairness"),
  deviation: () => address("/log"),
  audit_stopped: () => address("/log"),
};

/** A department in the table of companies: the sums of what is in it, and who has waited longest there. */
function ofDepartment(each, value, total) {
  const inIt = tree(value, each.department).filter((one) => one.company);
  const pending = inIt.reduce((sum, one) => sum + one.pending, 0);
  const longest = inIt.map((one) => one.longest).filter(Boolean);
  longest.sort((one, other) => one.since - other.since);
  return h(
    "tr",
    { key: `department ${each.department}`, class: "department" },
    h("th", { scope: "row", class: `in-${each.depth}` }, departmentLink(each.department)),
    h("td", { class: "wide" }, barOf(each, total)),
    numCell(cores(each.grantedCores)),
    numCell(cores(each.demandCores)),
    numCell(cores(each.entitledCores)),
    numCell(cores(each.quotaCores)),
    numCell(plural(pending, "app")),
    cell(waiter({ pending, longest: longest[0] })),
  );
}

/** What is wrong in one short sentence; what goes on if nothing is. Below it a row a condition, with what to do. */
function health(value) {
  const { conditions, severity } = value.health;
  if (!conditions.length) {
    return h(
      "h1",
      { class: "health well" },
      h("span", { class: "sign", "aria-hidden": "true" }, "✓"),
      `All is well: ${number(value.capacity[0].used)} of ${plural(value.capacity[0].total, "core")} granted.`,
    );
  }
  const grave = conditions.filter((each) => each.severity === "critical").length;
  const many = grave || conditions.length;
  const what = grave
    ? many === 1
      ? "is critical"
      : "are critical"
    : many === 1
      ? "needs attention"
      : "need attention";
  return [
    h(
      "h1",
      { class: `health ${severity}` },
      h("span", { class: "sign", "aria-hidden": "true" }, "!"),
      conditions.length === 1 ? [sentence(conditions[0].sentence), "."] : `${plural(many, "condition")} ${what}.`,
    ),
    h(
      "ul",
      { class: "conditions", key: "conditions" },
      conditions
        .slice(0, CONDITIONS)
        .map((each) =>
          h(
            "li",
            { key: `${each.condition}/${each.about}` },
            h("span", { class: `severity ${each.severity}` }, each.severity),
            " ",
            HREFS[each.condition]
              ? h("a", { href: HREFS[each.condition](each.about) }, name(each.sentence))
              : name(each.sentence),
            each.since ? h("span", { class: "faint" }, " since ", time(each.since)) : null,
            h("span", { class: "sub" }, name(sentence(each.do)), "."),
            each.cost ? h("span", { class: "sub" }, name(sentence(each.cost)), ".") : null,
          ),
        ),
    ),
    conditions.length > CONDITIONS
      ? h("p", { class: "faint", key: "more" }, `and ${number(conditions.length - CONDITIONS)} more`)
      : null,
  ];
}

const CONDITIONS = 12;
const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1);
const HOUR_MS = 3600000;
const LEAST_MS = 60000;
const PAIR = 960; // pixels: a window in which both drawings stand side by side

/** The points of the last hour as {at, value}, each good until the next one. */
function course(points, from, field) {
  const first = points.findLastIndex((point) => point.at <= from);
  return points.slice(Math.max(0, first)).map((point) => ({ at: Math.max(from, point.at), value: point[field] }));
}

/** The use of the cluster and its queue in the last hour. */
function lastHour(points) {
  const to = now();
  const from = Math.max(to - HOUR_MS, Math.min(points[0].at, to - LEAST_MS)); // a younger log has less
  const figure = (title, told, ...rest) =>
    h("figure", { key: title }, h("figcaption", {}, h("h3", {}, title), h("span", { class: "faint" }, told)), ...rest);
  const last = points.at(-1);
  const most = (field) => Math.max(1, ...points.map((point) => point[field]));
  const used = course(points, from, "used");
  const pending = course(points, from, "pending");
  const draw = (label, first, second, top) =>
    overlaid(label, first, second, from, to, top, widthOf(innerWidth < PAIR ? 1 : 2));
  return h(
    "div",
    { class: "multiples pair" },
    figure(
      "Cores",
      `${number(last.used)} of ${number(last.cores)} granted`,
      draw(
        `Cores granted in the last hour, at most ${number(most("used"))}; the dashed line: cores of live workers`,
        used,
        course(points, from, "cores"),
        Math.max(most("used"), most("cores")),
      ),
    ),
    figure(
      "Queue",
      `${plural(last.pending, "app")} pending`,
      draw(`Apps pending in the last hour, at most ${number(most("pending"))}`, pending, [], most("pending")),
    ),
  );
}

function capacity(each) {
  const parts = [
    { kind: "granted", value: each.used, word: "used" },
    { kind: "held", value: each.held, word: "held for apps" },
    { kind: "shut", value: each.shut, word: "on suspected workers" },
  ];
  const told = [...parts.filter((part) => part.value > 0 || part.word === "used"), { value: each.free, word: "free" }];
  const text = told.map((part) => `${amount(each.kind, part.value)} ${part.word}`).join(", ");
  return h(
    "div",
    { class: "capacity", key: each.kind },
    h(
      "h3",
      {},
      each.kind.charAt(0).toUpperCase() + each.kind.slice(1),
      h("span", { class: "faint" }, ` ${amount(each.kind, each.total)}`),
    ),
    bar(each.total, parts, [], `${each.kind}: ${text}`),
    h(
      "p",
      {},
      told.map((part, index) => [index ? ", " : "", h("strong", {}, amount(each.kind, part.value)), ` ${part.word}`]),
    ),
  );
}

export const overview = {
  async load(context) {
    const value = await read("/v1/overview", {}, context);
    context.first({ ...value, course: null });
    return { ...value, course: (await read("/v1/course", {}, context).catch(unlessGone)).points ?? [] };
  },
  draw(value) {
    const total = value.capacity[0].total;
    return [
      health(value),
      value.masters
        ? h(
            "p",
            { class: "faint masters" },
            value.masters.serving ? ["Master ", name(value.masters.serving), ", "] : null,
            plural(value.masters.standbys.length, "standby", "standbys"),
            `, ${plural(
              Object.values(value.workers).reduce((sum, each) => sum + each, 0),
              "worker",
            )}, `,
            plural(value.apps.running + value.apps.waiting, "app"),
            ` admitted, ${number(value.apps.pending)} pending, log at position ${number(value.head)}.`,
          )
        : null,
      h(
        "section",
        {},
        h("h2", { id: "capacity" }, "Capacity"),
        h("div", { class: "capacities" }, value.capacity.map(capacity)),
      ),
      h(
        "section",
        { key: "hour" },
        h("h2", { id: "hour" }, "The last hour"),
        value.course?.length
          ? lastHour(value.course)
          : h("p", { class: "empty" }, value.course ? "Nothing is known of it yet." : "Asking the server …"),
      ),
      h(
        "section",
        {},
        h("h2", { id: "companies" }, "Companies"),
        table(
          "Companies: what each is granted, wants, is entitled to and has bought, in cores",
          [
            "Company",
            { text: legend(), class: "wide" },
            num("Granted"),
            num("Demand"),
            num("Entitled"),
            num("Quota"),
            num("Pending"),
            "Longest wait",
          ],
          tree(value).map((each) =>
            !each.company
              ? ofDepartment(each, value, total)
              : h(
                  "tr",
                  { key: each.company },
                  h("th", { scope: "row", class: `in-${each.depth}` }, companyLink(each.company)),
                  h("td", { class: "wide" }, companyBar(each, total)),
                  numCell(cores(each.grantedCores)),
                  numCell(cores(each.claimCores)),
                  numCell(cores(each.partCores)),
                  numCell(cores(each.quotaCores)),
                  numCell(link("/apps", { company: each.company, state: "pending" }, plural(each.pending, "app"))),
                  cell(waiter(each)),
                ),
          ),
          "No company is registered yet; an operator adds one.",
          { class: "companies" },
        ),
      ),
      h(
        "section",
        {},
        h("h2", { id: "decisions" }, "Last decisions"),
        value.decisions.length
          ? h(
              "ol",
              { class: "decisions", "aria-label": "The last decisions, the newest first" },
              value.decisions.slice(0, 20).map(decided),
            )
          : h("p", { class: "empty" }, "Nothing was decided yet."),
      ),
    ];
  },
};
