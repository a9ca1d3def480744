// The settings in force, and who changed what.

import { h } from "/page/dom.js";
import { link, name, number, read, time } from "/page/core.js";
import { numCell, table, words } from "/page/parts.js";

/** Numbers from here on are times in ms: no amount comes near. */
const FIRST_TIME = 1e12;
const shown = (value) => (typeof value === "number" && value >= FIRST_TIME ? time(value) : name(text(value)));
const text = (value) =>
  value === null || value === undefined || value === ""
    ? "none"
    : Array.isArray(value)
      ? value.join(", ")
      : typeof value === "object"
        ? JSON.stringify(value)
        : String(value);

/** The name of a field as people write it: memory_mb is memory in MiB. */
const inWords = (key) =>
  key.replace(/_mb$/, "_in MiB").replace(/_s$/, "_in s").replace(/_ms$/, "_in ms").replaceAll("_", " ");

export const settings = {
  async load(context) {
    const [now, history] = await Promise.all([
      read("/v1/settings", {}, context),
      read("/v1/history", { limit: 200 }, context),
    ]);
    return { now, history };
  },
  draw({ now, history }) {
    return [
      h("h1", {}, "Settings and history"),
      h(
        "section",
        {},
        h("h2", { id: "changes" }, "Who changed what"),
        table(
          "Who changed what, the newest first",
          ["When", "Who", "What", "To", { text: "Position", class: "number" }],
          history.changes.map((each) =>
            h(
              "tr",
              { key: each.seq },
              h("td", {}, time(each.at)),
              h(
                "td",
                {},
                each.by
                  ? [name(each.by), each.role ? h("span", { class: "faint" }, ` ${each.role}`) : null]
                  : h("span", { class: "faint" }, "the master"),
              ),
              h("td", {}, words(each.type)),
              h(
                "td",
                {},
                each.type === "ClusterConfigured" && !each.asked
                  ? "the defaults"
                  : Object.entries(each.change)
                      .filter(([, value]) => !["none", "", "{}"].includes(text(value)))
                      .map(([key, value]) =>
                        h(
                          "span",
                          { class: "pair", key },
                          h("span", { class: "faint" }, `${each.type === "ClusterConfigured" ? key : inWords(key)} `),
                          key === "labels"
                            ? name(
                                Object.entries(value)
                                  .map((pair) => pair.join("="))
                                  .join(" "),
                              )
                            : shown(value),
                          " ",
                        ),
                      ),
              ),
              numCell(link("/log", { seq: each.seq }, number(each.seq))),
            ),
          ),
          "Nothing was changed yet.",
        ),
      ),
      h(
        "section",
        {},
        h("h2", { id: "force" }, "Settings in force"),
        table(
          "Settings in force",
          ["Setting", "Value"],
          Object.entries(now).map(([key, value]) =>
            h("tr", { key }, h("th", { scope: "row" }, h("code", {}, key)), h("td", {}, name(text(value)))),
          ),
          "",
        ),
      ),
    ];
  },
};
