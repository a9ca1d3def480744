"""The REST protocol of Spark's Master: recorded requests, what each field means, who may ask, and bad input."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from fairlog.api.app import Door
from fairlog.api.exchange import MAX_BODY
from fairlog.api.feed import Feed
from fairlog.api.limits import TOKEN_BURST, Rates
from fairlog.api.serve import CannotListen, Where, _beside
from fairlog.compat.spark_rest.answers import app_of, submission_of
from fairlog.compat.spark_rest.requests import SPARK_SUBMIT, read_create, written
from fairlog.compat.spark_rest.server import make_app
from fairlog.engines.spark.driver import CANNOT_START, PROPERTIES
from scheduler.model.commands import (
    AddAccount,
    EndedDriver,
    IssueToken,
    RegisterCompany,
    RegisterKind,
    SetLimit,
)
from scheduler.model.ids import driver_id
from scheduler.service.tokens import new_token
from tests.unit.fairlog.api.served import ACME, KEYS, ROOT, WORKER, served, submission
from tests.waiting import HOPELESS_S, wait_until

if TYPE_CHECKING:
    import fakeredis

    from fairlog.api.handlers import Handlers

RECORDED: dict[str, Any] = {
    "action": "CreateSubmissionRequest",
    "appArgs": ["--rows", "100"],
    "appResource": "file:/data/jobs/report.jar",
    "clientSparkVersion": "4.3.0",
    "environmentVariables": {"SPARK_SCALA_VERSION": "2.13", "SPARK_BEELINE_OPTS": " -Djline.terminal=none"},
    "mainClass": "org.example.Report",
    "sparkProperties": {
        "spark.driver.supervise": "false",
        "spark.app.name": "org.example.Report",
        "spark.driver.memory": "512m",
        "spark.submit.pyFiles": "",
        "spark.submit.deployMode": "cluster",
        "spark.master": "spark://127.0.0.1:6066",
        "spark.executor.memory": "512m",
        "spark.x.y": "a b\\c",
        "spark.jars": "file:/data/jobs/report.jar",
        "spark.master.rest.enabled": "true",
        "spark.app.submitTime": "1795688536967",
    },
}
"""What spark-submit of Spark 4.3 sends, but for names."""
CREATE = "/v1/submissions/create"
Ask = Callable[..., Awaitable[httpx.Response]]


def request(**changed: Any) -> dict[str, Any]:
    """The recorded request; a field that is None is left out."""
    return {name: value for name, value in {**RECORDED, **changed}.items() if value is not None}


def having(**properties: Any) -> dict[str, Any]:
    """The recorded request with these properties, whose names are written with `__` for a dot."""
    named = {name.replace("__", "."): value for name, value in properties.items()}
    return request(sparkProperties={**RECORDED["sparkProperties"], **named})


def encoded(asked: object) -> bytes:
    return json.dumps(asked).encode()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for folder, file in (("bin", "spark-submit"), ("jars", "spark-core_2.13-4.3.0.jar")):
        (tmp_path / "spark" / folder).mkdir(parents=True)
        (tmp_path / "spark" / folder / file).touch()
    monkeypatch.setenv("FAIRLOG_API", "http://api:8443")
    return str(tmp_path / "spark")


@pytest.fixture
def api(fake: fakeredis.FakeRedis) -> Iterator[Handlers]:
    with served(fake) as made:
        for command in (ACME, WORKER):
            made.sender.send(ROOT, command)
        fake.set(KEYS.lease, "m")
        yield made


def run(api: Handlers, home: str, *stories: Callable[[Ask], Awaitable[None]]) -> None:
    """Each story with a server of its own, which knows nothing but the log."""

    async def told() -> None:
        for story in stories:
            feed = Feed()
            door = Door(api, feed)
            api.replica.heard = feed.heard
            feed.start()
            transport = httpx.ASGITransport(make_app(door, home), raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:6066") as client:
                await story(client.request)
            feed.close()

    asyncio.run(told())


def with_account(api: Handlers, account: str) -> str:
    token = new_token()
    for command in (AddAccount(account=account), IssueToken(token=token.id, account=account, hash=token.hash)):
        api.sender.send(ROOT, command)
    folded(api)
    return token.text


def folded(api: Handlers) -> None:
    """The replica has all that was answered."""
    assert api.replica.wait_for(api.replica.log.head().seq, HOPELESS_S)


def test_a_recorded_request_becomes_the_app_of_a_driver(api: Handlers, home: str) -> None:
    async def story(ask: Ask) -> None:
        made = await ask("POST", CREATE, json=RECORDED)
        said = made.json()
        assert (made.status_code, said["action"], said["success"]) == (200, "CreateSubmissionResponse", True)
        assert said["serverSparkVersion"] == "4.3.0"
        assert "does not count" not in said["message"]
        names.append(said["submissionId"])

    names: list[str] = []
    run(api, home, story)
    folded(api)
    app = api.replica.read(lambda state: state.apps[app_of(names[0])])[1]
    assert (app.spec.company, app.spec.user, app.name) == ("acme", "spark", "org.example.Report")
    assert (app.spec.driver.cores, app.spec.driver.memory_mb, app.spec.supervise) == (1, 512 + 384, False)  # type: ignore[union-attr]
    assert app.private is not None
    assert app.private.cwd == "/data/jobs"
    jar = "file:/data/jobs/report.jar"
    assert app.private.command[3:] == ("acme", "spark", home, "--class", "org.example.Report", jar, "--rows", "100")
    assert {"SPARK_SCALA_VERSION", "FAIRLOG_API", "FAIRLOG_TOKEN", PROPERTIES} <= {*app.private.env}


def test_a_submission_is_known_by_its_name_to_every_server(api: Handlers, home: str) -> None:
    """Names have digits and dashes only, by which Airflow reads them, and a field of an answer is a line."""
    names: list[str] = []

    async def submit(ask: Ask) -> None:
        names.append((await ask("POST", CREATE, json=RECORDED)).json()["submissionId"])

    async def watch(ask: Ask) -> None:
        answer = await ask("GET", f"/v1/submissions/status/{names[0]}")
        assert answer.json()["success"]
        lines = [line.strip() for line in answer.text.splitlines() if "driverState" in line]
        assert lines[0].split(" : ")[1].replace(",", "").replace('"', "") in ("SUBMITTED", "RUNNING")

    async def kill(ask: Ask) -> None:
        assert (await ask("POST", f"/v1/submissions/kill/{names[0]}")).json()["success"]

    async def ended(ask: Ask) -> None:
        said = (await ask("GET", f"/v1/submissions/status/{names[0]}")).json()
        assert (said["driverState"], said["submissionId"]) == ("KILLED", names[0])
        again = (await ask("POST", f"/v1/submissions/kill/{names[0]}")).json()
        assert (again["action"], again["success"]) == ("KillSubmissionResponse", False)
        assert "has ended already: it is KILLED" in again["message"]

    run(api, home, submit, watch, kill, ended)
    assert re.fullmatch(r"driver-[0-9\-]+", names[0])


@pytest.mark.parametrize("app", ["app-1", "app-20261126104303-0104302101", "story", "app-9f2bb25ac2e2"])
def test_the_name_of_a_submission_leads_back_to_its_app(app: str) -> None:
    assert app_of(submission_of(app)) == app


def test_the_states_of_a_driver_are_those_of_its_app(api: Handlers, home: str) -> None:
    """Granted it runs, failed and supervised it is relaunched, and a program that could not start is an error."""
    for name, about in (("app-1", {}), ("app-2", {"supervise": True}), ("app-3", {}), ("app-4", {})):
        api.sender.send(ROOT, submission(name, driver=True, tasks=None, cores=0, **about))

    def state_of(name: str) -> str:
        folded(api)
        found: list[str] = []

        async def ask_for(ask: Ask) -> None:
            said = (await ask("GET", f"/v1/submissions/status/{submission_of(name)}")).json()
            found.append(said["driverState"])
            assert ("workerHostPort" in said) == (said["driverState"] == "RUNNING")

        run(api, home, ask_for)
        return found[0]

    assert wait_until(lambda: {state_of(f"app-{number}") for number in range(1, 5)} == {"RUNNING"}, "the drivers")
    for name, code in (("app-1", 0), ("app-2", 1), ("app-3", 1), ("app-4", CANNOT_START)):
        driver = driver_id(name, 0)
        api.sender.send(
            ROOT, EndedDriver(driver=driver, worker="w1", reason="exited" if not code else "failed", exit_code=code)
        )
    assert [state_of(f"app-{number}") for number in (1, 3, 4)] == ["FINISHED", "FAILED", "ERROR"]
    assert state_of("app-2") in ("RELAUNCHING", "RUNNING")


def test_what_cannot_be_read_is_refused_in_a_sentence_and_changes_nothing(api: Handlers, home: str) -> None:
    resources = {"spark.driver.resource.gpu.amount": "1"}
    cases: list[tuple[bytes, str]] = [
        (b"no json", "the body is not JSON"),
        (b"", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"[]", 'must be a JSON object with "action"'),
        (encoded({}), 'must be a JSON object with "action"'),
        (encoded(request(action="KillSubmissionResponse")), "is CreateSubmissionRequest here"),
        (encoded(request(mainClass=None)), 'no text "mainClass"'),
        (encoded(request(appResource=None)), 'no text "appResource"'),
        (encoded(request(clientSparkVersion=None)), 'no text "clientSparkVersion"'),
        (encoded(request(sparkProperties=None)), '"sparkProperties" must be an object'),
        (encoded(request(sparkProperties={"spark.x": ["y"]})), "spark.x in sparkProperties must be a text"),
        (encoded(request(sparkProperties=resources)), "spark.driver.resource.gpu.amount: a driver of Spark is granted"),
        (encoded(request(appArgs="a")), '"appArgs" must be a list'),
        (encoded(request(appArgs=[None])), "number 1 of appArgs must be a text"),
        (encoded(request(appArgs=["\ud800"])), "number 1 of appArgs has half of a character"),
        (encoded(request(appArgs=["a\0b"])), "number 1 of appArgs has a NUL character"),
        (encoded(request(mainClass="--master")), "mainClass must not begin with a dash"),
        (encoded(request(appResource="report.jar")), "a URL or an absolute path"),
        (encoded(request(appResource="/data/pi.py")), f"run {SPARK_SUBMIT}"),
        (encoded(request(environmentVariables={"FAIRLOG_TOKEN": "x"})), "FAIRLOG_TOKEN in environmentVariables"),
        (encoded(request(environmentVariables={"A B": "x"})), "is not a name of a variable"),
        (encoded(request(environmentVariables={"A": "{{HOME}}"})), "A: {{HOME}} would be a variable of Spark's Master"),
        (encoded(having(spark__driver__supervise="maybe")), "spark.driver.supervise is true or false"),
        (encoded(having(spark__driver__memory="much")), "spark.driver.memory: 'much' is not a size"),
        (encoded(having(spark__driver__cores="0.5")), "spark.driver.cores is a whole number"),
        (encoded(having(spark__executor__memory="many")), "spark.executor.memory: 'many' is not a size"),
        (encoded(having(spark__cores__max="-1")), "spark.cores.max is a whole number"),
        (encoded(having(spark__submit__deployMode="client")), "spark.submit.deployMode is cluster here"),
        (encoded(having(spark__fairlog__folder="jobs")), "spark.fairlog.folder must be an absolute path"),
        (encoded(request(mainClass=SPARK_SUBMIT, appResource="", appArgs=[])), "name the app"),
        (encoded(request(mainClass=SPARK_SUBMIT, appArgs=["--master", "local", "/a.py"])), "--master: leave it out"),
        (encoded(request(mainClass=SPARK_SUBMIT, appArgs=["--properties-file", "/x", "/a.py"])), "reads no file"),
    ]

    async def story(ask: Ask) -> None:
        for body, why in cases:
            answer = await ask("POST", CREATE, content=body)
            said = answer.json()
            assert (answer.status_code, said["action"]) == (400, "ErrorResponse"), body
            assert why in said["message"], (body, said["message"])
            assert "\n" not in said["message"]
            assert said["serverSparkVersion"] == "4.3.0"
        assert (await ask("POST", CREATE, content=b" " * (MAX_BODY + 1))).status_code == 413

    before = api.replica.log.head().seq
    run(api, home, story)
    assert api.replica.log.head().seq == before


def test_what_the_rules_refuse_has_its_status_and_leaves_no_app(api: Handlers, home: str) -> None:
    api.sender.send(ROOT, RegisterCompany(company="globex", cores=8, memory_mb=8192))
    api.sender.send(ROOT, SetLimit(scope="company", company="globex", name="max_pending_apps", value=0))

    async def story(ask: Ask) -> None:
        cases = (
            (having(), 400, "add spark.fairlog.company"),
            (having(spark__fairlog__company="initech"), 404, "initech"),
            (having(spark__fairlog__company="globex"), 409, "max_pending_apps"),
            (having(spark__fairlog__company="acme", spark__fairlog__user="no/body"), 400, "user"),
        )
        for asked, status, why in cases:
            answer = await ask("POST", CREATE, json=asked)
            assert (answer.status_code, answer.json()["action"]) == (status, "ErrorResponse"), answer.text
            assert why in answer.json()["message"]

    run(api, home, story)
    folded(api)
    assert api.replica.read(lambda state: len(state.apps))[1] == 0


def test_paths_that_are_none_are_answered_as_by_spark(api: Handlers, home: str) -> None:
    async def story(ask: Ask) -> None:
        for method, path, status in (
            ("GET", "/", 400),
            ("GET", "/v1", 400),
            ("GET", "/v1/submissions", 400),
            ("POST", "/v1/submissions/nothing", 400),
            ("GET", "/v1/submissions/status/", 400),
            ("POST", "/v1/submissions/kill", 400),
            ("GET", "/v2/submissions/status/driver-1", 468),
            ("GET", "/metrics", 468),
            ("GET", CREATE, 405),
            ("GET", "/v1/submissions/kill/driver-1", 405),
            ("POST", "/v1/submissions/status/driver-1", 405),
            ("POST", "/json/", 405),
        ):
            answer = await ask(method, path)
            said = answer.json()
            assert (answer.status_code, said["action"]) == (status, "ErrorResponse"), path
            assert said.get("highestProtocolVersion") == ("v1" if status == 468 else None)
        unknown = await ask("GET", "/v1/submissions/status/driver-20260101000000-0001")
        assert (unknown.status_code, unknown.json()["success"]) == (200, False)
        killed = await ask("POST", "/v1/submissions/kill/driver-20260101000000-0001")
        assert (killed.status_code, killed.json()["success"]) == (200, False)
        ready = await ask("GET", "/v1/submissions/readyz")
        assert (ready.status_code, ready.json()["action"]) == (200, "ReadyzResponse")
        api.store.delete(KEYS.lease)
        unled = await ask("GET", "/v1/submissions/readyz")
        assert (unled.status_code, unled.json()["action"]) == (503, "ErrorResponse")
        assert (await ask("GET", "/json/")).json()["status"] == "RECOVERING"

    run(api, home, story)


def test_whether_it_is_ready_is_asked_no_more_often_than_an_address_may_ask(
    api: Handlers, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    exists = api.store.exists

    def counted(*names: str) -> object:
        nonlocal asked
        asked += 1
        return exists(*names)

    async def story(ask: Ask) -> None:
        answers = [(await ask("GET", "/v1/submissions/readyz")).status_code for _ in range(110)]
        assert answers == [200] * 100 + [429] * 10

    monkeypatch.setattr("fairlog.api.app.Rates", lambda: Rates(lambda: 0.0))
    monkeypatch.setattr(api.store, "exists", counted)
    run(api, home, story)
    assert asked == 100


def test_nothing_is_ignored_in_silence(api: Handlers, home: str) -> None:
    """What does not count is said, and left out of the driver's file; fields that nobody knows are named."""
    idle = {"spark.driver.host": "1.2.3.4", "spark.yarn.queue": "q", "spark.authenticate": "false"}
    variables = {"SPARK_LOCAL_IP": "1.2.3.4", "SPARK_USER": "ann"}
    asked = request(
        sparkProperties={**RECORDED["sparkProperties"], **idle}, environmentVariables=variables, colour="red"
    )

    async def story(ask: Ask) -> None:
        said = (await ask("POST", CREATE, json=asked)).json()
        assert said["unknownFields"] == ["colour"]
        for name in (*idle, "SPARK_LOCAL_IP"):
            assert f"{name} does not count: " in said["message"]
        assert "of acme/ann" in said["message"]

    run(api, home, story)
    create = read_create(encoded(asked))
    assert create.variables == {"SPARK_USER": "ann"}
    assert [name for name in (*idle, "spark.master=", "deployMode", "spark.jars") if name in create.properties] == []
    assert "spark.x.y=a b\\u005cc\n" in create.properties


