// Drawings over time, as SVG: they take their colours from the style sheet, can be printed, and are described in words.

import { h } from "/page/dom.js";
import {
  address,
  cause,
  causes,
  clockText,
  cores,
  decimal,
  duration,
  number,
  paged,
  plural,
  time,
} from "/page/core.js";

const NARROW = 600; // pixels: a window in which labels are short
const MARGINS = 40;
const TICK = 84; // pixels that a label of an axis takes

/** The width of a drawing that takes that part of the window, so that a unit of it is about a pixel. */
export const widthOf = (part = 1) => Math.round(Math.max(300, (Math.min(innerWidth, 2100) - MARGINS) / part));

/** Round times of the day for an axis. */
function ticks(from, to, most = 6) {
  const steps = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800,
  ].map((s) => s * 1000);
  const step = steps.find((each) => (to - from) / each <= most) || Math.ceil((to - from) / most / 86400000) * 86400000;
  const zone = new Date(from).getTimezoneOffset() * 60000;
  const found = [];
  for (let at = Math.ceil((from - zone) / step) * step + zone; at <= to; at += step) found.push(at);
  return { found, step };
}

const short = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const seconds = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit",
  minute: "2-digit",
  second: "2-digit",
  hourCycle: "h23",
});
const days = new Intl.DateTimeFormat(undefined, { month: "short", day: "numeric" });

const EDGE = 40; // pixels: a label nearer to the end would be cut off

function axis(from, to, x, top, bottom) {
  const { found, step } = ticks(from, to, Math.min(12, Math.max(2, Math.floor((x(to) - x(from)) / TICK))));
  const format = step >= 86400000 ? days : step < 60000 ? seconds : short;
  return found.map((at) =>
    h(
      "g",
      { class: "tick", key: at },
      h("line", { x1: x(at), x2: x(at), y1: top, y2: bottom }),
      h(
        "text",
        { x: x(at), y: bottom + 16, "text-anchor": x(to) - x(at) < EDGE ? "end" : "middle" },
        format.format(new Date(at)),
      ),
    ),
  );
}

const STEPS = [1, 2, 5]; // times a power of ten

/** Round values for a vertical axis, from 0 to the first that is not below `most`. */
export function levels(most) {
  const power = 10 ** Math.floor(Math.log10(Math.max(most, 1e-6) / 4));
  const step = power * ([...STEPS, 10].find((each) => most / (power * each) <= 4) ?? 10);
  return Array.from({ length: Math.max(1, Math.ceil(most / step - 1e-9)) + 1 }, (_, index) =>
    Number((index * step).toPrecision(12)),
  );
}

