// The page: who is logged in, which view is shown at which position, and when it is asked for again.

import { h, show } from "/page/dom.js";
import { Problem, address, ask, number, page, said, time, wait, zone } from "/page/core.js";
import { views } from "/page/views.js";

const LEAST_MS = 1000;
const STILL_MS = 4000;
const POLL_MS = 2000;
const RENEW_MS = 15 * 60 * 1000;
const SPEEDS = [1, 10, 60, 600];
const root = document.getElementById("content");
let shown = null; // {view, query, value, path}
let loading = null; // the request under way
let stream = null;
let connected = true;
let trouble = "";
let playing = null;
let speed = 10;
let dirty = false;
let lastLoad = 0; // when the last request began, or ended
let refreshing = null;

// Addresses

function here() {
  const query = Object.fromEntries(new URLSearchParams(location.search));
  const text = query.at;
  delete query.at;
  return { path: location.pathname, query, at: text };
}

export function go(url, { replace = false } = {}) {
  history[replace ? "replaceState" : "pushState"](null, "", url);
  open();
}

addEventListener("popstate", () => open());
document.addEventListener("click", (event) => {
  const anchor = event.target.closest?.("a[href]");
  if (!anchor || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey) return;
  const url = new URL(anchor.href);
  if (url.origin !== location.origin || anchor.download || url.hash || url.pathname.startsWith("/v1")) return;
  event.preventDefault();
  go(url.pathname + url.search);
  scrollTo(0, 0);
});

// What is shown

function viewOf(path) {
  return views.find((view) => view.path === path);
}

async function open({ quiet = false } = {}) {
  const { path, query, at } = here(),
    where = location.pathname + location.search;
  loading?.abort();
  loading = null;
  if (!page.session) return login();
  if (at === undefined) page.at = null;
  else if (/^\d{1,15}$/.test(at)) page.at = Number(at);
  else
    return failed(
      new Problem(400, "BadRequest", `the log has no position ${at}: give a number, as in at=${page.head}`),
      path,
    );
  const view = viewOf(path);
  if (!view) return failed(new Problem(404, "NotFound", `the page has no view at ${path}`), path);
  const control = (loading = new AbortController());
  lastLoad = Date.now();
  dirty = false;
  const fresh = shown?.path !== path || shown?.at !== page.at || JSON.stringify(shown.query) !== JSON.stringify(query);
  if (fresh && !quiet) begun(view, path, query);
  const late = setTimeout(() => document.body.classList.add("late"), quiet ? 3000 : 250);
  try {
    const context = {
      head: page.head,
      behind: false,
      query,
      signal: control.signal,
      told: waiting,
      reload: () => open({ quiet: true }),
      go,
      // In the address of now: it may have changed since the view was drawn.
      change: (changed, how) => {
        const now = here();
        go(address(path, { ...(now.path === path ? now.query : query), ...changed }), how);
      },
      redraw,
    };
    const showing = (value) => {
      if (control.signal.aborted) return;
      shown = { view, query, value, path, where, at: page.at, context };
      connected = true;
      draw();
    };
    context.first = shown === null ? showing : () => {}; // what a view has before all of it is there
    const value = await view.load(context);
    if (control.signal.aborted) return;
    showing(value);
    root.dataset.address = where;
    if (context.behind) refresh(); // somebody else's answer, of a moment before what this page was told of
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error instanceof Problem && error.status === 401) return loggedOut(error.message);
    if (error instanceof Problem && error.status === 0 && shown) {
      connected = false;
      draw();
      return;
    }
    if (quiet && shown && error.status >= 500) {
      trouble = error.message;
      draw();
      return;
    }
    failed(error, path);
  } finally {
    clearTimeout(late);
    if (loading === control) {
      loading = null;
      lastLoad = Date.now();
      if (dirty) refresh();
      document.body.classList.remove("late");
      waiting("");
    }
  }
}

/** The head, the foot and the title of a view whose answer is still to come. */
function begun(view, path, query) {
  document.title = `${view.title(query)} · fairlog`;
  root.dataset.view = view.name;
  drawTop(path);
  drawTime();
  if (shown?.path === path) return;
  shown = null;
  show(
    root,
    h(
      "div",
      { class: "begun", key: `begun ${path}` },
      h("h1", {}, h("bdi", {}, view.title(query))),
      h("p", { class: "empty" }, "Asking the server …"),
    ),
  );
}

