"""The API of a real `up`, asked by its clients and over plain HTTP."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

import fairlog
from fairlog.api import questions
from fairlog.api.async_client import AsyncApiClient
from fairlog.api.client import ApiClient
from fairlog.client import StoreClient
from fairlog.errors import NoCluster, Refused, Unreachable
from scheduler.model.commands import KillApp, RegisterCompany, SubmitApp
from scheduler.model.errors import CommandRejected, DuplicateApp, NotAuthenticated, UnknownApp
from scheduler.rules.view.views import VIEWS
from scheduler.service.receipts import Receipt
from tests.integration.cli_rig import Service, Shell
from tests.waiting import HOPELESS_S, wait_until


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What `up.json` says of a running `up` with a worker and the company acme."""
    shell = Shell(tmp_path_factory.mktemp("home"))
    shell.ok("up", "--detach", "--workers", "1", "--masters", "1", "--cores", "8", "--memory", "8G")
    said: dict[str, Any] = json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())
    with ApiClient(f"http+unix:{said['socket']}") as client:
        client.send(RegisterCompany(company="acme"))
    yield {**said, "shell": shell}
    shell.run("down")


@pytest.fixture
def client(up: dict[str, Any]) -> Iterator[ApiClient]:
    with ApiClient(f"http+unix:{up['socket']}") as made:
        yield made


