// The workers, by rack, host, state or label.

import { h } from "/page/dom.js";
import {
  address,
  ago,
  cores,
  duration,
  may,
  memory,
  name,
  now,
  number,
  plural,
  Problem,
  question,
  read,
  state,
  time,
} from "/page/core.js";
import { appLink, bar, change, path } from "/page/parts.js";

const GROUPS = Object.assign(Object.create(null), { rack: "rack", host: "host", state: "state", none: "nothing" });
const LABEL = "label:"; // begins the name of a group by the label of that key

export const workers = {
  async load(context) {
    const { group } = context.query;
    if (group && !(group in GROUPS) && !group.startsWith(LABEL))
      throw new Problem(
        400,
        "BadRequest",
        `group is ${Object.keys(GROUPS).join(" or ")} or ${LABEL}KEY, not '${group}'`,
      );
    return read("/v1/fleet", {}, context);
  },
  draw(value, context) {
    const query = context.query;
    const group = query.group || "rack";
    const shown = value.workers.filter(
      (each) =>
        (!query.condition || each.condition === query.condition) &&
        (!query.worker || each.worker === query.worker) &&
        (!query.label || labelsOf(each).includes(query.label)) &&
        (!query.company || each.runs.some((run) => run.company === query.company)),
    );
    const label = group.startsWith(LABEL) ? group.slice(LABEL.length) : null;
    const none = group === "none" ? "" : `no ${label ?? group}`;
    const groupOf = (each) =>
      label !== null ? new Map(Object.entries(each.labels)).get(label) : each[group === "state" ? "condition" : group];
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
    const choose = (field, label, options) =>
      h(
        "label",
        { key: field },
        label,
        h(
          "select",
          {
            value: query[field] ?? "",
            onchange: (event) => context.change({ [field]: event.target.value }),
          },
          options.map(([each, text]) => h("option", { value: each, key: each }, text)),
        ),
      );
    return [
      h(
        "h1",
        {},
        plural(value.workers.length, "worker"),
        h(
          "span",
          { class: "faint" },
          Object.entries(counts).map(([word, count]) => `, ${number(count)} ${word}`),
        ),
      ),
      h(
        "form",
        { class: "filters", onsubmit: (event) => event.preventDefault() },
        choose(
          "group",
          "By",
          Object.entries(GROUPS)
            .map(([value, text]) => [value === "rack" ? "" : value, text])
            .concat(labels),
        ),
        choose("condition", "State", [["", "all"], ...Object.keys(counts).map((word) => [word, word])]),
        query.label ? h("span", { class: "faint" }, "label ", name(query.label)) : null,
        query.worker || query.company || query.label
          ? h("a", { class: "clear", href: address("/workers") }, "Show all")
          : null,
      ),
      shown.length
        ? [...groups]
            .sort(([a], [b]) => (a === none) - (b === none) || a.localeCompare(b, undefined, { numeric: true }))
            .map(([key, workers]) =>
              h(
                "section",
                { key: `group ${key}`, "aria-label": key || "Workers" },
                h("h2", { class: groups.size > 1 && key ? "given" : "hidden" }, key ? name(key) : "Workers"),
                h(
                  "ul",
                  { class: "grid" },
                  workers.map((each) => workerCard(each, context)),
                ),
              ),
            )
        : h(
            "p",
            { class: "empty" },
            value.workers.length
              ? "No worker passes these filters."
              : "No worker is registered yet; an operator starts one.",
          ),
    ];
  },
};

function labelsOf(worker) {
  const labels = Object.entries(worker.labels).map(([key, value]) => `${key}=${value}`);
  return labels.concat((worker.taints ?? []).map((taint) => `taint ${taint}`));
}

