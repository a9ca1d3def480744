// The log's inputs under other rules, beside what happened.

import { h } from "/page/dom.js";
import {
  Problem,
  address,
  ask,
  decimal,
  duration,
  exact,
  memory,
  name,
  number,
  page,
  plural,
  read,
} from "/page/core.js";
import { overlaid } from "/page/charts.js";
import { num, numCell, table } from "/page/parts.js";

const POLICIES = {
  company_policy: ["dominant-share", "pay-as-you-go"],
  user_policy: ["longest-wait", "least-occupied", "balanced"],
  app_policy: ["fifo", "sql-first"],
  placement: ["spread", "pack", "classic-spread", "classic-pack"],
};

const MOST_WORKERS = 1000;

/** The whole numbers of a value of the address. */
function amounts(key, value, form) {
  const parts = value.split(",");
  if (parts.length === form.split(",").length && parts.every((part) => /^\d{1,12}$/.test(part)))
    return parts.map(Number);
  throw new Problem(400, "BadRequest", `${key}=${value} cannot be read; write ${key}=${form} in whole numbers`);
}

/** The rules that the address states: quota.COMPANY=CORES,MIB, workers=N,CORES,MIB, and settings by name. */
function rulesOf(query) {
  const rules = { settings: {}, quotas: {}, workers: [] };
  for (const [key, value] of Object.entries(query)) {
    if (value === "" || value === undefined) continue;
    if (key.startsWith("quota.")) {
      const [cores_, mib] = amounts(key, value, "CORES,MIB");
      rules.quotas[key.slice(6)] = { cores: cores_, memory_mb: mib };
    } else if (key === "workers") {
      const [count, cores_, mib] = amounts(key, value, "NUMBER,CORES,MIB");
      if (count < 1 || count > MOST_WORKERS)
        throw new Problem(
          400,
          "BadRequest",
          `${key}=${value} adds ${number(count)} workers; from 1 to ${number(MOST_WORKERS)} can be added`,
        );
      rules.workers.push({ count, cores: cores_, memory_mb: mib });
    } else if (key in POLICIES) rules.settings[key] = value;
  }
  return rules;
}

export const whatif = {
  async load(context) {
    const [overview, settings] = await Promise.all([
      read("/v1/overview", {}, context),
      read("/v1/settings", {}, context),
    ]);
    let rules;
    try {
      rules = rulesOf(context.query);
    } catch (error) {
      return { overview, settings, answer: { detail: error.message } };
    }
    const asked = Object.keys(rules.settings).length || Object.keys(rules.quotas).length || rules.workers.length;
    let answer = null;
    if (asked) {
      answer = await ask("/v1/whatif", { at: page.at }, { ...context, method: "POST", body: rules }).then(
        (found) => found.value,
        (error) => {
          if (error.name === "AbortError" || error.status === 401) throw error;
          return { detail: error.message };
        },
      );
    }
    return { overview, settings, answer };
  },
  draw({ overview, settings, answer }, context) {
    const query = context.query;
    const quotas = overview.companies;
    const submit = (event) => {
      event.preventDefault();
      const given = Object.fromEntries(new FormData(event.target));
      const next = {};
      for (const each of quotas) {
        const [amount_, mib] = [given[`cores ${each.company}`], given[`mib ${each.company}`]];
        if (amount_ || mib)
          next[`quota.${each.company}`] =
            `${amount_ || Math.round(number_(each.quotaCores))},${mib || Math.round(number_(each.quotaMemory))}`;
      }
      if (given.count) next.workers = `${given.count},${given.cores || 8},${given.mib || 8192}`;
      for (const key of Object.keys(POLICIES)) if (given[key] && given[key] !== settings[key]) next[key] = given[key];
      context.go(address("/what-if", next));
    };
    const stated = (company, index) => (query[`quota.${company}`] || ",").split(",")[index] ?? "";
    const [count, size, mib] = (query.workers || ",,").split(",");
    const field = (label, input) =>
      h("label", { key: label }, label, h("input", { ...input, min: input.min ?? 0, type: "number" }));
    return [
      h("h1", {}, answer && !answer.detail ? outcome(answer) : "What if the rules were others?"),
      h(
        "p",
        { class: "faint" },
        "The log's submissions are decided again under other rules, in virtual time. Nothing is changed.",
      ),
      answer?.detail ? h("p", { class: "notice bad", role: "alert" }, name(answer.detail)) : null,
      h(
        "form",
        { class: "rules", onsubmit: submit, key: "rules" },
        h(
          "fieldset",
          {},
          h("legend", {}, "Quotas"),
          quotas.map((each) =>
            h(
              "div",
              { class: "filters", key: each.company },
              h(
                "span",
                { class: "of-company" },
                name(each.company),
                h("span", { class: "sub" }, `now ${exact(each.quotaCores)} cores, ${memory(each.quotaMemory)}`),
              ),
              field("Cores", {
                name: `cores ${each.company}`,
                value: stated(each.company, 0),
                "aria-label": `Cores of ${each.company}`,
              }),
              field("MiB", {
                name: `mib ${each.company}`,
                value: stated(each.company, 1),
                "aria-label": `MiB of ${each.company}`,
              }),
            ),
          ),
        ),
        h(
          "fieldset",
          {},
          h("legend", {}, "Further workers"),
          h(
            "div",
            { class: "filters" },
            field("Workers", { name: "count", value: count, max: 1000 }),
            field("Cores of each", { name: "cores", value: size, min: 1, placeholder: "8" }),
            field("MiB of each", { name: "mib", value: mib, min: 1, placeholder: "8192" }),
          ),
        ),
        h(
          "fieldset",
          {},
          h("legend", {}, "Policies"),
          h(
            "div",
            { class: "filters" },
            Object.entries(POLICIES).map(([key, values]) =>
              h(
                "label",
                { key },
                key.replace("_", " "),
                h(
                  "select",
                  { name: key, value: query[key] ?? settings[key] },
                  values.map((value) =>
                    h("option", { value, key: value }, value === settings[key] ? `${value} (now)` : value),
                  ),
                ),
              ),
            ),
          ),
        ),
        h(
          "div",
          { class: "buttons" },
          h("button", { class: "primary" }, "Compare"),
          answer ? h("a", { class: "button", href: address("/what-if") }, "Start over") : null,
        ),
      ),
      answer && !answer.detail ? compared(answer) : null,
    ];
  },
};

