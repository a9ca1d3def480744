"""The live page in a real browser, over a real `up`: walks that people take. One cluster and one browser for all."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import pytest

from fairlog.api.client import ApiClient
from scheduler.model.commands import (
    AddAccount,
    AddDepartment,
    ConfigureCluster,
    HoldApp,
    IssueToken,
    KillApp,
    MoveCompany,
    RegisterCompany,
    RegisterWorker,
    RemoveDepartment,
    RemoveWorker,
    RevokeToken,
    SubmitApp,
)
from scheduler.service.tokens import new_token
from tests.integration.cli_rig import Shell
from tests.waiting import HOPELESS_S, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium on this machine"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
)
HOSTILE = "<img src=x onerror=alert(1)>"
OUTPUT = "first line\\n<script>alert(1)</script>\\nsecond \\342\\200\\256 \\033[31mline"
PATIENCE_MS = 1000 * HOPELESS_S
"""How long a walk waits for what is to come: a busy machine is slow."""
VIEWS = (
    "/",
    "/apps",
    "/app?id=waits",
    "/company?name=acme",
    "/department?name=lab",
    "/workers",
    "/fairness",
    "/log",
    "/what-if",
    "/settings",
)
DARK = {"/", "/app?id=waits", "/workers", "/what-if"}
"""Those that together have every colour."""
LOADING = re.compile("Failed to load resource")


class Rig(NamedTuple):
    """A running `up` whose API is at `url`, its operator's client, and the browser."""

    url: str
    shell: Shell
    api: ApiClient
    browser: Browser
    troubles: list[str]
    """What pages have said of errors, scripts that were refused, and dialogs that opened."""

    def link(self) -> str:
        """A link that opens the page once."""
        return f"{self.url}/#key={self.api.link()}"

    def visit(self, **options: Any) -> Page:
        """A page of a person who is not logged in."""
        context = self.browser.new_context(**options)
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", lambda dialog: self._hear("error", f"a dialog opened: {dialog.message}"))
        page.on("console", lambda message: self._hear(message.type, message.text))
        return page

    def _hear(self, kind: str, text: str) -> None:
        if kind == "error" and not LOADING.search(text):
            self.troubles.append(text)

    def submit(self, app: str, **about: Any) -> None:
        """An app of ann at acme that ends at once unless `about` says otherwise."""
        said = {"company": "acme", "user": "ann", "tasks": 1, "cores": 4, "command": ("true",), "cwd": "/", **about}
        self.api.send(SubmitApp(app=app, **said))


@contextmanager
def rigged(home: Path, browser: Browser) -> Iterator[Rig]:
    """Two companies; an app that runs, one that waits, one on hold, one that has printed and ended."""
    shell = Shell(home)
    shell.env["FAIRLOG_LEASE"] = "5"
    shell.ok("up", "--detach", "--workers", "2", "--masters", "2", "--cores", "8", "--memory", "8G")
    said = json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())
    with ApiClient(f"http+unix:{said['socket']}") as api:
        made = Rig(said["api"], shell, api, browser, [])
        api.send(RegisterCompany(company="acme", cores=8, memory_mb=16384))
        api.send(RegisterCompany(company="globex", part="1/4"))
        api.send(AddDepartment(department="lab"))
        made.submit("prints", command=("sh", "-c", 'printf "$0"; echo oops >&2', OUTPUT), name=HOSTILE)
        wait_until(lambda: api.view("app", app="prints")["state"] == "finished", "the end of an app")
        made.submit("runs", cores=8, tasks=8, command=("sleep", "600"), name=HOSTILE)
        made.submit("waits", cores=8, tasks=8, command=("true",))
        made.submit("held", driver=True)
        api.send(HoldApp(app="held"))
        wait_until(lambda: api.view("app", app="runs")["state"] == "running", "a running app")
        yield made
    shell.run("down")