def test_an_app_in_python_is_run_as_sparks_documentation_says() -> None:
    args = ["--executor-memory", "1g", "/jobs/pi.py", "10"]
    create = read_create(encoded(request(mainClass=SPARK_SUBMIT, appResource="", appArgs=args)))
    assert create.arguments == (*args,)
    assert create.conf["spark.executor.memory"] == "1g"
    assert create.folder == "/jobs"


def test_numbers_and_truth_values_are_taken_as_texts() -> None:
    create = read_create(encoded(having(spark__driver__supervise=True, spark__cores__max=4)))
    assert (create.conf["spark.driver.supervise"], create.conf["spark.cores.max"]) == ("true", "4")
    assert read_create(encoded(request(appResource="", appArgs=[1]))).arguments[2:] == ("spark-internal", "1")


PROPERTIES_READER = """
import java.io.*; import java.nio.charset.StandardCharsets; import java.util.*;
class Read { public static void main(String[] a) throws Exception {
  Properties p = new Properties(); p.load(new InputStreamReader(new FileInputStream(a[0]), StandardCharsets.UTF_8));
  for (String n : new TreeSet<>(p.stringPropertyNames())) for (String t : new String[] {n, p.getProperty(n)})
    System.out.println(HexFormat.of().formatHex(t.getBytes(StandardCharsets.UTF_8))); } }
"""