const number_ = (value) => (typeof value === "string" ? value.split("/").reduce((over, under) => over / under) : value);

function outcome({ log, other, firstDifference }) {
  if (!firstDifference) return "Nothing would have been different.";
  const [before, after] = [log.cluster, other.cluster];
  const waits =
    before.waitP50Ms === null || after.waitP50Ms === null
      ? ""
      : `The median wait would have been ${duration(after.waitP50Ms)} instead of ${duration(before.waitP50Ms)}, and `;
  return `${waits}${decimal(after.shortfallCoreS / 3600)} core-hours would have been due and not held instead of ${decimal(before.shortfallCoreS / 3600)}.`.replace(
    /^./,
    (first) => first.toUpperCase(),
  );
}

function compared({ log, other, firstDifference }) {
  const names = log.rows.map((row) => row.company);
  const all = [...log.series, ...other.series];
  const most = Math.max(1, ...all.flatMap((point) => Object.values(point.shares).map((share) => share.occupied)));
  const from = Math.min(log.fromAt, other.fromAt);
  const to = Math.max(log.toAt, other.toAt);
  const of = (world, company) => world.rows.find((row) => row.company === company) ?? {};
  const pair = (field, told) => (company) =>
    numCell(
      told(of(log, company)[field]),
      h("span", { class: "faint" }, " → "),
      h("strong", {}, told(of(other, company)[field])),
    );
  const columns = [
    ["Held on average", pair("occupiedCores", (value) => `${decimal(value ?? 0)} cores`)],
    ["Short", pair("shortfallCoreS", (value) => `${decimal((value ?? 0) / 3600)} core-hours`)],
    ["Median wait", pair("waitP50Ms", duration)],
    ["Longest wait", pair("waitLongestMs", duration)],
    ["Ended", pair("ended", (value) => plural(value ?? 0, "app"))],
  ];
  return [
    h(
      "h2",
      {},
      "Held over time ",
      h(
        "span",
        { class: "legend" },
        h("span", { class: "key granted" }),
        "in the log ",
        h("span", { class: "key entitled" }),
        "under these rules",
      ),
    ),
    h(
      "div",
      { class: "multiples" },
      names.map((company) =>
        h(
          "figure",
          { key: company },
          h("figcaption", {}, h("h3", {}, name(company))),
          overlaid(
            `${company}: held ${decimal(of(log, company).occupiedCores ?? 0)} cores on average, and ${decimal(of(other, company).occupiedCores ?? 0)} under these rules`,
            line(log, company),
            line(other, company),
            from,
            to,
            most,
          ),
        ),
      ),
    ),
    h("p", { class: "faint" }, "Vertical axes: cores."),
    h("h2", {}, "Figures, log → these rules"),
    table(
      "Figures of both worlds",
      ["Company", ...columns.map(([text]) => num(text))],
      names.map((company) =>
        h(
          "tr",
          { key: company },
          h("th", { scope: "row" }, name(company)),
          columns.map(([, told]) => told(company)),
        ),
      ),
      "",
    ),
    firstDifference
      ? h(
          "p",
          {},
          `The first different decision is number ${number(firstDifference.number)}: `,
          decision(firstDifference.log),
          h("span", { class: "faint" }, " → "),
          decision(firstDifference.other),
          ".",
        )
      : null,
  ];
}

const line = (world, company) =>
  world.series.map((point) => ({ at: point.at, value: point.shares[company]?.occupied ?? 0 }));
const decision = (found) =>
  found
    ? name(`${found.type} ${found.app ?? found.executor ?? ""}${found.worker ? ` on ${found.worker}` : ""}`)
    : "none";