leaks = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""httpcore leaves a Unix socket to the garbage collector if nobody listens on it."""


def submission(app: str, *command: str, **about: Any) -> SubmitApp:
    return SubmitApp(app=app, company="acme", user="ann", tasks=1, command=command or ("true",), **about)


def test_an_app_runs_and_its_output_is_read(client: ApiClient) -> None:
    client.submit(submission("hello", "sh", "-c", "echo $WORD", cwd="/"), {"WORD": "hello"})
    wait_until(lambda: client.view("app", app="hello")["state"] == "finished", "the app's end")
    assert client.output("hello", 0) == b"hello\n"
    assert "hello" in [app["app"] for app in client.view("apps", everything=True)]
    assert "hello" not in [app["app"] for app in client.view("apps")]
    events = list(client.log())
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert any(event.get("private", {}).get("env") == ["WORD"] for event in events)
    with pytest.raises(UnknownApp):
        client.send(KillApp(app="nobody"))


def test_every_view_comes_as_the_command_line_shows_it(up: dict[str, Any], client: ApiClient) -> None:
    for view in VIEWS.keys() - {"app"}:
        assert client.view(view) is not None
    shell: Shell = up["shell"]
    assert client.view("settings") == json.loads(shell.ok("settings", "--json"))


def test_many_commands_are_answered_in_order(client: ApiClient) -> None:
    apps = [submission(f"many-{number % 1200}", hold=True) for number in range(1201)]
    outcomes = client.send_many(apps)
    assert all(isinstance(outcome, Receipt) for outcome in outcomes[:-1])
    assert isinstance(outcomes[-1], DuplicateApp)
    assert len([app for app in client.view("apps") if app["app"].startswith("many-")]) == 1200
    killed = client.send_many([KillApp(app=each.app) for each in apps[:-1]])
    assert not [each for each in killed if isinstance(each, CommandRejected)]


def test_a_long_list_is_printed_page_by_page_as_it_comes(
    up: dict[str, Any], client: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MANY", 2)
    shell: Shell = up["shell"]
    names = [f"page-{number}" for number in range(5)]
    client.send_many([submission(name, hold=True) for name in names])
    whole = client.view("apps")
    parts = list(client.parts("apps"))
    assert ([len(part) for part in parts[:2]], [app for part in parts for app in part]) == ([2, 2], whole)
    monkeypatch.undo()
    shown = shell.ok("apps", "-o", "app,company").splitlines()
    assert shown[0].split() == ["APP", "COMPANY"]
    assert [line.split()[0] for line in shown[1:]] == [app["app"] for app in whole]
    client.send_many([KillApp(app=name) for name in names])


def test_the_asyncio_twin_does_the_same(up: dict[str, Any]) -> None:
    async def story() -> None:
        async with AsyncApiClient(f"http+unix:{up['socket']}") as client:
            receipt = await client.call("send", submission("twin", hold=True), command_id="twin")
            again = await client.call("send", submission("twin", hold=True), command_id="twin")
            assert again[:2] == receipt[:2]
            assert (await client.call("view", "app", app="twin"))["onHold"]
            assert (await client.call("view", "app", app="twin", at=receipt.seq))["submittedSeq"] == receipt.seq
            followed = client.follow(after=receipt.seq - 1)
            assert (await anext(followed))["data"]["app"] == "twin"
            await client.call("send", KillApp(app="twin"))
            async with asyncio.timeout(HOPELESS_S):
                while (event := await anext(followed))["type"] != "AppRemoved":
                    pass
            assert event["data"]["app"] == "twin"
            await followed.aclose()  # type: ignore[attr-defined]
            events = [event["seq"] async for event in client.log(receipt.seq - 1)]
            assert events[0] == receipt.seq

    asyncio.run(story())


def test_over_tcp_nobody_without_a_token_gets_in(up: dict[str, Any]) -> None:
    with ApiClient(up["api"], token="") as client:
        client.check()
        for ask in (lambda: client.view("apps"), lambda: client.send(KillApp(app="a"))):
            with pytest.raises(NotAuthenticated, match="without a token"):
                ask()
    assert httpx.get(f"{up['api']}/openapi.json").json()["openapi"] == "3.1.0"


def test_a_session_that_is_ended_at_one_server_is_ended_at_the_others(up: dict[str, Any], tmp_path: Path) -> None:
    """Also at one that was started afterwards."""
    mark = {"fairlog-page": "1", "sec-fetch-site": "same-origin"}
    listen = ("--listen", "127.0.0.1:0", "--socket")
    with ExitStack() as stack:

        def another(name: str) -> httpx.Client:
            service = stack.enter_context(Service(up["shell"], "api", *listen, str(tmp_path / name), name=name))
            service.hear("READY=1")
            places = next(str(entry["at"]) for entry in service.entries() if "at" in entry).split(", ")
            (url,) = (place for place in places if place.startswith("http://"))
            return stack.enter_context(httpx.Client(base_url=url))

        first, second = stack.enter_context(httpx.Client(base_url=up["api"])), another("second")
        home = stack.enter_context(httpx.Client(transport=httpx.HTTPTransport(uds=up["socket"]), base_url="http://x"))
        for _ in range(2):
            key = home.post("/v1/links").json()["key"]
            assert first.post("/v1/session", json={"key": key}, headers=mark).status_code == 200
        (cookie,) = first.cookies.values()

        def shown(to: httpx.Client) -> dict[str, str]:
            return {"cookie": f"fairlog-{to.base_url.port}={cookie}", **mark}

        def refused(by: httpx.Client) -> str:
            answer = by.get("/v1/session", headers=shown(by))
            return str(answer.json()["detail"]) if answer.status_code == 401 else ""

        kept = second.get("/v1/session", headers=shown(second))
        assert kept.status_code == 200, kept.text
        assert first.delete("/v1/session", headers=mark).status_code == 200
        for server in (second, another("third")):
            said = wait_until(partial(refused, server), "the session is ended there")
            assert said.startswith("the session was ended")
            assert server.post("/v1/session", headers=shown(server)).status_code == 401


@leaks
def test_a_client_finds_another_server_when_one_does_not_answer(up: dict[str, Any], tmp_path: Path) -> None:
    with ApiClient([f"http+unix:{tmp_path / 'nobody'}", f"http+unix:{up['socket']}"]) as client:
        assert client.view("cluster")["head"] > 0
    with ApiClient(f"http+unix:{tmp_path / 'nobody'}", timeout_s=0.3) as client, pytest.raises(Unreachable):
        client.view("cluster")
    gc.collect()
    with pytest.raises(Refused, match="begins with"):
        ApiClient("ftp://x")


@leaks
def test_a_server_that_is_killed_comes_back_and_a_follower_misses_nothing(
    up: dict[str, Any], client: ApiClient
) -> None:
    before = client.send(submission("kept", hold=True)).seq
    followed = client.follow("/v1/apps/kept/events", before - 1)
    assert next(followed)["seq"] == before
    (process,) = (each for each in psutil.Process(up["pid"]).children() if _listens(each, up["socket"]))
    os.kill(process.pid, signal.SIGKILL)
    receipt = client.send(KillApp(app="kept"))
    ended = next(event for event in followed if event["type"] == "AppRemoved")
    followed.close()  # type: ignore[attr-defined]
    gc.collect()
    assert before < ended["seq"] <= receipt.seq
    assert up["api"] == json.loads((Path(up["data"]) / "up.json").read_text())["api"]


def test_the_face_finds_the_api_or_the_store(up: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAIRLOG_API", f"http+unix:{up['socket']}")
    with fairlog.Client() as through_api, fairlog.Client(up["url"]) as through_store:
        assert (type(through_api.through), type(through_store.through)) == (ApiClient, StoreClient)
        for view in ("companies", "settings", "workers"):
            assert through_api.view(view) == json.loads(json.dumps(through_store.view(view)))
    monkeypatch.delenv("FAIRLOG_API")
    monkeypatch.setattr("fairlog.client.find_running", lambda _: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    with pytest.raises(NoCluster, match="no cluster found"):
        fairlog.Client()


def test_the_command_line_speaks_to_the_api_that_it_is_told(up: dict[str, Any], tmp_path: Path) -> None:
    shell = Shell(tmp_path / "elsewhere")
    shell.env["FAIRLOG_API"] = f"http+unix:{up['socket']}"
    assert shell.status()["master"] is not None
    app = shell.submit("--hold", "--env", "A=b", "--", "sleep", "600")
    assert app in shell.ok("apps")
    assert shell.ok("release", app) == f"{app} released\n"
    assert shell.ok("kill", app) == f"{app} killed\n"
    assert app not in shell.ok("apps")
    assert app in shell.ok("apps", "--all")
    assert "acme" in shell.ok("shares")
    assert "AppRemoved" in shell.ok("log", "--app", app)
    assert "killed" in shell.ok("explain", app)
    assert "follows its rules" in shell.ok("audit")
    before = shell.head()
    assert before <= int(shell.ok("checkpoint").partition(":")[0]) <= shell.head()  # a seal may come in between
    proof = shell.home / "receipts.jsonl"
    owner = ("--company", "acme", "--user", "ann")
    done = shell.run("submit", *owner, "--receipt", str(proof), "--wait", "--", "echo", "hello")
    app, output = done.out.split()
    assert (done.code, output, done.err.splitlines()[-1].split(" after ")[0]) == (0, "hello", f"{app} finished")
    assert shell.ok("logs", app) == shell.ok("logs", "--follow", app) == "hello\n"
    assert "succeeded" in shell.ok("app", app)
    assert "follows its rules" in shell.ok("audit", "--receipts", str(proof))
    assert shell.run("backup", "file:///nowhere").err == (
        f"Error: this needs the store itself, and you use the API at http+unix:{up['socket']}; run it on the store's "
        "host with --store URL, or with --data DIR of its `up` and without FAIRLOG_TOKEN\n"
    )
    assert shell.run("kill", "nobody").err == "Error: no app 'nobody' is known; `fairlog apps --all` lists the apps\n"


def _listens(process: psutil.Process, path: str) -> bool:
    return any(str(each.laddr) == path for each in process.net_connections("unix"))
