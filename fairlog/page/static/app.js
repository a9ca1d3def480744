// One app: what happened to it, why it waits, its timeline, tasks and executors.

import { timeline as drawn } from "/page/charts.js";
import { h } from "/page/dom.js";
import {
  address,
  ask,
  cause,
  cores,
  duration,
  link,
  memory,
  name,
  now,
  number,
  page,
  paged,
  plural,
  Problem,
  question,
  read,
  state,
  time,
} from "/page/core.js";
import {
  actions,
  appLink,
  cell,
  companyLink,
  facts,
  num,
  numCell,
  path,
  progress,
  table,
  unlessGone,
  used,
  words,
} from "/page/parts.js";

const ROWS = 100;

/** When it may start, and how far earlier estimates were off. */
function estimated({ estimates: [{ earliest, likely, latest, why }], errors }) {
  const said =
    earliest === null
      ? ["not by itself: ", name(why)]
      : [
          likely === null ? "" : ["probably at ", time(likely), ", "],
          latest === null ? ["with no latest time: ", name(why)] : ["at ", time(latest), " at the latest"],
          likely === null && latest !== null ? [", with no likely time: ", name(why)] : "",
        ];
  const half = duration(errors?.medianMs);
  const off = !errors
    ? ""
    : errors.number === 1
      ? ` The last estimate was off by ${half}.`
      : ` Half of the last ${number(errors.number)} estimates were off by ${half} or less, 9 in 10 by ${duration(errors.p90Ms)}.`;
  return h("p", { class: "starts" }, h("strong", {}, "When it starts: "), said, ".", off);
}

