// A company: what it holds, its queue, whether it was treated fairly, and its statement.

import { h } from "/page/dom.js";
import { departmentLink } from "/page/department.js";
import {
  address,
  ask,
  cause,
  cores,
  coreTime,
  decimal,
  duration,
  link,
  memory,
  name,
  now,
  number,
  page,
  plural,
  read,
  time,
} from "/page/core.js";
import {
  companyBar,
  companyLink,
  digest,
  download,
  facts,
  legend,
  monthForm,
  num,
  numCell,
  path,
  table,
  unlessGone,
  used,
  waiter,
} from "/page/parts.js";

export const company = {
  async load(context) {
    const wanted = context.query.name || page.session.company;
    const listed = await read("/v1/overview", {}, context);
    if (!wanted) return { companies: listed.companies, total: listed.capacity[0].total };
    const at = path("/v1/companies/", wanted);
    const [card, decisions] = await Promise.all([
      read(`${at}/card`, {}, context),
      read(
        "/v1/entries",
        { company: wanted, kind: Object.keys(OF_RULE).join(","), before: context.query.before, limit: DECISIONS },
        context,
      ),
    ]);
    const mine =
      page.session.can.statement === "all" ||
      (page.session.can.statement === "company" && page.session.companies.includes(wanted));
    const month = context.query.month;
    const statement =
      mine && month && page.at === null ? await ask(`${at}/statement`, { month }, context).catch(unlessGone) : null;
    const audit = context.query.audit && page.at === null ? await auditOf(context) : null;
    const fairness = context.query.audit ? await read("/v1/fairness", {}, context).catch(unlessGone) : null;
    return { card, decisions, total: listed.capacity[0].total, statement, mine, audit, fairness };
  },
  draw(value, context) {
    if (value.companies) {
      return [
        h("h1", {}, "Companies"),
        value.companies.length ? legend() : null,
        h(
          "ul",
          { class: "choices" },
          value.companies.map((each) =>
            h(
              "li",
              { key: each.company },
              h(
                "p",
                {},
                h("strong", {}, companyLink(each.company)),
                ` ${cores(each.grantedCores)} granted of ${cores(each.quotaCores)} quota, ${plural(each.pending, "app")} pending`,
              ),
              companyBar(each, value.total),
            ),
          ),
        ),
        value.companies.length
          ? null
          : h("p", { class: "empty" }, "No company is registered yet; an operator adds one."),
      ];
    }
    const { card, statement, audit } = value;
    const quota =
      card.quota === "amounts"
        ? "amounts"
        : card.quota === "default"
          ? "an equal part of the cluster"
          : `${card.quota} of the cluster`;
    return [
      h("h1", {}, name(card.company)),
      h(
        "p",
        { class: "lead" },
        card.shortCores > 0
          ? h("strong", { class: "bad" }, `Its apps are ${cores(card.shortCores)} below their entitlements. `)
          : "No app of it is below its entitlement. ",
        card.pending
          ? [
              plural(card.pending, "app"),
              " pending",
              card.longest ? ["; the longest: ", waiter(card)] : ", on hold or waiting for other apps",
              ".",
            ]
          : "No app is pending.",
      ),
      h(
        "section",
        {},
        h("h2", { id: "holds" }, "What it holds ", legend()),
        companyBar(card, value.total),
        facts([
          ["Granted", cores(card.grantedCores), ", ", memory(card.grantedMemory)],
          ["Demand", cores(card.claimCores), ", ", memory(card.claimMemory)],
          ["Entitled", cores(card.partCores), ", ", memory(card.partMemory)],
          ["Quota", cores(card.quotaCores), ", ", memory(card.quotaMemory), h("span", { class: "faint" }, ` ${quota}`)],
          ["Below its entitlement", cores(card.shortCores)],
          ["Lent to it", cores(card.beyondCores)],
          card.department ? ["Department", departmentLink(card.department)] : null,
          ["May borrow", card.borrow ? "yes" : "no"],
          card.endIdle ? ["Ends what is unused", "yes"] : null,
        ]),
      ),
      h(
        "section",
        {},
        h("h2", { id: "queue" }, "Queue by user"),
        table(
          "Queue by user",
          ["User", num("Granted"), num("Occupied"), num("Admitted"), num("Pending"), num("Oldest wait")],
          card.byUser.map((each) =>
            h(
              "tr",
              { key: each.user },
              h("th", { scope: "row" }, link("/apps", { company: card.company, user: each.user }, name(each.user))),
              numCell(cores(each.grantedCores ?? 0)),
              numCell(cores(each.occupiedCores ?? 0)),
              numCell(plural(each.admitted, "app")),
              numCell(plural(each.pending, "app")),
              numCell(each.since ? duration(now() - each.since) : "–"),
            ),
          ),
          "Nobody of it has submitted an app.",
        ),
        Object.keys(card.causes).length
          ? h(
              "p",
              { class: "chips" },
              "Waiting because: ",
              Object.entries(card.causes).map(([word, count]) =>
                h(
                  "a",
                  { class: "chip", key: word, href: address("/apps", { company: card.company, reason: word }) },
                  cause(word),
                  ` ${number(count)}`,
                ),
              ),
            )
          : null,
      ),
      page.at === null
        ? h(
            "section",
            {},
            h(
              "h2",
              { id: "fair" },
              page.session.company === card.company
                ? "Was I treated fairly?"
                : ["Was ", name(card.company), " treated fairly?"],
            ),
            audit
              ? fairly(card, audit, value.fairness)
              : h(
                  "p",
                  {},
                  "Every decision can be worked out again from the log. ",
                  h(
                    "a",
                    {
                      class: "button",
                      href: address("/company", { ...context.query, name: card.company, audit: "yes" }),
                    },
                    "Check now",
                  ),
                ),
          )
        : null,
      value.mine && page.at === null
        ? h("section", {}, h("h2", { id: "statement" }, "Statement"), statementPart(card, statement, context))
        : null,
      h(
        "section",
        {},
        h("h2", { id: "concerned" }, "Decisions that concerned it"),
        concerned(value.decisions, context.query),
      ),
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
    h(
      "p",
      {},
      audit.verdicts.length
        ? h("strong", { class: "bad" }, `The log deviates from its rules in ${plural(audit.verdicts.length, "case")}. `)
        : h("strong", { class: "good" }, "✓ The log follows its rules. "),
      `Audited up to position ${number(audit.endsAt)}: ${number(audit.events)} entries and ${plural(audit.decisions, "decision")} were worked out again.`,
    ),
    audit.verdicts.length
      ? h(
          "ul",
          {},
          audit.verdicts.slice(0, 20).map((each, index) => h("li", { key: index }, name(each.verdict ?? each.done))),
        )
      : null,
    row
      ? h(
          "p",
          {},
          `On average it was entitled to ${decimal(row.entitledCores ?? 0)} cores and held ${decimal(row.occupiedCores ?? 0)}; `,
          row.shortfallCoreS > 0
            ? `${coreTime(row.shortfallCoreS)} were due and not held.`
            : "nothing was due that it did not hold.",
        )
      : null,
    digest("Checkpoint", `${audit.endsAt}:${audit.digest}`),
  ];
}

function statementPart(card, statement, context) {
  const { month } = context.query;
  return [
    monthForm(month, (chosen) => context.change({ name: card.company, month: chosen })),
    statement?.detail
      ? h("p", { class: "empty" }, statement.detail)
      : statement
        ? [
            facts([
              [
                "Granted",
                `${decimal(statement.value.total.grantedCoreHours)} core-hours, ${decimal(statement.value.total.grantedGiBHours)} GiB-hours`,
              ],
              [
                "Requested",
                `${decimal(statement.value.total.requestedCoreHours)} core-hours, ${decimal(statement.value.total.requestedGiBHours)} GiB-hours`,
              ],
              statement.value.total.spent ? ["Used", used(statement.value.total.spent)] : null,
              ["Lost to claims", plural(statement.value.total.executorsLost, "executor")],
            ]),
            digest("Digest", `${statement.value.log.to}:${statement.value.log.digest}`),
            table(
              "Use by user",
              ["User", num("Granted core-hours"), num("Requested core-hours"), num("Apps")],
              statement.value.users.map((each) =>
                h(
                  "tr",
                  { key: each.user },
                  h("th", { scope: "row" }, name(each.user)),
                  numCell(decimal(each.grantedCoreHours)),
                  numCell(decimal(each.requestedCoreHours)),
                  numCell(number(each.apps.length)),
                ),
              ),
              "Nobody used anything.",
            ),
            h(
              "button",
              { type: "button", onclick: () => download(`statement-${card.company}-${month}.json`, statement.value) },
              "Download with its digest",
            ),
          ]
        : null,
  ];
}

const DECISIONS = 50;
const OF_RULE = {
  AppAdmitted: "Admitted (A3, H4)",
  ExecutorAllocated: "Executors placed (P)",
  DriverAllocated: "Drivers placed (D2)",
  ExecutorRevoked: "Told to leave (A5, E, H7)",
  RoomReserved: "Room reserved (C7)",
  ReservationLapsed: "Reservations that lapsed (C7)",
  RoomHeld: "Room held (P8, E5)",
  HoldEnded: "Holds that ended (P8)",
  NeedBegan: "Needs that began (H6)",
  NeedEnded: "Needs that ended (H6)",
  SlotAwaited: "Slots awaited (H10)",
  SlotBegan: "Slots that began (H10)",
  SlotEnded: "Slots that ended (H10)",
  TargetSet: "Targets set (H6)",
  TargetEnded: "Targets that ended (H7)",
  AppReady: "Became ready (J2)",
  AppDue: "Times to begin that have come (J4)",
  AppExpired: "Time was over (X2)",
};

function concerned({ entries, before }, query) {
  const groups = new Map();
  for (const each of entries) {
    if (!groups.has(each.type)) groups.set(each.type, []);
    groups.get(each.type).push(each);
  }
  const to = (position, text) => h("a", { href: address("/company", { ...query, before: position }), key: text }, text);
  return [
    groups.size
      ? h(
          "div",
          { class: "groups" },
          [...groups].map(([type, found]) =>
            h(
              "details",
              { key: type, open: type === "AppAdmitted" },
              h("summary", {}, OF_RULE[type], h("span", { class: "faint" }, ` ${plural(found.length, "decision")}`)),
              h(
                "ol",
                { class: "decisions" },
                found.map((each) =>
                  h(
                    "li",
                    { key: each.seq },
                    time(each.at),
                    " ",
                    link(
                      "/log",
                      { seq: each.seq },
                      name(each.data.executor || each.data.app || each.type),
                      each.data.worker ? [" on ", name(each.data.worker)] : null,
                    ),
                  ),
                ),
              ),
            ),
          ),
        )
      : h("p", { class: "empty" }, before ? "No decision here was about it." : "No decision was about it."),
    before || query.before
      ? h(
          "nav",
          { class: "pages", "aria-label": "Pages of decisions" },
          query.before ? to(null, "‹ Newest") : null,
          entries.length
            ? h("span", { class: "faint" }, `positions ${number(entries.at(-1).seq)} to ${number(entries[0].seq)}`)
            : null,
          before ? to(before, "Earlier ›") : null,
        )
      : null,
  ];
}
