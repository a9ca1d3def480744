// The report of `fairlog fairness --html`: a file that holds its figures and draws them as the page does.

import { h, show } from "/page/dom.js";
import { dots, overlaid } from "/page/charts.js";
import { duration, name, plural } from "/page/core.js";
import { overTime, party, verdict } from "/page/fairness.js";

const { report, waits } = JSON.parse(document.getElementById("figures").textContent);
const { fromAt, toAt } = report;
const queue = report.series.map((point) => ({ at: point.at, value: point.queueLength }));
const longest = Math.max(1, ...waits.map((wait) => wait.waitMs / 1000));
const companies = [...new Set(waits.map((wait) => wait.company))];

function waited(company) {
  const own = waits.filter((wait) => wait.company === company);
  const points = own.map((wait) => ({
    at: wait.at,
    value: wait.waitMs / 1000,
    title: `${wait.app}, ${wait.user}: ${duration(wait.waitMs)}`,
  }));
  const label = `${company}: the waits of ${plural(own.length, "app")} by the time of admission, in seconds`;
  return h(
    "figure",
    { key: company },
    h("figcaption", {}, h("h3", {}, name(company)), h("span", { class: "faint" }, plural(own.length, "app"))),
    dots(label, points, fromAt, toAt, longest),
  );
}

show(
  document.getElementById("drawn"),
  verdict(report),
  overTime(report, report.rows, (row) => name(party(row))),
  h("h2", {}, "Apps pending"),
  h(
    "div",
    { class: "multiples" },
    h(
      "figure",
      {},
      overlaid("Apps pending over time", queue, [], fromAt, toAt, Math.max(1, ...queue.map((point) => point.value))),
    ),
  ),
  companies.length
    ? [
        h("h2", {}, "Waits by the time of admission"),
        h("div", { class: "multiples" }, companies.map(waited)),
        h("p", { class: "faint" }, "Vertical axes: seconds."),
      ]
    : null,
);