/** The lines of a vertical axis. */
const scaled = (values, left, right, y) =>
  values.map((value) =>
    h(
      "g",
      { class: "tick", key: value },
      h("line", { x1: left, x2: right, y1: y(value), y2: y(value) }),
      h("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, decimal(value)),
    ),
  );

// The life of an app: its waits, its marks, and its executors, worker by worker.

const LANES = 40;

/** With the newest executors, or those on the page that `query` names. */
export function timeline(value, now, query) {
  const end = value.endedAt
    ? Math.max(value.endedAt, ...value.executors.map((lane) => lane.to || 0))
    : Math.max(value.until, now);
  const from = value.submittedAt;
  const to = Math.max(end, from + 1000);
  const width = widthOf();
  const narrow = width < NARROW;
  const left = narrow ? 108 : 150;
  const x = (at) => left + ((width - left - 10) * (Math.min(Math.max(at, from), to) - from)) / (to - from);
  const { part, nav } = paged([...value.executors].reverse(), "/app", query, "lanes", LANES);
  const lanes = [...part].reverse();
  const row = 20;
  const top = 46;
  const height = top + lanes.length * row + 30;
  const kinds = [...new Set(value.waits.map((each) => each.cause))];
  const rect = (begin, finish, y, tall, kind, title) =>
    h(
      "rect",
      { x: x(begin), y, width: Math.max(1.5, x(finish) - x(begin)), height: tall, class: kind },
      h("title", {}, title),
    );
  const words = [
    `Submitted ${clockText(value.submittedAt)}.`,
    value.admittedAt ? ` Admitted after ${duration(value.admittedAt - value.submittedAt)}.` : " Not admitted yet.",
    ` ${plural(value.executors.length, "executor")}.`,
    value.endedAt ? ` Ended ${clockText(value.endedAt)}.` : "",
  ].join("");
  return h(
    "figure",
    { class: "timeline" },
    h(
      "div",
      { class: "scroll", tabindex: 0, role: "region", "aria-label": "Timeline" },
      h(
        "svg",
        { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words, class: "chart" },
        h(
          "defs",
          {},
          kinds.map((kind, index) =>
            h(
              "pattern",
              {
                id: `wait-${index}`,
                key: kind,
                width: 6 + 2 * (index % 4),
                height: 6,
                patternUnits: "userSpaceOnUse",
                patternTransform: `rotate(${[45, 135, 0, 90, 20, 70][index % 6]})`,
              },
              h("rect", { width: 12, height: 6, class: `wait tone-${index % 6}` }),
              h("line", { x1: 0, y1: 0, x2: 0, y2: 6, class: "stripe" }),
            ),
          ),
        ),
        axis(from, to, x, 20, top + lanes.length * row),
        h("text", { x: 0, y: 34, class: "label" }, "waits"),
        value.waits.map((each, index) =>
          h(
            "rect",
            {
              key: `w${index}`,
              x: x(each.from),
              y: 22,
              width: Math.max(1.5, x(each.to) - x(each.from)),
              height: 16,
              class: "outline",
              fill: `url(#wait-${kinds.indexOf(each.cause)})`,
            },
            h(
              "title",
              {},
              `${causes()[each.cause] || each.cause} (${each.rule}), ${duration(each.to - each.from)} from ${clockText(each.from)}`,
            ),
          ),
        ),
        lanes.map((lane, index) =>
          h(
            "g",
            { key: lane.id },
            h(
              "text",
              { x: 0, y: top + index * row + 13, class: "label" },
              `${lane.worker.slice(0, narrow ? 9 : 18)} · ${narrow ? lane.cores : cores(lane.cores)}`,
            ),
            rect(
              lane.from,
              lane.to ?? to,
              top + index * row + 2,
              row - 6,
              "granted",
              `${lane.id} on ${lane.worker}, granted ${clockText(lane.from)}${lane.to ? `, ${lane.end} ${clockText(lane.to)}` : ""}`,
            ),
            lane.running
              ? rect(
                  lane.running,
                  lane.told ?? lane.to ?? to,
                  top + index * row + 2,
                  row - 6,
                  "running",
                  `${lane.id} runs from ${clockText(lane.running)}`,
                )
              : null,
            lane.told
              ? rect(
                  lane.told,
                  lane.to ?? to,
                  top + index * row + 2,
                  row - 6,
                  "leaving",
                  `${lane.id} was told to leave ${clockText(lane.told)}`,
                )
              : null,
            lane.end === "failed" || lane.end === "lost"
              ? h("text", { x: Math.min(width - 8, x(lane.to) + 2), y: top + index * row + 14, class: "cross" }, "✕")
              : null,
          ),
        ),
        value.marks.map((mark, index) =>
          h(
            "g",
            { class: "event", key: `m${index}` },
            h("path", { d: `M${x(mark.at) - 4} 6 h8 l-4 7 z` }),
            h("title", {}, `${clockText(mark.at)}: ${mark.text}`),
          ),
        ),
      ),
    ),
    h(
      "figcaption",
      {},
      kinds.length
        ? [
            h(
              "ul",
              { class: "kinds" },
              kinds.map((kind, index) => {
                const ms = value.waits
                  .filter((each) => each.cause === kind)
                  .reduce((sum, each) => sum + each.to - each.from, 0);
                return h(
                  "li",
                  { key: kind },
                  h(
                    "svg",
                    { width: 22, height: 12, "aria-hidden": "true", class: "swatch" },
                    h("rect", { width: 22, height: 12, fill: `url(#wait-${index})`, class: "outline" }),
                  ),
                  cause(kind),
                  h("strong", {}, ` ${duration(ms)}`),
                );
              }),
            ),
          ]
        : "It did not wait.",
      value.leftOut
        ? ` The newest ${number(value.executors.length)} executors; ${number(value.leftOut)} earlier ones are left out.`
        : null,
    ),
    nav,
    h(
      "details",
      { key: "marks" },
      h("summary", {}, "In words"),
      h(
        "ol",
        { class: "decisions" },
        value.marks.map((mark, index) =>
          h(
            "li",
            { key: index },
            time(mark.at),
            " ",
            h("a", { href: address("/log", { seq: mark.seq }) }, h("bdi", {}, mark.text)),
          ),
        ),
      ),
    ),
  );
}

const SIZE = { height: 150, left: 48, right: 8, bottom: 126, top: 10 };
const USUAL = 480;

/** The frame of a small chart from 0 to `most` between two times: its axes, and where times and values are. */
function frame(label, kind, from, to, most, draw, width = USUAL) {
  const values = levels(most);
  const { height, left, right, bottom, top } = SIZE;
  const x = (at) => left + ((width - left - right) * (at - from)) / Math.max(1, to - from);
  const y = (value) => bottom - ((bottom - top) * value) / values.at(-1);
  const at = (time, value) => `${x(time).toFixed(1)} ${y(value).toFixed(1)}`;
  return h(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, class: `chart ${kind}`, role: "img", "aria-label": label },
    scaled(values, left, width - right, y),
    axis(from, to, x, top, bottom),
    draw({ x, y, at }),
  );
}