export const app = {
  async load(context) {
    if (!context.query.id) throw new Problem(400, "BadRequest", "name an app, as in /app?id=report-7");
    const at = path("/v1/apps/", context.query.id);
    const card = await read(`${at}/card`, { reason: context.query.reason }, context);
    context.first({ card });
    const [timeline, tasks, starts] = await Promise.all([
      read(`${at}/timeline`, {}, context).catch(unlessGone),
      page.at === null && card.tasks
        ? ask(
            `${at}/tasks`,
            {
              limit: ROWS,
              cursor: tasksPage(card, context).here > 1 ? (tasksPage(card, context).here - 1) * ROWS - 1 : null,
            },
            context,
          ).catch(unlessGone)
        : null,
      card.waitsFor ? read("/v1/estimates", { ids: card.app }, context).catch(unlessGone) : null,
    ]);
    const output = page.at === null && context.query.task !== undefined ? await outputOf(at, context) : null;
    return { card, timeline, tasks, output, starts };
  },
  draw(value, context) {
    const { card, timeline, tasks, output, starts } = value;
    const waits = card.waitsFor;
    const executors = paged([...(timeline?.executors || [])].reverse(), "/app", context.query, "executors", ROWS);
    const asked = paged([...(timeline?.asked || [])].reverse(), "/app", context.query, "asked", ROWS);
    return [
      h("h1", {}, name(card.app), " ", state(card.state)),
      h("p", { class: "happened" }, happened(card, timeline)),
      h(
        "p",
        { class: "lead" },
        card.name !== card.app ? [name(card.name), " · "] : null,
        companyLink(card.company),
        " / ",
        link("/apps", { company: card.company, user: card.user }, name(card.user)),
        " · submitted ",
        time(card.submittedAt),
        card.endedAt ? [" · ended ", time(card.endedAt)] : null,
        actions(context, card),
      ),
      card.detail ? h("p", { class: "detail" }, name(card.detail)) : null,
      card.standing ? h("p", {}, name(card.standing.text)) : null,
      waits
        ? h(
            "section",
            { class: "why" },
            h("h2", { id: "why" }, "Why it waits"),
            h(
              "p",
              {},
              cause(waits.cause),
              ": ",
              name(waits.text),
              ". ",
              h("span", { class: "rule" }, `Rule ${waits.rule}`),
            ),
            waits.facts.ahead?.length
              ? h("p", {}, h("strong", {}, "Who goes first: "), first(waits.facts.ahead))
              : null,
            card.queue
              ? h(
                  "p",
                  {},
                  `Number ${number(card.queue.place)} of ${number(card.queue.of)} that `,
                  name(card.user),
                  " has pending.",
                )
              : null,
            starts?.estimates?.length ? estimated(starts) : null,
            h("p", {}, h("strong", {}, "What would help: "), card.help),
          )
        : null,
      h(
        "section",
        {},
        h("h2", { id: "timeline" }, "Timeline"),
        timeline?.detail
          ? h("p", { class: "empty" }, timeline.detail)
          : timeline
            ? drawn(timeline, now(), context.query)
            : h("p", { class: "empty" }, "Asking the server …"),
      ),
      h(
        "section",
        {},
        h("h2", { id: "facts" }, "What it asked for"),
        facts([
          ["Cores", `${number(card.grantedCores)} granted of ${cores(card.requestedCores)}`],
          ["Memory", `${memory(card.grantedMemory)} granted of ${memory(card.requestedMemory)}`],
          [
            "Tasks",
            card.tasks
              ? [plural(card.tasks, "task"), ` of ${plural(card.coresPerTask, "core")} each`]
              : "none of its own",
          ],
          card.spent ? ["Used", used(card.spent)] : null,
          card.gang
            ? [
                "Gang",
                card.executors.length
                  ? card.executors.map((each) => [`rank ${each.rank} on `, name(each.host), " "])
                  : "all its executors at once, or none",
              ]
            : null,
          ["Priority", number(card.priority)],
          card.maxRuntime ? ["May run", duration(card.maxRuntime * 1000)] : null,
          card.require ? ["Requires", name(card.require.join(", "))] : null,
          card.avoid ? ["Avoids", name(card.avoid.join(", "))] : null,
          card.preferLabels ? ["Prefers", name(card.preferLabels.join(", "))] : null,
          card.tolerate ? ["Tolerates", name(card.tolerate.join(", "))] : null,
          card.after
            ? ["Starts after", Object.entries(card.after).map(([app, how]) => [appLink(app), ` (${how}) `])]
            : null,
          card.command.length
            ? ["Command", h("code", {}, name(card.command.join(" ")))]
            : ["Command", privatePart(card, context)],
          card.cwd ? ["Folder", h("code", {}, name(card.cwd))] : null,
          ...Object.entries(card.links ?? {})
            .filter(([, href]) => /^https?:/.test(href))
            .map(([label, href]) => [
              `Its ${label}`,
              h("a", { href, target: "_blank", rel: "noopener noreferrer" }, name(href)),
            ]),
        ]),
      ),
      tasks
        ? h(
            "section",
            {},
            h("h2", { id: "tasks" }, "Tasks ", card.progress ? progress(card) : null),
            tasksTable(card, tasks, context),
            tasks.items?.length ? tasksPage(card, context).nav : null,
            output ? outputPart(card, output, context) : null,
          )
        : null,
      timeline?.executors
        ? h(
            "section",
            {},
            h("h2", { id: "executors" }, "Executors"),
            table(
              "Executors",
              ["Executor", "Worker", num("Cores"), num("Memory"), "Granted", "Ran", "End", "Why there"],
              executors.part.map((lane) =>
                h(
                  "tr",
                  { key: lane.id },
                  h("th", { scope: "row" }, name(lane.id)),
                  cell(link("/workers", { worker: lane.worker }, name(lane.worker))),
                  numCell(cores(lane.cores)),
                  numCell(memory(lane.memory)),
                  cell(time(lane.from)),
                  cell(duration((lane.to ?? now()) - (lane.running ?? lane.from))),
                  cell(
                    lane.end ?? (lane.told ? "told to leave" : "runs"),
                    lane.loss?.window
                      ? h("span", { class: "sub" }, "before the window ", name(lane.loss.window))
                      : null,
                    lane.loss?.reason === "gang" ? h("span", { class: "sub" }, "with its gang") : null,
                    lane.loss?.claimant
                      ? h(
                          "span",
                          { class: "sub" },
                          "for ",
                          name(lane.loss.claimant),
                          " of ",
                          name(lane.loss.claimantCompany ?? ""),
                          h("span", { class: "rule" }, ` ${lane.loss.rule ?? ""}`),
                        )
                      : null,
                  ),
                  cell(link("/log", { seq: lane.seq }, "candidates")),
                ),
              ),
              "It had no executor yet.",
            ),
            executors.nav,
          )
        : null,
      timeline?.asked?.length
        ? h(
            "section",
            {},
            h("h2", { id: "asked" }, "Who asked for what"),
            table(
              "Who asked for what",
              ["When", "Who", "What", "Position"],
              asked.part.map((each) =>
                h(
                  "tr",
                  { key: each.seq },
                  cell(time(each.at)),
                  cell(name(each.account), h("span", { class: "faint" }, ` ${each.role}`)),
                  cell(
                    words(each.command),
                    each.reason ? [": ", name(each.reason)] : null,
                    each.refused ? h("span", { class: "bad" }, " refused: ", name(each.refused)) : null,
                  ),
                  cell(link("/log", { seq: each.seq }, number(each.seq))),
                ),
              ),
              "",
            ),
            asked.nav,
          )
        : null,
    ];
  },
};