@pytest.mark.skipif(shutil.which("javac") is None, reason="no Java compiler is installed")
def test_java_reads_the_properties_as_they_were_sent(tmp_path: Path) -> None:
    sent = {"a": " x ", "b c": "y\\n\\", "d=e:f#g!": "", "h": "l1\nl2\r\t\x0c", "ü": "é😀", "i": "#!=:", "j": "x\\\ny"}
    (tmp_path / "conf").write_text(written(sent))
    (tmp_path / "Read.java").write_text(PROPERTIES_READER)
    said = subprocess.run(
        ["java", str(tmp_path / "Read.java"), str(tmp_path / "conf")], capture_output=True, text=True, check=True
    )
    texts = [bytes.fromhex(line).decode() for line in said.stdout.splitlines()]
    assert dict(zip(texts[::2], texts[1::2], strict=True)) == sent


def test_secrets_in_properties_never_enter_the_log(api: Handlers, home: str) -> None:
    async def story(ask: Ask) -> None:
        assert (await ask("POST", CREATE, json=having(spark__hadoop__fs__s3a__secret__key="swordfish"))).is_success

    run(api, home, story)
    folded(api)
    whole = b"".join(record.encode() for record in map(str, api.replica.log.read(api.replica.log.before(0))))
    assert b"org.example.Report" in whole
    assert b"swordfish" not in whole


