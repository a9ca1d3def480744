// What each company was entitled to, and what it held, over time.

import { h } from "/page/dom.js";
import { address, coreTime, decimal, duration, link, name, number, paged, plural, read } from "/page/core.js";
import { shares } from "/page/charts.js";
import { num, numCell, table } from "/page/views.js";

const PARTIES = 24;

export const fairness = {
  load: (context) => read("/v1/fairness", { by: context.query.by }, context),
  draw(value, context) {
    const by = context.query.by || "company";
    const { rows, series, cluster } = value;
    const party = (row) => (row.user ? `${row.company} ${row.user}` : row.company);
    const most = Math.max(1, ...series.flatMap((point) => Object.values(point.shares).flatMap((share) => [share.entitled, share.occupied])));
    const short = rows.filter((row) => row.shortfallCoreS > 0).sort((a, b) => b.shortfallCoreS - a.shortfallCoreS);
    const owed = short.reduce((sum, row) => sum + row.shortfallCoreS, 0);
    const beyond = rows.reduce((sum, row) => sum + row.beyondQuotaCoreS, 0);
    const { part: shown, nav } = paged(rows, "/fairness", context.query, "page", PARTIES);
    const span = value.toAt - value.fromAt;
    return [
      h("h1", {}, short.length
        ? ["Of what was due, ", name(party(short[0])), ` missed the most: ${coreTime(short[0].shortfallCoreS)} of ${coreTime(((short[0].entitledCores ?? 0) * span) / 1000)}; altogether ${coreTime(owed)} were due and not held`, beyond > 0 ? `, ${coreTime(beyond)} of them because quotas allow no more.` : "."]
        : "Everybody held all that was due at every moment of this log."),
      h("p", { class: "faint" }, `Over ${duration(span)}, up to position ${number(value.log.to)}`, cluster.jain !== null && cluster.jain !== undefined ? `; Jain's index ${cluster.jain.toFixed(2)} (1 = all equally well served)` : "", ". Entitled: what everybody would have if all shares rose together until each demand is met or the cluster is full. Held: what counts as occupied."),
      h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, h("label", {}, "By", h("select", { value: by, onchange: (event) => context.go(address("/fairness", { ...context.query, by: event.target.value })) }, ["company", "user"].map((each) => h("option", { value: each, key: each }, each))))),
      h("h2", {}, "Over time ", h("span", { class: "legend" }, h("span", { class: "key entitled" }), "entitled ", h("span", { class: "key granted" }), "held ", h("span", { class: "key short" }), "short")),
      series.length ? [h("div", { class: "multiples" }, shown.map((row) => {
        const label = party(row);
        const points = series.map((point) => ({ at: point.at, entitled: point.shares[label]?.entitled ?? 0, held: point.shares[label]?.occupied ?? 0 }));
        const words = `${label}: entitled to ${decimal(row.entitledCores ?? 0)} cores on average, held ${decimal(row.occupiedCores ?? 0)}, ${coreTime(row.shortfallCoreS)} short`;
        return h("figure", { key: label }, h("figcaption", {}, h("h3", {}, link("/company", { name: row.company }, name(label))), h("span", { class: row.shortfallCoreS ? "bad" : "faint" }, `${coreTime(row.shortfallCoreS)} short`)),
          shares(words, points, value.fromAt, value.toAt, most));
      })), nav] : h("p", { class: "empty" }, "Nobody has asked for anything yet."),
      h("p", { class: "faint" }, "Vertical axes: cores."),
      h("section", {}, h("h2", { id: "figures" }, "Figures"), table("Figures by party", [by === "user" ? "User" : "Company", num("Entitled"), num("Held"), num("Short"), num("Longest out of turn"), num("Median wait"), num("Still waiting")],
        shown.map((row) => h("tr", { key: party(row) }, h("th", { scope: "row" }, name(party(row))), numCell(`${decimal(row.entitledCores ?? 0)} cores`), numCell(`${decimal(row.occupiedCores ?? 0)} cores`), numCell(`${coreTime(row.shortfallCoreS)}`),
          numCell(duration(row.longestOutOfTurnMs)), numCell(duration(row.waitP50Ms)), numCell(plural(row.stillWaiting, "app")))), "No figures yet."), nav),
    ];
  },
};
