"""The Python clients: every example of their docstrings runs, and the store tells what the API tells."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import json
import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fairlog
from fairlog.client import AsyncClient, Client
from scheduler.model.errors import InvalidCommand
from tests.integration.cli_rig import Shell
from tests.waiting import HOPELESS_S, wait_until

EXAMPLES = {
    f"{kind.__name__}.{name}" if name else kind.__name__: test
    for kind in (Client, AsyncClient)
    for test in doctest.DocTestFinder(recurse=True).find(kind, kind.__name__, globs={})
    for name in [test.name.partition(".")[2]]
}
PUBLIC = [
    f"{kind.__name__}.{name}"
    for kind in (Client, AsyncClient)
    for name, _ in inspect.getmembers(kind, callable)
    if not name.startswith("_")
]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """What `up.json` says of an `up` of this home, with a worker of 8 cores and the company acme, which has used some.

    What an app used is told once its executors are gone, which may be after its end.
    """
    shell = Shell(tmp_path_factory.mktemp("client"))
    shell.ok("up", "--detach", "--workers", "1", "--masters", "1", "--cores", "8", "--memory", "8G")
    shell.ok("company", "add", "acme")
    first = shell.submit("--wait", "--", "true").split()[0]
    wait_until(lambda: not shell.app(first)["executors"], "its executors to be gone")
    said: dict[str, Any] = json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())
    yield {**said, "home": shell.home}
    shell.run("down")


@pytest.fixture
def at_home(up: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """This process finds the `up` as the verbs of its user do."""
    for name in [name for name in os.environ if name.startswith(("FAIRLOG", "XDG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(up["home"]))
    monkeypatch.chdir(up["home"])
    return up


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.usefixtures("at_home")
def test_an_example_of_the_client_does_what_it_says(name: str) -> None:
    with fairlog.Client() as client:
        test = EXAMPLES[name]
        test.globs = {"fairlog": fairlog, "asyncio": asyncio, "client": client}
        said: list[str] = []
        doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append, clear_globs=False)
    assert said == []


def test_every_method_of_a_client_has_an_example_and_its_twin() -> None:
    assert [name for name in (*PUBLIC, "Client", "AsyncClient") if not EXAMPLES[name].examples] == []
    twins = {name.partition(".")[2] for name in PUBLIC if name.startswith("Async")}
    assert twins == {name.partition(".")[2] for name in PUBLIC if not name.startswith("Async")}


def test_the_store_tells_what_the_api_tells(at_home: dict[str, Any]) -> None:
    def told(client: Client) -> list[object]:
        events = [event for event in client.log(after=app.seq - 1) if event.seq <= head]
        return [client.app(app), client.tasks(app), client.logs(app), events, client.explain(app).waited.ms]

    with fairlog.Client() as through_api, fairlog.Client(at_home["url"]) as through_store:
        app = through_store.submit("sh -c 'echo $A; exit 4'", company="acme", user="ann", env={"A": "b"})
        assert through_store.wait(app).detail == "task 0 ended with exit code 4"
        assert through_store.logs(app) == "b\n"
        wait_until(lambda: not through_store.app(app).executors, "its executor to be gone")
        head = max(event.seq for event in through_store.log(after=app.seq - 1))  # later ones are of earlier apps
        assert told(through_store) == told(through_api)
        following = through_store.log(app.seq - 1, follow=True)
        assert next(following).seq >= app.seq


def test_the_twin_reads_a_store_as_well(at_home: dict[str, Any]) -> None:
    async def story() -> list[int]:
        async with AsyncClient(at_home["url"]) as client:
            app = await client.submit("true", company="acme", user="ann")
            assert (await client.wait(app)).ended
            return [event.seq async for event in client.log(after=app.seq - 1)]

    assert asyncio.run(story())


@pytest.mark.usefixtures("at_home")
def test_an_array_runs_by_its_indexes_and_a_wait_may_end_early() -> None:
    with fairlog.Client() as client:
        array = client.submit("sh -c 'echo $FAIRLOG_TASK_INDEX'", company="acme", user="ann", array="3,7-9")
        assert client.wait(array).tasks == 4
        assert client.logs(array) == "3\n7\n8\n9\n"
        held = client.submit("true", company="acme", user="ann", hold=True)
        with pytest.raises(TimeoutError, match=r"is pending and has not ended within 0.1 s"):
            client.wait(held, timeout_s=0.1)
        with pytest.raises(TimeoutError, match=r"has not ended within 0\.1 s"):
            client.wait(held, timeout=0.1)
        with pytest.raises(TypeError, match="one and the same"):
            client.wait(held, timeout=1, timeout_s=1)
        for wrong in (1, -1):
            with pytest.raises(fairlog.errors.InvalidCommand, match="its tasks are 0 to 0"):
                client.logs(held, task=wrong)
        with pytest.raises(fairlog.errors.InvalidCommand, match="name the company and the user"):
            client.submit("true")
        with pytest.raises(fairlog.errors.UnknownApp):
            client.wait("nobody")
        with pytest.raises(fairlog.errors.InvalidCommand, match=r"^no app is 'sleeping'; the states are pending, "):
            client.apps(state="sleeping")
        for asked in (client.apps, client.efficiency):
            with pytest.raises(fairlog.errors.UnknownCompany, match="did you mean 'acme'"):
                asked(company="acne")


def test_without_a_cluster_a_client_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for kind in (Client, AsyncClient):
        with pytest.raises(fairlog.errors.NoCluster, match="start one with `fairlog up`"):
            kind()


@pytest.mark.usefixtures("at_home")
def test_whose_an_app_is_may_be_said_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with fairlog.Client() as client:
        with pytest.raises(fairlog.errors.InvalidCommand, match="or set FAIRLOG_COMPANY and FAIRLOG_USER: "):
            client.submit("true")
        with pytest.raises(fairlog.errors.InvalidCommand, match="name the company and the user of the app"):
            fairlog.Executor()
        monkeypatch.setenv("FAIRLOG_COMPANY", "acme")
        monkeypatch.setenv("FAIRLOG_USER", "eve")
        found = client.app(client.submit("true", hold=True))
        assert (found.company, found.user) == ("acme", "eve")
        assert client.app(client.submit("true", user="bob", hold=True)).user == "bob"
        with fairlog.Executor() as pool:
            assert pool.submit(pow, 2, 5).result() == 32
            assert (client.app(pool.app).company, client.app(pool.app).user) == ("acme", "eve")


@pytest.mark.usefixtures("at_home")
def test_what_is_submitted_is_a_job_as_users_of_submitit_know_it() -> None:
    with fairlog.Client() as client:
        fails = client.submit("sh -c 'echo out; echo why >&2; exit 3'", company="acme", user="ann")
        with pytest.raises(
            fairlog.errors.JobFailed, match="failed: task 0 ended with exit code 3; its stderr ends with 'why'"
        ):
            fails.result(timeout=HOPELESS_S)
        failure = fails.exception()
        assert failure is not None
        assert (failure.state, failure.stderr, fails.stdout(), fails.done(), fails.state) == (
            "failed", "why\n", "out\n", True, "failed",
        )  # fmt: skip
        held = client.submit("true", company="acme", user="ann", hold=True)
        assert (held.state, held.done(), held.job_id) == ("pending", False, held.app)
        with pytest.raises(TimeoutError, match="has not ended within"):
            held.result(timeout=0.1)
        held.cancel()
        held.cancel()
        assert (held.state, client.wait(held).state) == ("killed", "killed")


@pytest.mark.usefixtures("at_home")
def test_an_array_is_a_job_for_each_of_its_values() -> None:
    command = ["sh", "-c", 'echo "$1 $2"; [ "$1" != bad ] || exit 4; [ "$1" != long ] || sleep 600', "x"]
    with fairlog.Client() as client:
        with pytest.raises(fairlog.errors.InvalidCommand, match="at least one value"):
            client.map_array("echo", [])
        jobs = client.map_array(command, ["it's", "bad", "long"], ["a b", "$HOME", "*"], company="acme", user="ann")
        first, bad, long = jobs
        assert first.result(timeout=HOPELESS_S) == "it's a b\n"
        assert str(bad.exception(timeout=HOPELESS_S)) == f"{bad.job_id} failed: task 1 ended with exit code 4"
        assert bad.stdout() == "bad $HOME\n"
        wait_until(lambda: long.stdout() == "long *\n", "its output")
        assert (long.state, long.done()) == ("running", False)
        long.cancel()
        long.wait(timeout=HOPELESS_S)
        assert (long.state, client.wait(long).state) == ("cancelled", "failed")
        clock = client.map_array(
            "sh -c 'date +%s%N; sleep 0.3; date +%s%N'", range(3), at_once=1, company="acme", user="ann"
        )
        spans = sorted([int(line) for line in job.result(timeout=HOPELESS_S).split()] for job in clock)
        assert [begun >= ended for (_, ended), (begun, _) in pairwise(spans)] == [True, True]


@pytest.mark.usefixtures("at_home")
def test_a_gang_is_submitted_by_either_client() -> None:
    about: dict[str, Any] = {"company": "acme", "user": "ann", "executor_program": True, "executor_cores": 1}
    words = ["sh", "-c", 'test "$FAIRLOG_WORLD" = 2']
    with Client() as client:
        with pytest.raises(
            InvalidCommand, match=r"^a gang is executors that run a program; give executor_program=True"
        ):
            client.submit(words, company="acme", user="ann", gang=True)
        for wrong, why in (
            ({"executors": 2}, "^an app has no field 'executors'; give executor_limit$"),
            ({"cpus": 2}, "^an app has no field 'cpus'; give cores$"),
            ({"timeout": 60}, "^an app has no field 'timeout'; give max_runtime_s$"),
            ({"executor_core": 2}, "^an app has no field 'executor_core'; give executor_cores$"),
            ({"colour": "red"}, r"^an app has no field 'colour'; help\(fairlog.SubmitApp\) lists the fields$"),
        ):
            with pytest.raises(InvalidCommand, match=why):
                client.submit(words, gang=True, **{**about, **wrong})
        app = client.submit(words, gang=True, executor_limit=2, **about)
        assert (client.wait(app).state, client.wait(app).gang) == ("finished", True)

    async def story() -> str:
        async with AsyncClient() as twin:
            app = await twin.submit(words, gang=True, executor_limit=2, **about)
            return str((await twin.wait(app)).state)

    assert asyncio.run(story()) == "finished"
