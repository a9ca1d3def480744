// The apps, filtered and sorted by the address.

import { h } from "/page/dom.js";
import {
  address,
  cause,
  causes,
  cores,
  duration,
  link,
  name,
  now,
  number,
  plural,
  read,
  state,
  time,
} from "/page/core.js";
import { actions, appLink, cell, companyLink, numCell, progress, table } from "/page/parts.js";

const STATES = [
  "living",
  "pending",
  "waiting",
  "running",
  "ended",
  "finished",
  "failed",
  "killed",
  "unmet",
  "expired",
  "all",
];
const STATE_WORDS = { living: "not ended", all: "all" };
const MOST = 100;

export const apps = {
  load(context) {
    const { start, sort, order, ...filters } = context.query;
    return read(
      "/v1/board",
      { ...filters, start, limit: MOST, sort, descending: order ? order === "down" : null },
      context,
    );
  },
  draw(value, context) {
    const query = context.query;
    const to = (changed) => address("/apps", { ...query, start: null, ...changed });
    const field = (field_, label, control) => h("label", { key: field_ }, label, control);
    const choose = (field_, label, options) =>
      field(
        field_,
        label,
        h(
          "select",
          {
            name: field_,
            value: query[field_] ?? "",
            onchange: (event) => context.change({ start: null, [field_]: event.target.value }),
          },
          options.map(([each, text]) => h("option", { value: each, key: each }, text)),
        ),
      );
    const typed = (field_, label) =>
      field(
        field_,
        label,
        h("input", {
          name: field_,
          type: "search",
          value: query[field_] ?? "",
          spellcheck: "false",
          onchange: (event) => context.change({ start: null, [field_]: event.target.value.trim() }),
        }),
      );
    const sorted = query.sort || "submitted";
    const down = (query.order || "down") === "down";
    const head = (key, text, numeric) =>
      h(
        "th",
        {
          scope: "col",
          role: "columnheader",
          class: numeric ? "number" : null,
          "aria-sort": sorted === key ? (down ? "descending" : "ascending") : null,
        },
        h(
          "a",
          { href: to({ sort: key, order: sorted === key && down ? "up" : "down" }) },
          text,
          sorted === key ? h("span", { "aria-hidden": "true" }, down ? " ▾" : " ▴") : null,
        ),
      );
    const first = value.start + 1;
    const last = value.start + value.apps.length;
    return [
      h("h1", {}, plural(value.number, "app"), filtersText(query)),
      h(
        "form",
        { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
        typed("company", "Company"),
        typed("user", "User"),
        choose(
          "state",
          "State",
          STATES.map((each) => [each === "living" ? "" : each, STATE_WORDS[each] || each]),
        ),
        choose("reason", "Waits because", [["", "any reason"], ...Object.entries(causes())]),
        typed("text", "Id contains"),
        Object.values(query).some(Boolean) ? h("a", { href: address("/apps"), class: "clear" }, "Clear") : null,
      ),
      table(
        "Apps",
        [
          head("app", "App"),
          head("company", "Company"),
          head("user", "User"),
          head("state", "State"),
          head("cores", "Cores", true),
          "Progress",
          head("waited", "Waited"),
          head("submitted", "Submitted"),
          { text: h("span", { class: "hidden" }, "Actions") },
        ],
        value.apps.map((app) =>
          h(
            "tr",
            { key: app.app },
            h(
              "th",
              { scope: "row" },
              appLink(app.app),
              app.name !== app.app ? h("span", { class: "faint sub" }, name(app.name)) : null,
            ),
            cell(companyLink(app.company)),
            cell(link("/apps", { ...query, user: app.user, company: app.company, start: null }, name(app.user))),
            cell(state(app.state), app.cause ? h("span", { class: "sub" }, cause(app.cause, app.rule)) : null),
            numCell(`${number(app.grantedCores)} of ${cores(app.requestedCores)}`),
            cell(progress(app)),
            h("td", { class: "short" }, duration((app.admittedAt ?? app.endedAt ?? now()) - app.submittedAt)),
            cell(time(app.submittedAt)),
            h("td", { class: "last" }, actions(context, app)),
          ),
        ),
        "No app passes these filters.",
      ),
      value.number > value.apps.length
        ? h(
            "nav",
            { class: "pages", "aria-label": "Pages" },
            value.start > 0
              ? h(
                  "a",
                  { href: address("/apps", { ...query, start: Math.max(0, value.start - MOST) || null }) },
                  "‹ Before",
                )
              : null,
            h("span", {}, `${number(first)} to ${number(last)} of ${number(value.number)}`),
            last < value.number
              ? h("a", { href: address("/apps", { ...query, start: value.start + MOST }) }, "After ›")
              : null,
          )
        : null,
    ];
  },
};

function filtersText(query) {
  const parts = [
    query.state && query.state !== "all" ? ` ${query.state}` : query.state ? "" : " not ended",
    query.company ? [" of ", name(query.company)] : null,
    query.user ? [" by ", name(query.user)] : null,
    query.reason ? `, because ${causes()[query.reason] || query.reason}` : null,
  ];
  return h("span", { class: "faint" }, parts);
}