def test_with_accounts_a_token_is_needed_wherever_it_is_shown(api: Handlers, home: str) -> None:
    ann, bob = with_account(api, "acme/ann"), with_account(api, "acme/bob")
    names: list[str] = []

    async def story(ask: Ask) -> None:
        for method, path in (
            ("POST", CREATE),
            ("GET", "/v1/submissions/status/driver-1"),
            ("POST", "/v1/submissions/kill/driver-1"),
            ("POST", "/v1/submissions/killall"),
            ("POST", "/v1/submissions/clear"),
            ("GET", "/json/"),
        ):
            answer = await ask(method, path, **({"json": RECORDED} if path == CREATE else {}))
            assert (answer.status_code, answer.json()["action"]) == (401, "ErrorResponse"), path
        assert (await ask("GET", "/v1/submissions/readyz")).status_code == 200
        bearer = {"authorization": f"Bearer {ann}"}
        for answer in (
            await ask("POST", CREATE, json=having(spark__master__rest__token=ann)),
            await ask("POST", f"/{ann}{CREATE}", json=RECORDED),
            await ask("POST", CREATE, json=RECORDED, headers=bearer),
        ):
            assert "of acme/ann" in answer.json()["message"], answer.text
            names.append(answer.json()["submissionId"])
        both = await ask("POST", f"/{bob}{CREATE}", json=RECORDED, headers=bearer)
        assert (both.status_code, "different tokens" in both.json()["message"]) == (400, True)
        wrong = await ask("GET", "/json/", headers={"authorization": "Bearer fl_x"})
        assert wrong.status_code == 401
        stolen = await ask("POST", CREATE, json=having(spark__master__rest__token=bob, spark__fairlog__user="ann"))
        assert (stolen.status_code, stolen.json()["action"]) == (403, "ErrorResponse")

    async def others(ask: Ask) -> None:
        """What bob may not see is as if there were none."""
        said = (await ask("GET", f"/{bob}/v1/submissions/status/{names[0]}")).json()
        assert (said["success"], "driverState" in said) == (False, False)
        assert not (await ask("POST", f"/{bob}/v1/submissions/kill/{names[0]}")).json()["success"]
        assert (await ask("GET", f"/{bob}/json/")).json()["activedrivers"] == []
        assert (await ask("POST", f"/{bob}/v1/submissions/killall")).json()["message"].startswith("0 drivers")

    async def own(ask: Ask) -> None:
        page = (await ask("GET", f"/{ann}/json/")).json()
        assert {driver["id"] for driver in page["activedrivers"]} == {*names}
        assert (await ask("POST", f"/{ann}/v1/submissions/killall")).json()["message"].startswith("3 drivers")

    run(api, home, story, others, own)
    folded(api)
    assert {app.state for app in api.replica.read(lambda state: [*state.apps.values()])[1]} == {"killed"}


