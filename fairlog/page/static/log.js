// The log as it comes, the card of a position, and the audit: of this log, or of a file.

import { h } from "/page/dom.js";
import { address, ask, link, name, number, page, plural, read, said, time } from "/page/core.js";
import { digest, facts, num, numCell, table, words } from "/page/parts.js";

const KINDS = [
  "",
  "AppRegistered",
  "AppAdmitted",
  "AppRemoved",
  "ExecutorAllocated",
  "ExecutorRevoked",
  "ExecutorRemoved",
  "WorkerRegistered",
  "WorkerRemoved",
  "WorkerSuspected",
  "RoomHeld",
  "NeedBegan",
  "NeedEnded",
  "SlotAwaited",
  "SlotBegan",
  "SlotEnded",
  "TargetSet",
  "TargetEnded",
  "EditionChanged",
  "CommandRefused",
  "MasterElected",
  "ClusterConfigured",
  "CompanyChanged",
  "LogSealed",
];
let verdict = null;
const namesNobody = (error) => {
  if (error.status !== 404 && error.status !== 422) throw error;
  return { entries: [], before: null, detail: error.message };
};

export const log = {
  async load(context) {
    const { seq, before, company, app, kind, audit } = context.query;
    const [card, listed, checked, overview] = await Promise.all([
      seq ? ask(`/v1/entries/${encodeURIComponent(seq)}`, {}, context).then((answer) => answer.value) : null,
      read("/v1/entries", { before, company, app, kind, limit: 100 }, context).catch(namesNobody),
      audit && page.at === null
        ? ask("/v1/audit", {}, context).then(
            (answer) => answer.value,
            (error) => {
              if (error.name === "AbortError") throw error;
              return { detail: error.message };
            },
          )
        : null,
      page.at === null ? read("/v1/overview", {}, context) : null,
    ]);
    return { card, listed, checked, audited: overview?.audited };
  },
  draw({ card, listed, checked, audited }, context) {
    const query = context.query;
    const change = (changed) => context.change({ before: null, seq: null, ...changed });
    const typed = (field, label) =>
      h(
        "label",
        { key: field },
        label,
        h("input", {
          type: "search",
          value: query[field] ?? "",
          spellcheck: "false",
          onchange: (event) => change({ [field]: event.target.value.trim() }),
        }),
      );
    return [
      h("h1", {}, "Log"),
      card ? cardPart(card, query) : null,
      h(
        "section",
        {},
        h("h2", { id: "audit" }, "Audit"),
        audited ? [followed(audited), digest("Checkpoint of the auditor", `${audited.seq}:${audited.digest}`)] : null,
        auditPart(checked, query, context),
      ),
      h(
        "section",
        {},
        h("h2", { id: "entries" }, "Entries"),
        h(
          "form",
          { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
          typed("company", "Company"),
          typed("app", "App"),
          h(
            "label",
            { key: "kind" },
            "Event",
            h(
              "select",
              { value: query.kind ?? "", onchange: (event) => change({ kind: event.target.value }) },
              KINDS.map((each) => h("option", { value: each, key: each }, each ? words(each) : "all")),
            ),
          ),
          query.company || query.app || query.kind ? h("a", { class: "clear", href: address("/log") }, "Clear") : null,
        ),
        table(
          "Entries of the log, the newest first",
          [num("Position"), "When", "Event", "About", "Who asked"],
          listed.entries.map((each) =>
            h(
              "tr",
              { key: each.seq, class: String(each.seq) === query.seq ? "chosen" : null },
              h(
                "th",
                { scope: "row", class: "number" },
                h("a", { href: address("/log", { ...query, seq: each.seq }) }, number(each.seq)),
              ),
              h("td", {}, time(each.at)),
              h("td", {}, words(each.type)),
              h("td", {}, about(each)),
              h(
                "td",
                {},
                each.by?.account
                  ? name(each.by.account)
                  : h(
                      "span",
                      { class: "faint" },
                      each.command || each.cause
                        ? ""
                        : /^(LogSealed|KeyChanged|MasterElected)$/.test(each.type)
                          ? "the master"
                          : "decided",
                    ),
              ),
            ),
          ),
          listed.detail || "No entry passes these filters.",
        ),
        listed.before
          ? h(
              "nav",
              { class: "pages", "aria-label": "Pages" },
              h("a", { href: address("/log", { ...query, seq: null, before: listed.before }) }, "Earlier ›"),
              query.before ? h("a", { href: address("/log", { ...query, before: null, seq: null }) }, "Newest") : null,
            )
          : null,
      ),
    ];
  },
};

function about(each) {
  const data = each.data;
  const named = [
    data.executor,
    data.driver,
    each.app,
    data.worker,
    data.account,
    data.company,
    data.master,
    data.name,
    data.workers?.join(", "),
  ];
  const main = named.find((text) => text && typeof text === "string") ?? ""; // the driver of a submission is an amount
  return [
    each.app ? link("/app", { id: each.app }, name(main)) : name(main),
    data.worker && main !== data.worker ? [" on ", name(data.worker)] : null,
    data.reason ? [": ", name(String(data.reason))] : null,
    data.message ? [" ", name(data.message)] : null,
  ];
}

function cardPart(card, query) {
  const reasons = card.reasons;
  return h(
    "section",
    { class: "card" },
    h("h2", { class: "plain" }, `Position ${number(card.seq)}: ${words(card.type)}`),
    card.text ? h("p", { class: "lead" }, name(card.text)) : null,
    facts([
      ["When", time(card.at, { long: true })],
      ["Turn", link("/log", { ...query, seq: card.turn }, number(card.turn))],
      ["Who asked", card.by ? name(card.by) : "nobody: the rules decided"],
      card.command ? ["Command", words(card.command)] : null,
    ]),
    reasons?.why?.length
      ? h(
          "ul",
          {},
          reasons.why.map((each, index) =>
            h("li", { key: index }, h("strong", { class: "rule" }, each.rule), " ", name(each.text)),
          ),
        )
      : null,
    reasons?.companies
      ? table(
          "Companies that could be next",
          ["Company", num("Share"), "Takes part", num("Last selected")],
          reasons.companies.map((each) =>
            h(
              "tr",
              { key: each.company },
              h("th", { scope: "row" }, name(each.company)),
              numCell(each.share),
              h("td", {}, each.takesPart ? "yes" : "no"),
              numCell(each.lastSelected ? number(each.lastSelected) : "never"),
            ),
          ),
          "",
        )
      : null,
    reasons?.users
      ? table(
          "The next app of each user",
          ["User", "App", "Within the quota"],
          reasons.users.map((each) =>
            h(
              "tr",
              { key: `${each.company}/${each.user}` },
              h("th", { scope: "row" }, name(`${each.company} / ${each.user}`)),
              h("td", {}, name(each.app)),
              h("td", {}, each.passes ? "yes" : "no"),
            ),
          ),
          "",
        )
      : null,
    reasons?.workers
      ? table(
          "Workers with room",
          [num("Number"), "Worker", "Free"],
          reasons.workers.map((each) =>
            h(
              "tr",
              { key: each.worker, class: each.chosen ? "chosen" : null },
              numCell(number(each.number)),
              h("th", { scope: "row" }, name(each.worker), each.chosen ? " ← chosen" : ""),
              h("td", {}, each.free),
            ),
          ),
          "",
        )
      : null,
    h(
      "details",
      { key: "raw" },
      h("summary", {}, "All fields"),
      h("pre", { tabindex: 0, "aria-label": "All fields" }, JSON.stringify(card.data, null, 2)),
    ),
    h("p", {}, h("a", { href: address("/", { at: card.seq }) }, "Show the cluster at this moment")),
  );
}

/** How far the auditor that follows the log is, and what it found. */
function followed(audited) {
  return h(
    "p",
    {},
    audited.deviations
      ? h(
          "strong",
          { class: "bad" },
          `✕ ${plural(audited.deviations, "deviation")}, the first at position ${number(audited.first)}: `,
          name(audited.verdict),
        )
      : h("strong", { class: "good" }, "✓ No deviation "),
    ` up to position ${number(audited.seq)}: the auditor has followed the log until `,
    time(audited.at),
    audited.trouble ? [", and waits: ", name(audited.trouble)] : "",
    ".",
  );
}

function auditPart(checked, query, context) {
  const file = async (found) => {
    if (!found) return;
    verdict = { name: found.name, busy: true };
    context.redraw();
    try {
      if (found.size > 16 * 1024 * 1024)
        throw new Error("a file of at most 16 MiB can be read here; run `fairlog audit FILE` for a larger one");
      const answer = await ask("/v1/audit", {}, { method: "POST", body: await found.text() });
      verdict = { name: found.name, ...answer.value };
    } catch (error) {
      verdict = { name: found.name, problem: error.message };
      said(error.message, true);
    }
    context.redraw();
  };
  return [
    checked
      ? outcome(checked)
      : page.at === null
        ? h(
            "p",
            {},
            "Every decision of this log can be worked out again. ",
            h("a", { class: "button", href: address("/log", { ...query, audit: "yes" }) }, "Audit now"),
          )
        : null,
    h(
      "div",
      {
        class: "drop",
        ondragover: (event) => {
          event.preventDefault();
          event.currentTarget.classList.add("over");
        },
        ondragleave: (event) => event.currentTarget.classList.remove("over"),
        ondrop: (event) => {
          event.preventDefault();
          event.currentTarget.classList.remove("over");
          file(event.dataTransfer.files[0]);
        },
      },
      h(
        "label",
        {},
        "Drop a file with an exported log here, or choose one: ",
        h("input", { type: "file", accept: ".jsonl,.json,.ndjson", onchange: (event) => file(event.target.files[0]) }),
      ),
      verdict
        ? h(
            "div",
            { role: "status" },
            h("p", {}, h("strong", {}, name(verdict.name)), verdict.busy ? " is being audited …" : ""),
            verdict.problem ? h("p", { class: "bad" }, name(verdict.problem)) : verdict.busy ? null : outcome(verdict),
          )
        : null,
    ),
  ];
}

function outcome(checked) {
  if (checked.detail) return h("p", { class: "bad" }, checked.detail);
  return [
    h(
      "p",
      {},
      checked.verdicts.length
        ? h("strong", { class: "bad" }, "✕ This log does not follow its rules. ")
        : h("strong", { class: "good" }, "✓ This log follows its rules. "),
      `${number(checked.events)} entries and ${plural(checked.decisions, "decision")} were worked out again, up to position ${number(checked.endsAt)}.`,
    ),
    checked.verdicts.length
      ? h(
          "ol",
          {},
          checked.verdicts.slice(0, 20).map((each, index) => h("li", { key: index }, name(each.verdict ?? each.done))),
        )
      : null,
    digest("Checkpoint", `${checked.endsAt}:${checked.digest}`),
  ];
}