/** What happened to the app, in a sentence. */
function happened(card, timeline) {
  const admitted = card.admittedAt ?? null;
  const waited = duration((admitted ?? card.endedAt ?? now()) - card.submittedAt);
  const many = timeline?.executors ? `, on ${plural(timeline.executors.length, "executor")}` : "";
  if (card.endedAt) {
    const end = ENDS[card.state] ?? `ended as ${card.state}`;
    return admitted === null
      ? `It ${end} after ${waited}, before it was admitted.`
      : `It waited ${waited}, ran for ${duration(card.endedAt - admitted)}${many}, and ${end}.`;
  }
  if (card.state === "running") return `It waited ${waited} and has run for ${duration(now() - admitted)}${many}.`;
  if (card.state === "waiting") return `It was admitted after ${waited}, and has no executor that runs.`;
  return card.ready
    ? `It has waited for ${waited} to be admitted.`
    : `It was submitted ${waited} ago and is not ready to start.`;
}

const ENDS = {
  finished: "finished",
  failed: "failed",
  killed: "was killed",
  expired: "was stopped at its maximum runtime",
  unmet: "ended, because what it was to start after ended otherwise",
};

function privatePart(card, context) {
  if (!page.session.can.private || !page.session.reasons.includes("private"))
    return h("span", { class: "faint" }, "not shown");
  return h(
    "button",
    {
      type: "button",
      class: "small",
      onclick: async () => {
        const answer = await question(
          "Show the private part",
          "Your account, the app and the reason are recorded.",
          [{ name: "reason", label: "Reason", input: { required: true, maxlength: 200 } }],
          "Show",
        );
        if (answer) context.change({ reason: answer.reason });
      },
    },
    "Show, with a reason",
  );
}

const AHEAD = 10;

/** The first of those that go before: apps by their ids, else companies and users. */
function first(ahead) {
  const told = ahead.slice(0, AHEAD).map((each, index) => [
    index ? ", " : "",
    typeof each === "string"
      ? appLink(each)
      : name(
          Object.values(each)
            .filter((part) => typeof part === "string")
            .join(" / "),
        ),
  ]);
  return [told, ahead.length > AHEAD ? ` and ${number(ahead.length - AHEAD)} more` : null];
}

const tasksPage = (card, context) => paged([], "/app", context.query, "tasks", ROWS, card.tasks);

function tasksTable(card, tasks, context) {
  if (tasks.detail) return h("p", { class: "empty" }, tasks.detail);
  return table(
    "Tasks",
    [num("Task"), "State", "Executor", num("Attempts"), "Message", { text: h("span", { class: "hidden" }, "Output") }],
    tasks.items.map((task) =>
      h(
        "tr",
        { key: task.task, class: String(task.task) === context.query.task ? "chosen" : null },
        h("th", { scope: "row", class: "number" }, number(task.task)),
        cell(state(task.state)),
        cell(task.executor ? name(task.executor) : "–"),
        numCell(number(task.attempts)),
        cell(task.exit_code ? `exit code ${task.exit_code} ` : null, task.message ? name(task.message) : null),
        cell(h("a", { href: address("/app", { ...context.query, task: task.task }) }, "Output")),
      ),
    ),
    "No task has begun.",
    { class: "tasks" },
  );
}