def test_a_token_in_the_properties_reaches_no_driver() -> None:
    create = read_create(encoded(having(spark__master__rest__token="fl_x")))
    assert create.token == "fl_x"
    assert "fl_x" not in create.properties
    assert "fl_x" not in str((create.conf, create.arguments, create.variables))


def test_a_web_page_and_who_asks_too_often_are_refused(api: Handlers, home: str) -> None:
    async def story(ask: Ask) -> None:
        answer = await ask("POST", CREATE, json=RECORDED, headers={"origin": "http://evil.example"})
        assert (answer.status_code, answer.json()["action"]) == (403, "ErrorResponse")
        codes = [(await ask("GET", "/v1/submissions/status/driver-1")).status_code for _ in range(int(3 * TOKEN_BURST))]
        assert codes[0] == 200
        assert 429 in codes

    run(api, home, story)


def test_clear_says_that_it_forgets_nothing(api: Handlers, home: str) -> None:
    async def story(ask: Ask) -> None:
        said = (await ask("POST", "/v1/submissions/clear")).json()
        assert (said["action"], said["success"]) == ("ClearResponse", False)
        assert "retained_apps" in said["message"]

    run(api, home, story)


MASTER = {
    "url": "spark://127.0.0.1:6066",
    "workers": "id host port webuiaddress cores coresused coresfree memory memoryused memoryfree resources "
    "resourcesused resourcesfree state lastheartbeat",
    "activeapps": "id starttime name cores user memoryperexecutor memoryperslave resourcesperexecutor "
    "resourcesperslave submitdate state duration",
    "activedrivers": "id starttime state cores memory resources submitdate worker mainclass",
}
"""Fields as a Master of Spark 4.3 prints them."""
FIELDS = """url workers aliveworkers cores coresused memory memoryused resources resourcesused activeapps completedapps
activedrivers completeddrivers status"""