@contextmanager
def opened(rig: Rig) -> Iterator[Page]:
    """The page of the operator at home, who came by a link."""
    made = rig.visit(viewport={"width": 1280, "height": 900})
    made.goto(rig.link())
    heading(made).wait_for()
    yield made
    made.context.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with (
        playwright.sync_playwright() as started,
        started.chromium.launch(executable_path=CHROMIUM, args=[*ARGUMENTS]) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[Rig]:
    with rigged(tmp_path_factory.mktemp("home"), browser) as made:
        yield made


@pytest.fixture(scope="module")
def page(rig: Rig) -> Iterator[Page]:
    with opened(rig) as made:
        yield made


@pytest.fixture(autouse=True)
def _no_trouble(rig: Rig) -> Iterator[None]:
    rig.troubles.clear()
    yield
    assert rig.troubles == []


def heading(page: Page) -> Locator:
    return page.locator("main h1").first


def show(page: Page, rig: Rig, where: str) -> None:
    """Open an address and wait for its view."""
    page.goto(rig.url + where)
    page.locator("main .view h1").first.wait_for()


@contextmanager
def held_back(page: Page, which: str) -> Iterator[list[Route]]:
    """Requests whose address has `which` in it go on at the end of the block, and those after it as before."""
    held: list[Route] = []
    address = re.compile(which)

    def hold(route: Route) -> None:
        held.append(route)

    page.route(address, hold)
    try:
        yield held
    finally:
        page.unroute(address)  # which lets them go on


def row(page: Page, name: str) -> Locator:
    return page.locator("tbody tr").filter(has=page.get_by_role("rowheader").filter(has_text=name)).first


def has(where: Locator, text: str | re.Pattern[str]) -> None:
    playwright.expect(where).to_contain_text(text, timeout=PATIENCE_MS)


def test_a_newcomer_opens_the_link_and_it_opens_nothing_twice(rig: Rig) -> None:
    page, link = rig.visit(), rig.link()
    page.goto(link)
    has(heading(page), re.compile(r"All is well|can never start|standby|lost"))
    assert page.url == f"{rig.url}/", "the key stays in no address and no history"
    cookie = page.context.cookies()[0]
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    page.context.clear_cookies()
    page.goto("about:blank")
    page.goto(link)
    has(page.get_by_role("alert"), "This link was opened before")
    page.get_by_label("Token").fill("fl_wrong")
    page.get_by_role("button", name="Log in").click()
    has(page.get_by_role("alert"), "This is not a token, or it was not copied in full")
    page.context.close()


def test_the_first_view_is_light_and_every_answer_forbids_foreign_scripts(rig: Rig) -> None:
    page = rig.visit()
    sizes: dict[str, int] = {}
    page.on("requestfinished", lambda request: sizes.update({request.url: _weight(request)}))
    answer = page.goto(rig.link())
    heading(page).wait_for()
    assert answer is not None
    policy = answer.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert "require-trusted-types-for 'script'" in policy
    assert all(url.startswith(rig.url) for url in sizes)
    assert sum(sizes.values()) < 500_000, sizes
    page.context.close()


def _weight(request: Any) -> int:
    found = request.sizes()
    return int(found["responseBodySize"] + found["responseHeadersSize"])


def test_now_tells_capacity_companies_and_the_last_decisions(page: Page, rig: Rig) -> None:
    show(page, rig, "/")
    has(page.locator(".capacity").first, "8 cores used")
    has(row(page, "acme"), "waits")
    has(row(page, "acme"), "its company's quota is used up H1")
    bar = page.get_by_role("img", name=re.compile("acme: granted 8 cores, demand 16 cores"))
    playwright.expect(bar).to_have_count(1, timeout=PATIENCE_MS)
    has(page.locator(".decisions"), "runs.0 gets 4 cores on worker-")
    page.get_by_role("link", name=re.compile(r"runs\.0 gets")).click()
    has(page.locator(".card"), "Executor allocated")


def test_apps_are_filtered_and_sorted_by_the_address(page: Page, rig: Rig) -> None:
    show(page, rig, "/apps")
    page.get_by_label("Waits because").select_option("hold")
    has(heading(page), "1 app")
    assert "reason=hold" in page.url
    page.get_by_role("link", name="Clear").click()
    page.get_by_label("Id contains").fill("run")
    page.get_by_label("Id contains").press("Enter")
    has(heading(page), "1 app")
    page.reload()
    has(heading(page), "1 app")
    has(row(page, "runs"), HOSTILE)
    assert page.locator("main img").count() == 0
    show(page, rig, "/apps?state=all&sort=cores&order=up")
    cores = page.locator("tbody tr td:nth-child(5)").all_inner_texts()
    amounts = [int(re.findall(r"\d+", text)[-1]) for text in cores]
    assert amounts == sorted(amounts)
    assert page.get_by_role("columnheader", name="Cores").get_attribute("aria-sort") == "ascending"
    page.go_back()
    has(heading(page), "1 app")


def test_a_filter_joins_those_of_the_address_though_the_view_still_shows_others(page: Page, rig: Rig) -> None:
    show(page, rig, "/apps?reason=hold")
    has(heading(page), "1 app")
    with held_back(page, "/v1/board"):
        page.get_by_role("link", name="Clear").click()
        page.get_by_label("Id contains").fill("run")
        page.get_by_label("Id contains").press("Enter")
        assert parse_qs(urlsplit(page.url).query) == {"text": ["run"]}
    has(row(page, "runs"), HOSTILE)


def test_an_app_says_why_it_waits_and_what_would_help(page: Page, rig: Rig) -> None:
    show(page, rig, "/app?id=waits")
    has(page.locator("h1 + p"), re.compile(r"^It has waited for .+ to be admitted\.$"))
    has(page.locator("nav [aria-current]"), "Apps")
    has(page.locator(".why"), "Rule H1")
    has(page.locator(".why"), "What would help: Wait until apps of its company end")
    has(
        page.locator(".starts"),
        re.compile("When it starts: (probably at .*, )?(with no latest time: 1 app that runs has no|at )"),
    )
    has(page.locator(".kinds"), "its company's quota is used up")
    assert page.get_by_role("img", name=re.compile(r"^Submitted .* Not admitted yet\.")).count() == 1
    page.get_by_text("In words").click()
    has(page.locator(".timeline .decisions"), "waits submitted by ann at acme, 8 cores")
    show(page, rig, "/app?id=runs")
    has(page.locator("h1 + p"), re.compile(r"^It waited .+ and has run for .+, on \d+ executors\.$"))
    has(page.get_by_role("region", name="Executors"), "runs.1")
    has(page.get_by_role("region", name="Who asked for what"), "Submit app")


def test_an_app_behind_others_of_its_user_names_them(page: Page, rig: Rig) -> None:
    rig.api.send(RegisterCompany(company="initech"))
    for number in range(12):
        rig.submit(f"row-{number:02}", company="initech", user="eve", cores=8, tasks=200, command=("sleep", "600"))
    show(page, rig, "/app?id=row-11")
    first = page.locator(".why").get_by_text("Who goes first:")
    has(first.locator(".."), re.compile(r"Who goes first: row-\d\d, row-\d\d"))
    first.locator("..").get_by_role("link", name="row-10").click()
    has(page.locator("main .view h1"), "row-10")
    assert page.get_by_text("of 200").count() == 0, "no pages of tasks that have not begun"
    for number in range(12):
        rig.api.send(KillApp(app=f"row-{number:02}"))


def test_the_output_of_a_task_is_shown_as_text_and_searched(page: Page, rig: Rig) -> None:
    show(page, rig, "/app?id=prints")
    page.get_by_role("link", name="Output").click()
    output = page.locator(".output pre")
    has(output, "<script>alert(1)</script>")
    assert "\u202e" not in output.inner_text()
    assert "\x1b" not in output.inner_text()
    has(output.locator(".stderr"), "oops")
    page.get_by_label("Stream").select_option("stderr")
    playwright.expect(output).to_have_text("oops\n", timeout=PATIENCE_MS)
    page.get_by_label("Stream").select_option("stdout")
    playwright.expect(output).not_to_contain_text("oops", timeout=PATIENCE_MS)
    page.get_by_label("Find").fill("SECOND")
    page.get_by_label("Find").press("Enter")
    playwright.expect(output).not_to_contain_text("first line", timeout=PATIENCE_MS)
    assert "find=SECOND" in page.url


def test_the_tasks_of_an_app_come_in_pages_and_print_in_light_colours(page: Page, rig: Rig) -> None:
    rig.submit("wide", company="globex", cores=4, tasks=102)
    show(page, rig, "/app?id=wide")
    tasks = page.get_by_role("region", name="Tasks")
    has(page.locator(".pages"), "1 to 100 of 102")
    page.get_by_role("link", name="Next").click()
    playwright.expect(tasks.locator("tbody tr")).to_have_count(2, timeout=PATIENCE_MS)
    has(page.locator(".pages"), "101 to 102 of 102")
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--paper')") == "#fbfbf9"
    has(page.locator(".printed"), "of the log")
    assert not page.locator("#top nav").is_visible()
    assert not page.locator(".machine").is_visible()
    page.emulate_media(color_scheme="light", media="screen")


def test_an_app_is_released_reprioritized_held_and_killed(page: Page, rig: Rig) -> None:
    show(page, rig, "/apps")
    held = row(page, "held")
    held.get_by_role("button", name="Priority").click()
    page.get_by_label("Priority", exact=True).fill("7")
    page.get_by_role("button", name="Set").click()
    has(page.locator("#said"), "held has priority 7; it is position")
    rig.submit("doomed", cores=8, tasks=8, command=("sleep", "600"))
    doomed = row(page, "doomed")
    doomed.get_by_role("button", name="Hold").click()
    has(doomed, "is on hold")
    doomed.get_by_role("button", name="Release").click()
    playwright.expect(doomed.get_by_role("button", name="Hold")).to_be_visible(timeout=PATIENCE_MS)
    doomed.get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert rig.api.view("app", app="doomed")["state"] == "pending"
    doomed.get_by_role("button", name="Kill").click()
    page.get_by_role("dialog").get_by_role("button", name="Kill").click()
    playwright.expect(doomed).to_have_count(0, timeout=PATIENCE_MS)
    assert rig.api.view("app", app="doomed")["state"] == "killed"
    assert rig.api.view("app", app="held")["priority"] == 7


def test_an_app_that_runs_is_put_back_once_that_is_confirmed(page: Page, rig: Rig) -> None:
    """Semantics X6: it runs again under its own id. What is pending has no such button."""

    def executors() -> set[str]:
        return {each["executor"] for each in rig.api.view("app", app="goes-back")["executors"]}

    rig.submit("goes-back", company="globex", tasks=4, command=("sleep", "600"))
    wait_until(lambda: rig.api.view("app", app="goes-back")["state"] == "running", "the app to run")
    before = executors()
    show(page, rig, "/apps")
    mine = row(page, "goes-back")
    mine.get_by_role("button", name="Requeue").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert executors() == before
    mine.get_by_role("button", name="Requeue").click()
    dialog = page.get_by_role("dialog")
    has(dialog, "Put goes-back back?")
    dialog.get_by_role("button", name="Requeue").click()
    has(page.locator("#said"), "goes-back is put back into its queue")
    wait_until(lambda: executors() - before, "the app to run again")
    playwright.expect(row(page, "waits").get_by_role("button", name="Requeue")).to_have_count(0)
    rig.api.send(KillApp(app="goes-back"))


def test_what_happens_elsewhere_comes_by_itself_and_moves_nothing_else(page: Page, rig: Rig) -> None:
    show(page, rig, "/apps")
    page.get_by_role("searchbox", name="User").focus()
    page.evaluate("document.querySelector('tbody tr').marked = true")
    rig.submit("comes-by-itself", cores=8, tasks=8)
    has(page.locator("tbody"), "comes-by-itself")
    assert page.evaluate("document.activeElement.name") == "user", "the focus stays"
    assert page.evaluate("[...document.querySelectorAll('tbody tr')].some((row) => row.marked)"), "rows stay"


def test_an_answer_that_takes_long_is_shown_though_more_happens_meanwhile(page: Page, rig: Rig) -> None:
    show(page, rig, "/apps")
    with held_back(page, "/v1/board") as held:
        rig.submit("asked-for", cores=8, tasks=8)
        wait_until(lambda: bool(page.title() and held), "the view to be asked for again")
        before = page.locator(".printed").inner_text(), len(held)
        rig.submit("came-meanwhile", cores=8, tasks=8)
        playwright.expect(page.locator(".printed")).not_to_have_text(before[0], timeout=PATIENCE_MS)
        page.wait_for_timeout(1500)  # longer than there is between two questions
        assert len(held) == before[1]
    has(page.locator("tbody"), "came-meanwhile")


def test_a_company_sees_its_queue_its_statement_and_whether_it_was_treated_fairly(page: Page, rig: Rig) -> None:
    show(page, rig, "/company?name=acme")
    has(page.locator(".facts").first, "8 cores, 16 GiB")
    has(page.get_by_role("region", name="Queue by user"), "ann")
    page.get_by_role("link", name="Check now").click()
    has(page.locator("#fair"), re.compile("^Was acme treated fairly\\?$", re.IGNORECASE))
    has(page.locator("main"), "The log follows its rules")
    has(page.locator("main"), re.compile(r"Audited up to position \d+: "))
    page.get_by_role("button", name="Show", exact=True).click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Download with its digest").click()
    stated = json.loads(Path(download.value.path()).read_text())
    assert stated["company"] == "acme"
    assert re.fullmatch("[0-9a-f]{64}", stated["log"]["digest"])
    page.get_by_text(re.compile(r"^Executors placed")).click()
    page.locator("details[open] .decisions a").filter(has_text="runs.").first.click()
    has(page.locator(".card"), "Workers with room")
    has(page.locator(".card"), "← chosen")


def test_departments_are_a_tree_over_their_companies(page: Page, rig: Rig) -> None:
    rig.api.send(AddDepartment(department="optics", parent="lab"))
    rig.api.send(MoveCompany(company="acme", department="optics"))
    rig.api.send(MoveCompany(company="globex", department="lab"))
    try:
        show(page, rig, "/")
        companies = page.locator("table.companies tbody")
        has(companies, re.compile("lab.*optics.*acme.*globex", re.DOTALL))
        rows = companies.locator("th").all()  # and after these whatever company is in no department
        told = [(row.inner_text(), row.get_attribute("class")) for row in rows]
        assert told[:4] == [("lab", "in-0"), ("optics", "in-1"), ("acme", "in-2"), ("globex", "in-1")]
        assert {place for _, place in told[4:]} <= {"in-0"}
        waiters = companies.locator("tr").filter(has_text="waits of ann").locator("th")
        assert waiters.all_inner_texts() == ["lab", "optics", "acme"], "of a department, who waits longest in it"
        companies.get_by_role("link", name="lab").click()
        has(heading(page), "lab")
        within = page.get_by_role("region", name="Departments and companies in it")
        has(within, "acme")
        has(page.locator(".facts").first, "8 cores")
        page.get_by_role("button", name="Show", exact=True).click()
        used = page.get_by_role("region", name="Use by department and company")
        has(used, "optics / acme")
        with page.expect_download() as download:
            page.get_by_role("button", name="Download with its digest").click()
        stated = json.loads(Path(download.value.path()).read_text())
        assert [each["departments"] for each in stated["rows"] if each["level"] == "department"] == [["optics"]]
        within.get_by_role("link", name="acme").click()
        has(page.locator(".facts").first, "optics")
    finally:
        rig.api.send(MoveCompany(company="globex", department=""))
        rig.api.send(MoveCompany(company="acme", department=""))
        rig.api.send(RemoveDepartment(department="optics"))


def test_all_decisions_about_a_company_come_in_pages(page: Page, rig: Rig) -> None:
    apps = [f"one-of-many-{number}" for number in range(30)]
    for app in apps:
        rig.submit(app, company="globex")
    wait_until(lambda: rig.api.view("app", app=apps[-1])["state"] == "finished", "the end of the last app")
    decided = [each for each in rig.api.log() if each["type"] in ("AppAdmitted", "ExecutorAllocated")]
    wanted = {each["seq"] for each in decided if each["data"]["app"] in apps}
    show(page, rig, "/company?name=globex")
    found: list[int] = []
    while True:
        links = page.locator("details .decisions a").evaluate_all("links => links.map(link => link.href)")
        found += [int(link.rpartition("=")[2]) for link in links]
        if not (earlier := page.get_by_role("link", name="Earlier")).count():
            break
        where = (earlier.get_attribute("href") or "").removeprefix(rig.url)
        earlier.click()
        playwright.expect(page.locator("main")).to_have_attribute("data-address", where, timeout=PATIENCE_MS)
    assert len(wanted) == 2 * len(apps)
    assert wanted <= set(found)
    assert len(set(found)) == len(found)
    page.get_by_role("link", name="Newest").click()
    has(page.get_by_role("navigation", name="Pages of decisions"), "Earlier")


def test_what_is_not_there_is_said_without_a_command_line(page: Page, rig: Rig) -> None:
    for where, said in (
        ("/company?name=nope", "No company 'nope' is registered."),
        ("/app?id=nope", "No app 'nope' is known."),
        ("/?at=soon", "The log has no position soon: give a number"),
    ):
        page.goto(rig.url + where)
        has(page.locator("main"), said)
        assert "`" not in page.locator("main").inner_text()
    rig.troubles.clear()  # the console tells of what is not there, too


def test_workers_are_grouped_and_found_by_their_labels(page: Page, rig: Rig) -> None:
    labels = {"zone": "north <b>hall</b>", "disk": "ssd"}
    timeout_s = rig.api.view("settings")["worker_timeout_s"]
    rig.api.send(ConfigureCluster(settings={"worker_timeout_s": 3600}))  # no agent tells of it
    rig.api.send(RegisterWorker(worker="marked", cores=4, memory_mb=4096, node="n", host="h", labels=labels))
    try:
        show(page, rig, "/workers")
        page.get_by_label("By").select_option("label zone")
        playwright.expect(page).to_have_url(re.compile(r"group=label:zone$"), timeout=PATIENCE_MS)
        group = page.get_by_role("region", name="north <b>hall</b>")
        has(group, "marked")
        has(page.get_by_role("region", name="no zone"), "worker-1")
        group.get_by_role("link", name="disk=ssd").click()
        playwright.expect(page.locator(".worker")).to_have_count(1, timeout=PATIENCE_MS)
        page.get_by_role("link", name="Show all").click()
        has(page.locator("main"), "worker-1")
        show(page, rig, "/settings")
        changed = page.get_by_role("region", name="Who changed what").locator("tbody tr").first
        has(changed, "disk=ssd zone=north <b>hall</b>")
        has(changed, f"local/{os.getuid()}")
        show(page, rig, "/log?kind=WorkerLabelled")
        listed = page.locator("tbody tr").first
        has(listed, "marked")
        playwright.expect(listed.locator("td").last).to_have_text("", timeout=PATIENCE_MS)  # as the event before it
    finally:
        rig.api.send(RemoveWorker(worker="marked", force=True))
        rig.api.send(ConfigureCluster(settings={"worker_timeout_s": timeout_s}))


def test_a_worker_is_drained_and_returned(page: Page, rig: Rig) -> None:
    show(page, rig, "/workers?group=state")
    card = page.locator(".worker").filter(has_text="worker-1")
    card.get_by_role("button", name="Drain").click()
    page.get_by_label("Reason").fill("a <b>noisy</b> fan")
    page.get_by_role("dialog").get_by_role("button", name="Drain").click()
    has(card, "draining")
    has(card, re.compile(r"draining for .*: a <b>noisy</b> fan"))
    show(page, rig, "/settings")
    has(page.locator("tbody").first.locator("tr").first, "draining")
    show(page, rig, "/workers")
    card.get_by_role("button", name="Undrain").click()
    has(card, "alive")
    card.get_by_text("executor").first.click()
    has(card, "running")


def test_the_slider_moves_the_whole_page_and_it_plays_on_from_there(page: Page, rig: Rig) -> None:
    submitted = rig.api.view("app", app="runs")["submittedSeq"]
    show(page, rig, f"/apps?state=all&at={submitted}")
    has(page.locator(".notice"), f"You see the log at position {submitted}")
    has(row(page, "runs"), "pending")
    assert page.get_by_role("button", name="Kill").count() == 0, "the past cannot be changed"
    page.get_by_role("slider", name="Position in the log").focus()
    page.keyboard.press("ArrowLeft")
    page.wait_for_url(f"**at={submitted - 1}")
    playwright.expect(row(page, "runs")).to_have_count(0, timeout=PATIENCE_MS)
    page.get_by_role("link", name="Workers").click()
    has(page.locator(".notice"), f"{submitted - 1}")
    assert f"at={submitted - 1}" in page.url, "the position goes from view to view"
    has(page.locator("main"), "runs nothing")
    page.get_by_label("Speed").select_option("600")
    page.get_by_role("button", name="Play from here").click()
    page.wait_for_url(re.compile(r"/workers$"), timeout=PATIENCE_MS)
    has(page.locator("main"), "executor")


def test_fairness_tells_it_in_a_sentence_and_draws_each_company(page: Page, rig: Rig) -> None:
    show(page, rig, "/fairness")
    has(heading(page), re.compile("Everybody held all that was due|acme missed the most"))
    drawn = page.locator("svg.shares").and_(
        page.get_by_label(re.compile(r"^acme: entitled to [\d.]+ cores on average"))
    )
    playwright.expect(drawn).to_have_count(1, timeout=PATIENCE_MS)
    page.get_by_role("combobox", name="By").select_option("user")
    has(page.get_by_role("region", name="Figures by party"), "acme ann")
    assert page.locator("main code").count() == 0


def test_the_report_of_a_file_is_drawn_as_the_page_draws_it_and_asks_nobody(rig: Rig, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    rig.shell.ok("fairness", "--html", str(file))
    page = rig.visit()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    has(heading(page), re.compile("Everybody held all that was due|acme missed the most"))
    assert page.get_by_role("img", name=re.compile(r"^acme: entitled to [\d.]+ cores on average")).count() == 1
    assert page.get_by_role("img", name="Apps pending over time").count() == 1
    assert page.get_by_role("img", name=re.compile("^acme: the waits of")).locator("circle").count() >= 2
    assert not [url for url in asked if not url.startswith(("file:", "data:"))]
    page.context.close()


@pytest.mark.parametrize(
    ("most", "values"),
    [
        (1, [0, 0.5, 1]),
        (7, [0, 2, 4, 6, 8]),
        (16, [0, 5, 10, 15, 20]),
        (24, [0, 10, 20, 30]),
        (200, [0, 50, 100, 150, 200]),
    ],
)
def test_an_axis_has_round_values(page: Page, rig: Rig, most: int, values: list[float]) -> None:
    show(page, rig, "/fairness")
    assert page.evaluate("most => import('/page/charts.js').then((charts) => charts.levels(most))", most) == values


@pytest.mark.parametrize("where", ["/", "/fairness", "/app?id=runs"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_no_label_of_a_chart_is_smaller_than_eleven_pixels(rig: Rig, where: str, width: int) -> None:
    page = rig.visit(viewport={"width": width, "height": 844})
    page.goto(rig.link())
    heading(page).wait_for()
    show(page, rig, where)
    page.locator("svg.chart text").first.wait_for()
    sizes = page.locator("svg.chart text").evaluate_all(
        "all => all.map((each) => parseFloat(getComputedStyle(each).fontSize) * each.getScreenCTM().a)"
    )
    assert min(sizes) >= 11
    assert max(sizes) < 24
    page.context.close()


def test_the_bars_of_executors_are_whole_in_a_narrow_window(rig: Rig) -> None:
    page = rig.visit(viewport={"width": 390, "height": 844})
    page.goto(rig.link())
    heading(page).wait_for()
    show(page, rig, "/app?id=runs")
    bars = page.locator(".timeline rect.running")
    bars.first.wait_for()
    ends = bars.evaluate_all("all => all.map((each) => each.getBoundingClientRect().right)")
    assert max(ends) <= 390
    page.context.close()


@pytest.mark.parametrize("where", ["/fairness", "/app?id=runs"])
def test_the_frame_is_there_before_a_slow_view_is(rig: Rig, where: str) -> None:
    """The figures of the view are answered only once the frame was seen."""
    page = rig.visit()
    page.goto(rig.link())
    heading(page).wait_for()
    with held_back(page, "/v1/(fairness|apps/runs/card)") as held:
        page.goto(rig.url + where)
        place = page.get_by_role("navigation", name="Views").locator("[aria-current]")
        has(place, "Fairness" if where == "/fairness" else "Apps")
        has(heading(page), "Fairness" if where == "/fairness" else "runs")
        wait_until(lambda: bool(page.title() and held), "the question of the view")
        assert page.locator("main .view").count() == 0
    page.locator("main .view h1").first.wait_for()
    page.context.close()


def test_both_worlds_of_a_what_if_are_laid_over_each_other(page: Page, rig: Rig) -> None:
    show(page, rig, "/what-if")
    page.get_by_label("Cores of acme").fill("16")
    page.get_by_role("button", name="Compare").click()
    has(heading(page), "core-hours would have been due and not held instead of")
    assert "quota.acme=16" in page.url
    assert page.get_by_role("img", name=re.compile(r"acme: held [\d.]+ cores on average, and")).count() == 1
    has(page.get_by_role("region", name="Figures of both worlds"), "→")
    show(page, rig, "/what-if?company_policy=dice")
    has(page.get_by_role("alert"), "company_policy")


def test_a_log_file_is_dropped_and_judged(page: Page, rig: Rig, tmp_path: Path) -> None:
    sound, forged = tmp_path / "sound.jsonl", tmp_path / "forged.jsonl"
    sound.write_text(rig.shell.ok("log", "--json"))
    forged.write_text(sound.read_text().replace('"worker-1"', '"worker-9"', 1))
    show(page, rig, "/log")
    chooser = page.get_by_label(re.compile("Drop a file"))
    chooser.set_input_files(sound)
    has(page.locator(".drop"), "This log follows its rules")
    chooser.set_input_files(forged)
    has(page.locator(".drop"), "altered")
    (tmp_path / "empty.jsonl").write_text("\n\n")
    chooser.set_input_files(tmp_path / "empty.jsonl")
    has(page.locator(".drop"), "the file contains no log")
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8nothing")
    chooser.set_input_files(tmp_path / "photo.jpg")
    has(page.locator(".drop"), "the line is not a log entry")


def test_the_log_is_filtered_and_its_decisions_have_cards(page: Page, rig: Rig) -> None:
    show(page, rig, "/log")
    page.get_by_label("Company", exact=True).fill("amce")
    page.get_by_label("Company", exact=True).press("Enter")
    has(page.locator("main"), "no company 'amce' is registered")
    page.get_by_label("Company", exact=True).fill("acme")
    page.get_by_label("Company", exact=True).press("Enter")
    page.get_by_label("Event").select_option("AppAdmitted")
    playwright.expect(page.locator("tbody tr td:nth-child(3)").first).to_have_text("App admitted", timeout=PATIENCE_MS)
    page.get_by_label("App", exact=True).fill("runs")
    page.get_by_label("App", exact=True).press("Enter")
    playwright.expect(page.locator("tbody tr")).to_have_count(1, timeout=PATIENCE_MS)
    page.locator("tbody tr a").first.click()
    has(page.locator(".card"), "runs of ann at acme admitted")
    has(page.get_by_role("region", name="Companies that could be next"), "acme")


def test_settings_tell_who_changed_what(page: Page, rig: Rig) -> None:
    rig.api.send(ConfigureCluster(settings={"min_runtime_s": 601}))
    show(page, rig, "/settings")
    changed = page.get_by_role("region", name="Who changed what").locator("tbody tr").first
    has(changed, "min_runtime_s 601")
    has(changed, f"local/{os.getuid()}")
    has(row(page, "min_runtime_s"), "601")
    rig.api.send(RegisterWorker(worker="brief", cores=4, memory_mb=4096, node="here", host="here"))
    wait_until(lambda: "brief" not in {each["worker"] for each in rig.api.view("workers")}, "its loss")
    show(page, rig, "/settings")
    lost = page.get_by_role("region", name="Who changed what").locator("tbody tr").filter(has_text="last seen").first
    has(lost, re.compile(r"last seen \d\d:\d\d:\d\d"))
    rig.api.send(RemoveWorker(worker="brief", force=True))


BAD = {
    "/nowhere": "no view",
    "/apps/7": "no view",
    "/?at=x": "the log has no position x",
    "/?at=-1": "the log has no position -1",
    "/?at=": "the log has no position",
    "/?at=1.5": "the log has no position 1.5",
    "/?at=999999999": "the log ends at position",
    "/?at=9999999999999999999": "the log has no position 9999999999999999999",
    "/apps?at=99999999": "the log ends at position",
    "/app": "name an app",
    "/app?id=": "name an app",
    "/app?id=nobody": "nobody",
    "/app?id=%3Cscript%3Ealert(1)%3C%2Fscript%3E": "nothing is named <script>alert(1)</script>",
    "/app?id=%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E": "No app '<img src=x onerror=alert(1)>' is known",
    "/app?id=waits&at=1": "waits",
    "/app?id=%2e%2e%2f": "nothing is named",
    "/app?id=waits&task=x": "task is a number",
    "/app?id=waits&task=99999": "output of task 99999",
    "/company?name=nobody": "nobody",
    "/company?name=%00": "company",
    "/company?name=acme&month=2026-13": "month",
    "/company?name=acme&month=1970-01": "the log has no entry in 1970-01",
    "/company?name=acme&at=1": "acme",
    "/apps?state=dancing": "state is",
    "/apps?reason=boredom": "reason is",
    "/apps?sort=colour": "sort is",
    "/apps?start=-1": "start is a number",
    "/apps?start=99999": "No app passes",
    "/apps?company=nobody": "No app passes",
    "/workers?condition=asleep": "No worker passes",
    "/workers?group=colour": "group is rack or host or state or none or label:KEY",
    "/workers?group=__proto__": "group is rack or host or state or none or label:KEY",
    "/workers?group=label:toString": "no toString",
    "/workers?label=zone": "No worker passes",
    "/log?seq=999999999": "the log ends at position",
    "/log?seq=x": "a position is a number",
    "/log?before=x": "before is a number",
    "/fairness?by=colour": "by is",
    "/log?kind=Nothing": "no event is of the type 'Nothing'",
    "/log?company=nobody": "no company 'nobody'",
    "/log?app=nothing": "no app 'nothing'",
    "/log?kind=LogRestored": "No entry passes",
    "/log?seq=0": "the log has no position 0",
    "/company?name=acme&before=x": "before is a number",
    "/company?name=acme&before=0": "No decision was about it",
    "/company?name=a%2Fb": "nothing is named a/b",
    "/what-if?workers=x": "workers=x cannot be read; write workers=NUMBER,CORES,MIB",
    "/what-if?workers=2000,8,8192": "from 1 to 1,000 can be added",
    "/what-if?quota.acme=-5,1e99": "write quota.acme=CORES,MIB in whole numbers",
    "/what-if?quota.nobody=1,1024": "no company 'nobody'",
}


def test_a_bad_address_is_answered_by_a_sentence_and_never_by_an_empty_page(page: Page, rig: Rig) -> None:
    assert len(BAD) >= 32
    show(page, rig, "/nowhere")
    for where, said in BAD.items():
        page.evaluate(
            "where => { history.pushState(null, '', where); dispatchEvent(new PopStateEvent('popstate')) }", where
        )
        address = page.evaluate("location.pathname + location.search")
        playwright.expect(page.locator("main")).to_have_attribute("data-address", address, timeout=PATIENCE_MS)
        has(page.locator("main"), re.compile(re.escape(said), re.IGNORECASE))
        text = page.inner_text("main")
        assert page.locator("main h1").count() == 1, where
        assert re.search(r"\w+ \w+", text), where
        assert "undefined" not in text, where
        assert "[object" not in text, where


def test_every_view_is_accessible_and_fits_its_window(page: Page, rig: Rig) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    for where in (*VIEWS, "/log?seq=12"):
        page.emulate_media(color_scheme="light")
        show(page, rig, where)
        _check_with_axe(axe, page, where)
        if where in DARK:
            page.emulate_media(color_scheme="dark")
            _check_with_axe(axe, page, f"{where} in the dark", {"runOnly": ["color-contrast"]})
        for width in (390, 768, 2560, 1280):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate(_WIDTH) <= width, (where, width)
            assert page.evaluate(_WIDTH_WITH_WIDE_TABLES) <= width, (where, width)
    page.emulate_media(color_scheme="light")
    show(page, rig, "/apps")
    page.get_by_role("button", name="Kill").first.click()
    _check_with_axe(axe, page, "the question before a kill")
    page.keyboard.press("Escape")


_WIDTH = "document.documentElement.scrollWidth"
_WIDTH_WITH_WIDE_TABLES = f"""() => {{
    const tables = [...document.querySelectorAll(".scroll > table")];
    tables.forEach(table => table.style.minWidth = "4000px");
    const width = {_WIDTH};
    tables.forEach(table => table.style.minWidth = "");
    return width;
}}"""
"""What a browser with wider letters, or a cluster with longer names, would ask for."""


def test_on_a_phone_all_views_are_in_reach_and_a_cell_reads_as_one_text(rig: Rig) -> None:
    page = rig.visit(viewport={"width": 390, "height": 844})
    page.goto(rig.link())
    heading(page).wait_for()
    show(page, rig, "/settings")
    rights = "links => links.map(link => link.getBoundingClientRect().right)"
    assert max(page.get_by_role("navigation", name="Views").get_by_role("link").evaluate_all(rights)) <= 390
    who = page.get_by_role("cell").filter(has_text=f"local/{os.getuid()} operator").first
    name, role = (each.bounding_box() for each in who.locator("> *").all())
    assert name is not None
    assert role is not None
    assert abs(role["x"] - name["x"] - name["width"]) < 10
    page.context.close()


def _check_with_axe(axe: Any, page: Page, where: str, options: dict[str, Any] | None = None) -> None:
    found = axe.run(page, options={"resultTypes": ["violations"], **(options or {})}).response["violations"]
    assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in found] == [], where


def test_the_page_is_used_by_the_keyboard_alone(page: Page, rig: Rig) -> None:
    show(page, rig, "/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    for _ in range(3):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Apps"
    page.keyboard.press("Enter")
    has(heading(page), "not ended")


def test_colours_are_switched_and_kept(page: Page, rig: Rig) -> None:
    page.emulate_media(color_scheme="light")
    show(page, rig, "/")
    light = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    page.get_by_label("Colours").select_option("dark")
    page.reload()
    heading(page).wait_for()
    assert page.evaluate("getComputedStyle(document.documentElement).backgroundColor") != light
    page.get_by_label("Colours").select_option("")


def test_the_page_goes_on_while_masters_and_workers_are_killed(
    tmp_path_factory: pytest.TempPathFactory, browser: Browser
) -> None:
    """In a cluster of its own: what waits elsewhere must not be admitted because of it."""
    with rigged(tmp_path_factory.mktemp("walk"), browser) as rig, opened(rig) as page:
        rig.api.send(ConfigureCluster(settings={"worker_timeout_s": 2}))
        show(page, rig, "/")
        agent, *_ = wait_until(lambda: _agents(rig, "worker-2"), "worker-2, which a busy machine may take for lost")
        os.kill(agent, signal.SIGSTOP)
        has(page.locator(".health"), "worker-2 was lost")
        os.kill(agent, signal.SIGKILL)
        wait_until(lambda: set(_agents(rig, "worker-2")) - {agent}, "the return of worker-2")
        playwright.expect(page.locator(".health")).not_to_contain_text("worker-2 was lost", timeout=PATIENCE_MS)
        master = wait_until(lambda: rig.api.read("/v1/status")["master"], "a master, of which one is elected anew")
        os.kill(master["pid"], signal.SIGKILL)
        has(page.locator(".masters"), re.compile(rf"Master (?!{re.escape(master['id'])})"))
        rig.submit("after-the-failover", cores=8, tasks=8)
        has(row(page, "acme"), re.compile(r"[2-9] apps"))
        assert rig.troubles == []


def _agents(rig: Rig, name: str) -> list[int]:
    """The process of the agent of a live worker, as soon as it is known."""
    workers = rig.api.read("/v1/status")["workers"]
    return [each["pid"] for each in workers if each["worker"] == name and each["status"] == "alive" and each["pid"]]


def test_a_server_that_is_away_is_told_and_found_again(page: Page, rig: Rig) -> None:
    show(page, rig, "/")
    page.context.set_offline(True)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    show_offline = page.locator(".notice.bad")
    has(show_offline, "The server does not answer")
    page.context.set_offline(False)
    playwright.expect(show_offline).to_have_count(0, timeout=PATIENCE_MS)


def test_a_store_that_hangs_is_told_from_a_server_that_is_away(page: Page, rig: Rig) -> None:
    show(page, rig, "/")
    store = rig.shell.status()["store"]["pid"]
    os.kill(store, signal.SIGSTOP)
    try:
        has(page.locator(".notice.bad"), "the store")
    finally:
        os.kill(store, signal.SIGCONT)
    playwright.expect(page.locator(".notice.bad")).to_have_count(0, timeout=PATIENCE_MS)


def test_each_role_sees_and_does_what_it_may_and_a_revoked_token_ends_its_session(rig: Rig) -> None:
    """The last walk: from here on there are accounts."""
    tokens = {}
    rig.submit("of-bob", user="bob", cores=8, tasks=8, name="secret-of-bob", hold=True)
    rig.submit("of-ann", cores=8, tasks=8, hold=True)
    accounts = {"acme/ann": False, "acme/bob": False, "globex/adm": True, "op/olga": False, "auditor/ida": False}
    for account, admin in accounts.items():
        rig.api.send(AddAccount(account=account, role="admin" if admin else None))
        tokens[account] = new_token()
        rig.api.send(IssueToken(token=tokens[account].id, account=account, hash=tokens[account].hash))
    pages = {account: rig.visit() for account in ("acme/ann", "globex/adm", "op/olga", "auditor/ida")}
    for account, page in pages.items():
        page.goto(f"{rig.url}/apps")
        page.get_by_label("Token").fill(tokens[account].text)
        page.get_by_role("button", name="Log in").click()
        has(page.locator(".account"), account)
        heading(page).wait_for()
    ann, globex, olga, ida = pages.values()
    has(row(ann, "of-ann"), "Kill")
    assert row(ann, "of-bob").count() == 0
    assert globex.locator("tbody tr").count() == 0
    has(row(olga, "of-bob"), "Kill")
    assert "secret-of-bob" not in olga.inner_text("main")
    assert ida.get_by_role("button", name="Kill").count() == 0
    ann.goto(f"{rig.url}/app?id=of-bob")
    has(heading(ann), "may not see apps of acme/bob")
    assert "secret-of-bob" not in ann.inner_text("main")
    globex.goto(f"{rig.url}/company?name=globex")
    has(globex.locator("#fair"), re.compile("^Was I treated fairly\\?$", re.IGNORECASE))
    globex.goto(f"{rig.url}/")
    has(row(globex, "acme"), "8 cores")
    has(globex.get_by_role("img", name=re.compile("^Cores granted in the last hour")), "")
    assert not re.search("ann|bob|of-", row(globex, "acme").inner_text())
    row(olga, "of-ann").get_by_role("button", name="Kill").click()
    reason = olga.get_by_label("Reason, which the log keeps")
    assert reason.get_attribute("required") is not None
    reason.fill("the walk is over")
    olga.get_by_role("dialog").get_by_role("button", name="Kill").click()
    playwright.expect(row(olga, "of-ann")).to_have_count(0, timeout=PATIENCE_MS)
    asked = time.monotonic()
    rig.api.send(RevokeToken(token=tokens["acme/ann"].id))
    has(ann.get_by_role("alert"), "The token of this session was revoked")
    assert ann.request.get(f"{rig.url}/v1/whoami").status == 401
    assert time.monotonic() - asked < PATIENCE_MS / 1000
    olga.get_by_role("button", name="Log out").click()
    has(heading(olga), "Log in to fairlog")
    assert olga.request.get(f"{rig.url}/v1/whoami").status == 401
    for page in pages.values():
        page.context.close()