async function outputOf(at, context) {
  const { task, reason } = context.query;
  try {
    const [printed] = (await ask(`${at}/output`, { task, reason }, context)).items;
    return {
      parts: partsOf(printed),
      missing: printed.written[0] + printed.written[1] - atob(printed.output).length,
      task,
    };
  } catch (error) {
    if (error.name === "AbortError" || error.status === 401) throw error;
    return { problem: error.message, task };
  }
}

/** Pieces of output in their order, each of one stream. */
function partsOf({ output, stderr }) {
  const bytes = Uint8Array.from(atob(output), (each) => each.charCodeAt(0));
  const ends = [0, ...stderr.flat(), bytes.length];
  return ends.slice(1).map((end, index) => ({
    stream: index % 2 ? "stderr" : "stdout",
    text: new TextDecoder().decode(bytes.subarray(ends[index], end)),
  }));
}

/** Lines, each a list of pieces. */
function linesOf(parts) {
  const lines = [[]];
  for (const { stream, text } of parts) {
    text.split("\n").forEach((piece, index) => {
      if (index) lines.push([]);
      if (piece) lines.at(-1).push({ stream, piece });
    });
  }
  return lines;
}

/** The lines as few pieces. */
function joined(lines) {
  const pieces = [];
  for (const { stream, piece } of lines.flatMap((line, index) =>
    index ? [{ stream: "stdout", piece: "\n" }, ...line] : line,
  )) {
    if (pieces.at(-1)?.stream === stream) pieces.at(-1).text += piece;
    else pieces.push({ stream, text: piece });
  }
  return pieces.length ? pieces : [{ stream: "stdout", text: "It has printed nothing." }];
}

function outputPart(card, output, context) {
  const { find = "", stream = "" } = context.query;
  const go = (changed) => context.change(changed, { replace: true });
  const parts = (output.parts || []).filter((part) => !stream || part.stream === stream);
  const lines = linesOf(parts);
  const found = find
    ? lines.filter((line) =>
        line
          .map((each) => each.piece)
          .join("")
          .toLowerCase()
          .includes(find.toLowerCase()),
      )
    : lines;
  const live = !card.endedAt;
  const need = output.problem && page.session.reasons.includes("private");
  const what = output.task === "driver" ? "the driver" : `task ${output.task}`;
  return h(
    "div",
    { class: "output", key: "output" },
    h("h3", {}, `Output of ${what}`, live ? h("span", { class: "faint" }, " · followed") : null),
    output.missing > 0
      ? h(
          "p",
          { class: "faint", key: "missing" },
          `${number(output.missing)} bytes before these are not shown; its worker has them in its files, as far as its disk took them.`,
        )
      : null,
    output.problem
      ? h("p", { class: "empty" }, output.problem, " ", need ? privatePart(card, context) : null)
      : [
          h(
            "p",
            { class: "filters" },
            h(
              "label",
              {},
              "Find ",
              h("input", { type: "search", value: find, onchange: (event) => go({ find: event.target.value }) }),
            ),
            h(
              "label",
              {},
              "Stream ",
              h(
                "select",
                { value: stream, onchange: (event) => go({ stream: event.target.value }) },
                [
                  ["", "both"],
                  ["stdout", "stdout"],
                  ["stderr", "stderr"],
                ].map(([value, text]) => h("option", { value, key: value }, text)),
              ),
            ),
            !stream && parts.some((part) => part.stream === "stderr" && part.text)
              ? h("span", { class: "stderr", key: "colour" }, "in this colour: stderr")
              : null,
            find
              ? h(
                  "span",
                  { class: "faint", key: "found" },
                  `${plural(found.length, "line")} of ${number(lines.length)}`,
                )
              : null,
          ),
          h(
            "pre",
            { tabindex: 0, "aria-label": `Output of ${what}` },
            joined(found).map(({ stream: from, text }) =>
              from === "stderr" && !stream ? h("span", { class: "stderr" }, text) : text,
            ),
          ),
        ],
  );
}
