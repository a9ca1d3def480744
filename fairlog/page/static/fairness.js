// What each company was entitled to, and what it held, over time; the report of a file is drawn by the same parts.

import { h } from "/page/dom.js";
import { coreTime, decimal, duration, link, name, number, paged, plural, read } from "/page/core.js";
import { shares } from "/page/charts.js";
import { num, numCell, table } from "/page/parts.js";

const PARTIES = 24;

export const party = (row) => row.department || (row.user ? `${row.company} ${row.user}` : row.company);

/** Who missed the most of what was due, and below it all that was due and not held. */
export function verdict({ rows, fromAt, toAt }) {
  const short = rows.filter((row) => row.shortfallCoreS > 0).sort((a, b) => b.shortfallCoreS - a.shortfallCoreS);
  if (!short.length) return h("h1", {}, "Everybody held all that was due at every moment of this log.");
  const owed = short.reduce((sum, row) => sum + row.shortfallCoreS, 0);
  const beyond = rows.reduce((sum, row) => sum + row.beyondQuotaCoreS, 0);
  const due = ((short[0].entitledCores ?? 0) * (toAt - fromAt)) / 1000;
  return [
    h(
      "h1",
      {},
      "Of what was due, ",
      name(party(short[0])),
      ` missed the most: ${coreTime(short[0].shortfallCoreS)} of ${coreTime(due)}.`,
    ),
    h(
      "p",
      {},
      `Altogether ${coreTime(owed)} were due and not held`,
      beyond > 0 ? `, ${coreTime(beyond)} of them because quotas allow no more.` : ".",
    ),
  ];
}

const key = (kind, text) => [h("span", { class: `key ${kind}` }), `${text} `];

/** A drawing for each of `rows`, all on one scale; `titled` makes the title of one. */
export function overTime({ series, fromAt, toAt }, rows, titled) {
  const all = series.flatMap((point) => Object.values(point.shares));
  const most = Math.max(1, ...all.flatMap((share) => [share.entitled, share.occupied]));
  const figure = (row) => {
    const label = party(row);
    const points = series.map((point) => ({
      at: point.at,
      entitled: point.shares[label]?.entitled ?? 0,
      held: point.shares[label]?.occupied ?? 0,
    }));
    const words = `${label}: entitled to ${decimal(row.entitledCores ?? 0)} cores on average, held ${decimal(row.occupiedCores ?? 0)}, ${coreTime(row.shortfallCoreS)} short`;
    return h(
      "figure",
      { key: label },
      h(
        "figcaption",
        {},
        h("h3", {}, titled(row)),
        h("span", { class: row.shortfallCoreS ? "bad" : "faint" }, `${coreTime(row.shortfallCoreS)} short`),
      ),
      shares(words, points, fromAt, toAt, most),
    );
  };
  return [
    h(
      "h2",
      {},
      "Over time ",
      h("span", { class: "legend" }, key("entitled", "entitled"), key("granted", "held"), key("short", "short")),
    ),
    series.length
      ? h("div", { class: "multiples" }, rows.map(figure))
      : h("p", { class: "empty" }, "Nobody has asked for anything yet."),
    h("p", { class: "faint" }, "Vertical axes: cores."),
  ];
}

export const fairness = {
  load: (context) => read("/v1/fairness", { by: context.query.by }, context),
  draw(value, context) {
    const by = context.query.by || "company";
    const { jain } = value.cluster;
    const { part: shown, nav } = paged(value.rows, "/fairness", context.query, "page", PARTIES);
    const titled = (row) =>
      row.department ? name(row.department) : link("/company", { name: row.company }, name(party(row)));
    return [
      verdict(value),
      h(
        "p",
        { class: "faint" },
        `Over ${duration(value.toAt - value.fromAt)}, up to position ${number(value.log.to)}`,
        jain !== null && jain !== undefined ? `; Jain's index ${jain.toFixed(2)} (1 = all equally well served)` : "",
        ". Entitled: what everybody would have if all shares rose together until each demand is met or the cluster is full. Held: what executors and drivers were granted.",
      ),
      h(
        "form",
        { class: "filters", onsubmit: (event) => event.preventDefault() },
        h(
          "label",
          {},
          "By",
          h(
            "select",
            {
              value: by,
              onchange: (event) => context.change({ by: event.target.value }),
            },
            ["company", "user", "department"].map((each) => h("option", { value: each, key: each }, each)),
          ),
        ),
      ),
      overTime(value, shown, titled),
      nav,
      h(
        "section",
        {},
        h("h2", { id: "figures" }, "Figures"),
        table(
          "Figures by party",
          [
            { user: "User", department: "Department" }[by] ?? "Company",
            num("Entitled"),
            num("Held"),
            num("Short"),
            num("Longest out of turn"),
            num("Median wait"),
            num("Still waiting"),
          ],
          shown.map((row) =>
            h(
              "tr",
              { key: party(row) },
              h("th", { scope: "row" }, name(party(row))),
              numCell(`${decimal(row.entitledCores ?? 0)} cores`),
              numCell(`${decimal(row.occupiedCores ?? 0)} cores`),
              numCell(coreTime(row.shortfallCoreS)),
              numCell(duration(row.longestOutOfTurnMs)),
              numCell(duration(row.waitP50Ms)),
              numCell(plural(row.stillWaiting, "app")),
            ),
          ),
          "No figures yet.",
        ),
        nav,
      ),
    ];
  },
};