function workerCard(each, context) {
  const notes = [
    /draining|leaving|decommissioned/.test(each.status)
      ? [
          each.status,
          each.since ? ` for ${duration(now() - each.since)}` : "",
          each.reason ? [": ", name(each.reason)] : null,
        ]
      : null,
    each.condition === "lost"
      ? [
          "lost",
          each.lostAt ? ` ${ago(each.lostAt)}` : "",
          each.reason ? `: ${each.reason}` : "",
          each.rememberedUntil ? [", remembered until ", time(each.rememberedUntil)] : null,
        ]
      : null,
    each.suspicion
      ? [
          `suspected for ${duration(now() - each.suspicion.since)}: ${plural(each.suspicion.executors.length, "executor")} failed soon after their start; until `,
          time(each.suspicion.until),
        ]
      : null,
    each.window
      ? [
          each.window.company
            ? [`window ${each.window.window} for `, name(each.window.company)]
            : `window ${each.window.window}`,
          " from ",
          time(each.window.begin),
          " to ",
          time(each.window.end),
          each.window.reason ? [": ", name(each.window.reason)] : null,
        ]
      : null,
    ...each.holds.map((hold) => [
      `${cores(hold.cores)} held for `,
      appLink(hold.app),
      ` for ${duration(now() - hold.since)}`,
      hold.reason === "reclaim"
        ? " by a claim"
        : hold.reason === "hold"
          ? ""
          : `, which is below its entitlement (${hold.reason})`,
    ]),
    each.excludedApps.length ? [`${plural(each.excludedApps.length, "app")} excluded after failures here`] : null,
  ].filter(Boolean);
  return h(
    "li",
    { key: each.worker, class: `worker ${each.condition}` },
    h("div", { class: "title" }, h("h3", {}, name(each.worker)), state(each.condition)),
    h(
      "p",
      { class: "faint" },
      each.host ? [name(each.host), each.rack ? [" · ", name(each.rack)] : null] : "host not known",
    ),
    labelsOf(each).length
      ? h(
          "ul",
          { class: "labels", "aria-label": "Labels" },
          labelsOf(each).map((label) =>
            h("li", { key: label }, h("a", { href: address("/workers", { ...context.query, label }) }, name(label))),
          ),
        )
      : null,
    bar(
      each.cores,
      each.runs.length
        ? [
            { kind: "granted", value: each.grantedCores },
            { kind: "held", value: each.holds.reduce((sum, hold) => sum + hold.cores, 0) },
          ]
        : [{ kind: "granted", value: each.grantedCores }],
      [],
      `${each.worker}: ${number(each.grantedCores)} of ${cores(each.cores)} granted`,
    ),
    h(
      "p",
      {},
      h("strong", {}, `${number(each.grantedCores)} of ${cores(each.cores)}`),
      `, ${memory(each.grantedMemory)} of ${memory(each.memory)}`,
    ),
    notes.length
      ? h(
          "ul",
          { class: "notes" },
          notes.map((note, index) => h("li", { key: index }, note)),
        )
      : null,
    each.runs.length
      ? h(
          "details",
          { key: "runs" },
          h("summary", {}, plural(each.runs.length, "executor")),
          h(
            "ul",
            { class: "runs" },
            each.runs.map((run) =>
              h(
                "li",
                { key: run.id },
                appLink(run.app),
                h("span", { class: "faint" }, ` ${cores(run.cores)} · `, name(run.company), ` · ${run.status}`),
              ),
            ),
          ),
        )
      : h("p", { class: "faint" }, each.condition === "lost" ? "" : "runs nothing"),
    may("cluster") && each.condition !== "lost"
      ? h(
          "div",
          { class: "buttons" },
          each.status === "draining"
            ? h(
                "button",
                {
                  type: "button",
                  class: "small",
                  "aria-label": `Undrain ${each.worker}`,
                  onclick: () =>
                    change(
                      context,
                      `${path("/v1/workers/", each.worker)}/undrain`,
                      {},
                      `${each.worker} is in service again`,
                    ),
                },
                "Undrain",
              )
            : each.status === "alive"
              ? h(
                  "button",
                  {
                    type: "button",
                    class: "small",
                    "aria-label": `Drain ${each.worker}`,
                    onclick: () => drain(context, each.worker),
                  },
                  "Drain",
                )
              : null,
        )
      : null,
  );
}

async function drain(context, worker) {
  const answer = await question(
    `Drain ${worker}?`,
    "Nothing new is granted on it; what runs there goes on.",
    [{ name: "reason", label: "Reason (may be left out)", input: { maxlength: 200 } }],
    "Drain",
  );
  if (answer)
    await change(
      context,
      `${path("/v1/workers/", worker)}/drain`,
      answer.reason ? { reason: answer.reason } : {},
      `${worker} is draining`,
    );
}