function redraw() {
  if (shown) draw();
}

function draw() {
  drawTop();
  drawTime();
  show(
    root,
    notice(),
    h("div", { class: `view ${shown.view.name}`, key: shown.view.name }, shown.view.draw(shown.value, shown.context)),
  );
}

function failed(error, path) {
  if (!(error instanceof Problem)) console.error(error);
  shown = null;
  const text = error instanceof Problem ? error.message : "this view could not be drawn; reload the page";
  document.title = "fairlog";
  drawTop(path);
  drawTime();
  show(
    root,
    h(
      "div",
      { class: "view failure", key: "failure" },
      h("h1", {}, sentence(text)),
      h(
        "p",
        {},
        h("a", { href: address("/", {}, { keepAt: false }) }, "Show the cluster now"),
        ", or ",
        h("a", { href: address("/apps", {}, { keepAt: false }) }, "list the apps"),
        ".",
      ),
    ),
  );
  root.dataset.address = location.pathname + location.search;
}

const sentence = (text) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.?!]$/.test(text) ? "" : ".");

function waiting(text) {
  const place = document.getElementById("waiting");
  if (place) place.textContent = text ? sentence(text) : "";
}

function notice() {
  const lost = !connected
    ? "The server does not answer; what you see is from before. The page asks again by itself."
    : trouble
      ? `The server is behind: ${trouble.replace(/\.$/, "")}. What you see is from before.`
      : "";
  if (lost) return h("p", { class: "notice bad", role: "alert", key: "notice" }, lost);
  if (page.at !== null) {
    return h(
      "p",
      { class: "notice past", key: "notice" },
      "You see the log at position ",
      h("strong", {}, number(page.at)),
      page.seenAt ? [", ", time(page.seenAt, { long: true })] : null,
      ". ",
      h("a", { href: address(location.pathname, here().query, { keepAt: false }) }, "Return to now"),
    );
  }
  return h("p", { class: "notice none", key: "notice" });
}

// The head of the page

const THEMES = { "": "Automatic", light: "Light", dark: "Dark" };

function theme(value) {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  try {
    if (value) localStorage.setItem("theme", value);
    else localStorage.removeItem("theme");
  } catch {
    /* a browser that keeps nothing */
  }
}

let chosen = "";
try {
  chosen = localStorage.getItem("theme") || "";
} catch {
  /* likewise */
}
theme(chosen in THEMES ? chosen : "");

function drawTop(path = location.pathname) {
  const session = page.session;
  show(
    document.getElementById("top"),
    h("a", { class: "brand", href: address("/") }, "fairlog"),
    session
      ? h(
          "nav",
          { "aria-label": "Views" },
          h(
            "ul",
            {},
            views
              .filter((view) => view.nav && !view.hidden?.(session))
              .map((view) =>
                h(
                  "li",
                  { key: view.path },
                  h(
                    "a",
                    {
                      href: view.home ? view.home(session) : address(view.path),
                      "aria-current":
                        path === view.path
                          ? "page"
                          : views.some((each) => each.path === path && each.under === view.path)
                            ? "true"
                            : null,
                    },
                    view.nav,
                  ),
                ),
              ),
          ),
        )
      : null,
    h(
      "div",
      { class: "who" },
      session
        ? h(
            "span",
            { class: "account", title: session.role },
            h("bdi", {}, session.account),
            h("span", { class: "role" }, ` ${session.role}`),
          )
        : null,
      h(
        "label",
        { class: "theme" },
        h("span", { class: "hidden" }, "Colours"),
        h(
          "select",
          { value: chosen, onchange: (event) => theme((chosen = event.target.value)) },
          Object.entries(THEMES).map(([value, text]) => h("option", { value, key: value }, text)),
        ),
      ),
      session ? h("button", { type: "button", class: "quiet", onclick: logout }, "Log out") : null,
    ),
    h("div", { class: "progress", "aria-hidden": "true" }),
  );
}

// The time machine

let sliding = null;