def test_the_masters_page_has_the_fields_that_spark_prints(api: Handlers, home: str) -> None:
    api.sender.send(ROOT, RegisterKind(kind="gpu"))
    api.sender.send(ROOT, submission("tasks", tasks=4))
    api.sender.send(ROOT, submission("app-1", driver=True, tasks=None, cores=0))
    folded(api)

    async def story(ask: Ask) -> None:
        answer = await ask("GET", "/json/")
        page = answer.json()
        assert " ".join(page) == " ".join(FIELDS.split())
        for name, fields in MASTER.items():
            assert page[name] == fields if name == "url" else " ".join(page[name][0]) == fields, name
        assert (page["status"], page["aliveworkers"], page["cores"], page["memory"]) == ("ALIVE", 1, 16, 16384)
        assert page["activedrivers"][0]["id"] == "driver-1"
        assert [app["id"] for app in page["activeapps"]] == ["tasks"]
        assert (await ask("GET", "/json/aliveworkers")).json() == {"aliveworkers": 1}
        assert (await ask("GET", "/json/nonsense")).json() == {"nonsense": ""}
        assert (await ask("GET", "/json/clusterutilization")).json()["cores"] == 16

    run(api, home, story)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])  # noqa: S104 (to be refused)
def test_other_machines_are_let_in_only_when_that_is_said(host: str) -> None:
    with pytest.raises(CannotListen, match="can be reached from other machines"):
        _beside(Where(beside=(host, 0)))


def test_a_listener_on_this_machine_needs_nothing_more() -> None:
    assert _beside(Where()) is None
    made = _beside(Where(beside=("127.0.0.1", 0)))
    assert made is not None
    made.close()
