// A department: what its companies hold together, what is in it, and its statement of a month.

import { h } from "/page/dom.js";
import { address, ask, cores, decimal, link, memory, name, page, plural, read } from "/page/core.js";
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
  table,
  unlessGone,
} from "/page/parts.js";

export const departmentLink = (department) => link("/department", { name: department }, name(department));

/** A department's figures under the names by which a company's bar is drawn. */
export const barOf = (each, total) =>
  companyBar({ ...each, company: each.department, claimCores: each.demandCores, partCores: each.entitledCores }, total);

/** Departments and companies from the top down, or what is in one of them: each after what it is in, with its depth. */
export function tree({ departments, companies }, top = "") {
  const rows = (within, depth) => [
    ...departments
      .filter((each) => each.parent === within)
      .flatMap((each) => [{ ...each, depth, within }, ...rows(each.department, depth + 1)]),
    ...companies.filter((each) => (each.department ?? "") === within).map((each) => ({ ...each, depth, within })),
  ];
  return rows(top, 0);
}

export const department = {
  async load(context) {
    const wanted = context.query.name;
    const listed = await read("/v1/overview", {}, context);
    const own = listed.departments.find((each) => each.department === wanted);
    const month = context.query.month;
    const statement =
      own && month && page.at === null
        ? await ask("/v1/statement", { month, department: wanted }, context).catch(unlessGone)
        : null;
    return { own, wanted, listed, statement };
  },
  draw({ own, wanted, listed, statement }, context) {
    if (!own) return [h("h1", {}, "Department"), h("p", { class: "empty" }, `There is no department ${wanted || ""}.`)];
    const total = listed.capacity[0].total;
    return [
      h("h1", {}, name(own.department)),
      h(
        "p",
        { class: "lead" },
        own.belowCores > 0
          ? h("strong", { class: "bad" }, `Apps in it are ${cores(own.belowCores)} below their entitlements. `)
          : "No app in it is below its entitlement. ",
        own.parent ? ["It is in ", departmentLink(own.parent), "."] : null,
      ),
      h(
        "section",
        {},
        h("h2", { id: "holds" }, "What it holds ", legend()),
        barOf(own, total),
        facts([
          ["Granted", cores(own.grantedCores), ", ", memory(own.grantedMemory)],
          ["Demand", cores(own.demandCores), ", ", memory(own.demandMemory)],
          ["Entitled", cores(own.entitledCores), ", ", memory(own.entitledMemory)],
          ["Quota", cores(own.quotaCores), ", ", memory(own.quotaMemory)],
          own.capCores === null ? null : ["Holds at most", cores(own.capCores), ", ", memory(own.capMemory)],
          own.lendLimit ? ["Lends at most", `${own.lendLimit} of its quota`] : null,
        ]),
      ),
      h(
        "section",
        {},
        h("h2", { id: "within" }, "What is in it"),
        table(
          "Departments and companies in it, in cores",
          ["Name", num("Granted"), num("Demand"), num("Entitled"), num("Quota")],
          tree(listed, own.department).map((each) =>
            h(
              "tr",
              { key: each.company ? `company ${each.company}` : `department ${each.department}` },
              h(
                "th",
                { scope: "row", class: `in-${each.depth}` },
                each.company ? companyLink(each.company) : departmentLink(each.department),
              ),
              numCell(cores(each.grantedCores)),
              numCell(cores(each.demandCores)),
              numCell(cores(each.entitledCores)),
              numCell(cores(each.quotaCores)),
            ),
          ),
          "Nothing is in it.",
        ),
      ),
      page.session.can.statement && page.at === null
        ? h("section", {}, h("h2", { id: "statement" }, "Statement"), statementPart(own, statement, context))
        : null,
    ];
  },
};

function statementPart(own, statement, context) {
  const month = context.query.month;
  return [
    monthForm(month, (chosen) => context.go(address("/department", { name: own.department, month: chosen }))),
    statement?.detail ? h("p", { class: "empty" }, statement.detail) : null,
    statement?.value ? stated(own, month, statement.value) : null,
  ];
}

function stated(own, month, value) {
  const row = (key, what, each) =>
    h(
      "tr",
      { key },
      h("th", { scope: "row" }, what),
      numCell(decimal(each.grantedCoreHours)),
      numCell(decimal(each.requestedCoreHours)),
      numCell(plural(each.executorsLost, "executor")),
    );
  return [
    digest("Digest", `${value.log.to}:${value.log.digest}`),
    table(
      "Use by department and company",
      ["Of", num("Granted core-hours"), num("Requested core-hours"), num("Lost to claims")],
      [
        ...value.rows.map((each) => {
          const place = [...each.departments, each.company].filter(Boolean).join(" / ");
          return row(`${each.level} ${place}`, name(place), each);
        }),
        row("total", "all", value.total),
      ],
      "",
    ),
    h(
      "button",
      { type: "button", onclick: () => download(`statement-${own.department}-${month}.json`, value) },
      "Download with its digest",
    ),
  ];
}