function drawTime() {
  const place = document.getElementById("time");
  if (!page.session) return show(place);
  const at = sliding ?? page.at;
  const past = at !== null;
  show(
    place,
    h(
      "p",
      { class: "printed", key: "printed" },
      `fairlog at ${location.host}, as of position ${number(past ? at : page.head)} of the log`,
    ),
    h(
      "div",
      { class: "machine" },
      h(
        "button",
        {
          type: "button",
          class: "play",
          "aria-label": playing ? "Pause" : "Play from here",
          disabled: !past,
          onclick: () => (playing ? pause() : play()),
        },
        h("span", { "aria-hidden": "true" }, playing ? "❚❚" : "▶"),
      ),
      h("input", {
        type: "range",
        min: 1,
        max: Math.max(1, page.head),
        step: 1,
        value: past ? at : page.head,
        "aria-label": "Position in the log",
        "aria-valuetext": past ? `position ${at}` : `now, position ${page.head}`,
        oninput: (event) => slide(Number(event.target.value)),
        onchange: (event) => slide(Number(event.target.value), true),
      }),
      h(
        "label",
        {},
        h("span", { class: "hidden" }, "Position"),
        h("input", {
          type: "number",
          class: "position",
          min: 0,
          max: page.head,
          value: past ? at : page.head,
          onchange: (event) => slide(Math.min(page.head, Math.max(0, Number(event.target.value) || 0)), true),
        }),
      ),
      h("span", { class: "of" }, `of ${number(page.head)}`),
      h(
        "span",
        { class: "when" },
        past
          ? sliding === null
            ? time(page.seenAt)
            : "…"
          : [h("span", { class: "live", "aria-hidden": "true" }), "now, ", zone()],
      ),
      h(
        "label",
        { class: "speed" },
        h("span", { class: "hidden" }, "Speed"),
        h(
          "select",
          {
            value: String(speed),
            onchange: (event) => (speed = Number(event.target.value)),
          },
          SPEEDS.map((value) => h("option", { value, key: value }, `${value}×`)),
        ),
      ),
      h(
        "button",
        {
          type: "button",
          class: "now",
          disabled: !past,
          onclick: () => {
            pause();
            go(address(location.pathname, here().query, { keepAt: false }));
          },
        },
        "Now",
      ),
    ),
    h("p", { id: "waiting", role: "status", own: true }),
  );
}

function slide(position, done = false) {
  pause();
  clearTimeout(slide.timer);
  sliding = position;
  drawTime();
  slide.timer = setTimeout(
    () => {
      sliding = null;
      const live = position >= page.head && done;
      go(address(location.pathname, live ? here().query : { ...here().query, at: position }, { keepAt: false }), {
        replace: page.at !== null,
      });
    },
    done ? 0 : 120,
  );
}

function pause() {
  playing?.abort();
  playing = null;
  drawTime();
}

async function play() {
  const control = (playing = new AbortController());
  let when = page.seenAt;
  drawTime();
  try {
    while (!control.signal.aborted) {
      await wait(1000, control.signal);
      when += 1000 * speed;
      let found = (await ask("/v1/moment", { time: Math.round(when) }, { signal: control.signal })).value;
      if (found.seq <= page.at) {
        if (found.next === null) break;
        if (found.next - when < 2000 * speed) continue;
        when = found.next; // nothing happens until then
        found = { ...found, seq: found.nextSeq };
      }
      history.replaceState(null, "", address(location.pathname, { ...here().query, at: found.seq }, { keepAt: false }));
      await open({ quiet: true });
    }
    pause();
    go(address(location.pathname, here().query, { keepAt: false }), { replace: true });
  } catch (error) {
    if (error.name !== "AbortError") {
      said(error.message, true);
      pause();
    }
  }
}

// Following the log

function follow() {
  stream?.close();
  stream = new EventSource("/v1/pulse");
  stream.addEventListener("pulse", (event) => {
    const news = JSON.parse(event.data);
    const back = !connected;
    connected = true;
    trouble = news.trouble || "";
    const grown = news.seq !== page.head;
    page.head = news.seq;
    if (page.at !== null || playing) return grown && sliding === null ? drawTime() : undefined;
    if (sliding === null) drawTime();
    if (back) return open({ quiet: shown !== null }); // what was asked before may never be answered
    if (!shown) return;
    const { topics, still } = shown.view;
    const touched = news.topics === null || topics.some((topic) => news.topics.includes(topic));
    const mine = !shown.view.app || news.apps === null || news.apps.includes(shown.query.id);
    const late = still && Date.now() - lastLoad > STILL_MS; // what no event of the log tells, such as the end of a task
    if ((touched && mine && grown) || late) refresh();
    else if (trouble) draw();
  });
  stream.addEventListener("end", (event) => {
    stream.close();
    const problem = JSON.parse(event.data);
    if (problem.status === 401 || problem.status === 403) loggedOut(problem.detail);
    else setTimeout(follow, LEAST_MS);
  });
  stream.onerror = () => {
    if (stream.readyState === EventSource.CLOSED) check();
    if (!connected) return;
    connected = false;
    setTimeout(() => {
      if (!connected && shown) draw();
    }, 2500);
  };
}

