// The views: {path, name, nav, title, topics}. Each is drawn by the file of its name, loaded when it is looked at.

import { address } from "/page/core.js";

/** The file's own part: what the view asks for, `load`, and how it is drawn, `draw`. */
function view(file, about) {
  let drawn = null;
  return {
    ...about,
    async load(context) {
      drawn = (await import(`/page/${file}.js`))[about.name];
      return drawn.load(context);
    },
    draw: (value, context) => drawn.draw(value, context),
  };
}

export const views = [
  view("now", {
    path: "/",
    name: "overview",
    nav: "Now",
    title: () => "Now",
    topics: ["apps", "workers", "companies", "settings"],
    still: true,
    ticks: true,
  }),
  view("apps", {
    path: "/apps",
    name: "apps",
    nav: "Apps",
    title: () => "Apps",
    topics: ["apps", "companies"],
    still: true,
    ticks: true,
  }),
  view("app", {
    path: "/app",
    name: "app",
    under: "/apps",
    title: (query) => query.id || "App",
    topics: ["apps"],
    app: true,
    still: true,
    ticks: true,
    polls: (query) => query.task !== undefined,
  }),
  view("company", {
    path: "/company",
    name: "company",
    nav: "Company",
    title: (query) => query.name || "Company",
    topics: ["apps", "companies", "workers"],
    ticks: true,
    home: (session) => address("/company", session.company ? { name: session.company } : {}),
  }),
  view("department", {
    path: "/department",
    name: "department",
    under: "/",
    title: (query) => query.name || "Department",
    topics: ["apps", "companies", "workers"],
  }),
  view("workers", {
    path: "/workers",
    name: "workers",
    nav: "Workers",
    title: () => "Workers",
    topics: ["workers", "apps"],
    ticks: true,
  }),
  view("fairness", {
    path: "/fairness",
    name: "fairness",
    nav: "Fairness",
    title: () => "Fairness",
    topics: ["apps", "companies", "workers"],
  }),
  view("log", {
    path: "/log",
    name: "log",
    nav: "Log",
    title: (query) => (query.seq ? `Position ${query.seq}` : "Log"),
    topics: ["apps", "workers", "companies", "settings", "log"],
  }),
  view("whatif", { path: "/what-if", name: "whatif", nav: "What if", title: () => "What if", topics: [] }),
  view("settings", {
    path: "/settings",
    name: "settings",
    nav: "Settings",
    title: () => "Settings",
    topics: ["settings", "companies", "workers"],
  }),
];