/** A line of steps through points {at, value}, each good until the next one or `to`. */
const stepped = (points, at, to) =>
  points
    .map(
      (point, index) =>
        `${index ? "L" : "M"}${at(point.at, point.value)}L${at(points[index + 1]?.at ?? to, point.value)}`,
    )
    .join("");

/** The area under such a line. */
const under = (points, at, to) =>
  points.length ? `${stepped(points, at, to)}L${at(to, 0)}L${at(points[0].at, 0)}Z` : "";

/** Two courses of {at, value} over each other: the first as an area, the second as a dashed line. */
export function overlaid(label, first, second, from, to, most, width) {
  const draw = ({ at }) => [
    h("path", { d: under(first, at, to), class: "held-area" }),
    h("path", { d: stepped(first, at, to), class: "held-line" }),
    h("path", { d: stepped(second, at, to), class: "entitled-line" }),
  ];
  return frame(label, "overlaid", from, to, most, draw, width);
}

/** Single values {at, value, title}. */
export function dots(label, points, from, to, most) {
  return frame(label, "dots", from, to, most, ({ x, y }) =>
    points.map((point, index) =>
      h("circle", { key: index, cx: x(point.at), cy: y(point.value), r: 3, class: "dot" }, h("title", {}, point.title)),
    ),
  );
}

/** Points {at, entitled, held} of steps that begin `at` and last until the next one or `to`. */
export function shares(label, points, from, to, most) {
  const of = (field) => points.map((point) => ({ at: point.at, value: point[field] }));
  return frame(label, "shares", from, to, most, ({ at }) => {
    const short = points
      .map((point, index) => [point, points[index + 1]?.at ?? to])
      .filter(([point]) => point.entitled > point.held + 1e-6)
      .map(
        ([point, end]) =>
          `M${at(point.at, point.entitled)}L${at(end, point.entitled)}L${at(end, point.held)}L${at(point.at, point.held)}Z`,
      );
    return [
      h(
        "defs",
        {},
        h(
          "pattern",
          { id: "short", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
          h("rect", { width: 5, height: 5, class: "short-tone" }),
          h("line", { x1: 0, y1: 0, x2: 0, y2: 5, class: "short-stripe" }),
        ),
      ),
      h("path", { d: under(of("held"), at, to), class: "held-area" }),
      h("path", { d: short.join(""), fill: "url(#short)", class: "short" }),
      h("path", { d: stepped(of("held"), at, to), class: "held-line" }),
      h("path", { d: stepped(of("entitled"), at, to), class: "entitled-line" }),
    ];
  });
}