/** The stream was refused: because nobody is logged in any longer, or because the server is not ready. */
async function check() {
  await wait(LEAST_MS);
  try {
    page.session = await ask("/v1/session", {}, { told: behind });
    follow();
  } catch (error) {
    if (error.status === 401) loggedOut(error.message);
    else check();
  }
}

/** The server answers, but it cannot say what is so now. */
function behind(why) {
  connected = true;
  trouble = why.replace(/ for [\d.]+ s$/, ""); // what changes each second would be read out each second
  if (shown) draw();
}

/**
 * Ask for the view again, not more often than once in `LEAST_MS`, once the answer before is there, and only while
 * somebody looks.
 */
function refresh() {
  dirty = true;
  if (document.hidden || refreshing) return;
  refreshing = setTimeout(
    () => {
      refreshing = null;
      if (dirty && !loading && page.at === null && !document.hidden) open({ quiet: true });
    },
    Math.max(0, lastLoad + LEAST_MS - Date.now()),
  );
}

let resized = null;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(redraw, 150); // drawings are as wide as the window
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && dirty) refresh();
});
setInterval(() => {
  if (shown?.view.polls?.(shown.query) && page.at === null) refresh();
}, POLL_MS);
setInterval(() => {
  if (shown?.view.ticks && page.at === null && !document.hidden) draw();
}, 1000);

// Who is logged in

function loggedOut(why) {
  stream?.close();
  playing?.abort();
  playing = null;
  page.session = null;
  shown = null;
  login(why);
}

function login(why = "") {
  drawTop();
  drawTime();
  document.title = "Log in · fairlog";
  document.body.classList.remove("late");
  show(
    root,
    h(
      "form",
      {
        class: "login",
        key: "login",
        onsubmit: async (event) => {
          event.preventDefault();
          const field = event.target.elements.token;
          await enter({ token: field.value.trim() });
        },
      },
      h("h1", {}, "Log in to fairlog"),
      why ? h("p", { class: "notice bad", role: "alert" }, sentence(why)) : null,
      h(
        "label",
        {},
        "Token",
        h("input", {
          name: "token",
          type: "password",
          required: true,
          autocomplete: "off",
          spellcheck: "false",
          placeholder: "fl_…",
        }),
      ),
      h("button", { class: "primary" }, "Log in"),
      h(
        "p",
        { class: "faint" },
        "On the machine of the cluster, ",
        h("code", {}, "fairlog page"),
        " prints a link that opens this page without a token. ",
        "An account's token comes from ",
        h("code", {}, "fairlog token new ACCOUNT"),
        ".",
      ),
    ),
  );
  root.querySelector("input")?.focus();
}

async function enter(what) {
  try {
    started(await ask("/v1/session", {}, { method: "POST", body: what }));
  } catch (error) {
    login(error.message);
  }
}

async function logout() {
  await ask("/v1/session", {}, { method: "DELETE" }).catch(() => null);
  loggedOut("");
}

function started(session) {
  page.session = session;
  page.head = session.seq;
  follow();
  open();
}

setInterval(async () => {
  if (!page.session) return;
  try {
    page.session = await ask("/v1/session", {}, { method: "POST" });
  } catch (error) {
    if (error.status === 401) loggedOut(error.message);
  }
}, RENEW_MS);

async function start() {
  drawTop();
  const key = /^#key=([\w-]+)$/.exec(location.hash)?.[1];
  if (key) {
    history.replaceState(null, "", location.pathname + location.search);
    return enter({ key });
  }
  try {
    started(await ask("/v1/session"));
  } catch (error) {
    if (error.status === 401) return login(/nobody/.test(error.message) ? "" : error.message);
    login(error.message);
    await wait(2000);
    start();
  }
}

start();
