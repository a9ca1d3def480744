"""What Spark's configuration means here, what the helper tells a driver and the cluster, and the jar."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import unquote_plus

import pytest

from fairlog.engines.spark import archives, helper
from fairlog.engines.spark.build import MANAGER, SERVICE, classes, contents
from fairlog.engines.spark.conf import (
    JAR,
    Executors,
    executor_command,
    executor_secrets,
    executors_of,
    mebibytes,
    properties,
    with_overhead,
)
from fairlog.engines.spark.driver import (
    OPTIONS,
    NoSpark,
    as_submitted,
    asked_of,
    check_java,
    conf_folder,
    defaults,
    defaults_in,
    exports,
    home_of_spark,
    ivy_folder,
    with_jar,
    without_effect,
)
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import ExecutorRemoved


@pytest.mark.parametrize(
    ("text", "mb"),
    [("512m", 512), ("2g", 2048), ("1t", 1 << 20), ("2048k", 2), ("1500k", 2), ("700", 700), ("1gb", 1024)],
)
def test_sizes_are_read_as_spark_writes_them(text: str, mb: int) -> None:
    assert mebibytes(text) == mb


def test_a_size_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidCommand, match="'much' is not a size as Spark writes it, such as 512m or 2g"):
        mebibytes("much")


def test_memory_has_the_overhead_that_spark_adds_elsewhere() -> None:
    assert with_overhead({}, "executor", 1024) == 1024 + 384
    assert with_overhead({}, "executor", 8192) == 8192 + 819
    assert with_overhead({"spark.executor.memoryOverhead": "1g"}, "executor", 1024) == 2048
    assert with_overhead({"spark.driver.memoryOverheadFactor": "0.5"}, "driver", 1024) == 1536


def test_executors_are_those_of_the_configuration() -> None:
    assert executors_of({}, 2) == Executors(1, 1024, 1408, {}, 2)
    conf = {"spark.executor.cores": "2", "spark.executor.memory": "2g", "spark.cores.max": "8"}
    assert executors_of(conf, 2) == Executors(2, 2048, 2432, {}, 4)
    assert executors_of({**conf, "spark.executor.instances": "3"}, 3).number == 3
    assert executors_of({**conf, "spark.dynamicAllocation.enabled": "true"}, 0).number == 0
    more = {"spark.executor.pyspark.memory": "512m", "spark.executor.resource.gpu.amount": "2"}
    assert executors_of(more, 1) == Executors(1, 1024, 1920, {"gpu": 2}, 1)


@pytest.mark.parametrize(
    ("conf", "why"),
    [
        ({"spark.executor.cores": "many"}, "spark.executor.cores is a whole number of at least 1, not 'many'"),
        ({"spark.executor.cores": "0"}, "spark.executor.cores is a whole number of at least 1, not '0'"),
        ({"spark.executor.instances": "x"}, "spark.executor.instances is a whole number of at least 0, not 'x'"),
        ({"spark.cores.max": "-3"}, "spark.cores.max is a whole number of at least 1, not '-3'"),
        (
            {"spark.cores.max": "1", "spark.executor.cores": "2"},
            "spark.cores.max, 1, is less than the 2 cores of one executor; raise it, or lower spark.executor.cores",
        ),
        ({"spark.executor.memory": "1.5g"}, "spark.executor.memory: '1.5g' is not a size as Spark writes it"),
        ({"spark.executor.memoryOverhead": "x"}, "spark.executor.memoryOverhead: 'x' is not a size"),
        (
            {"spark.executor.memoryOverheadFactor": "1e999"},
            "spark.executor.memoryOverheadFactor is a number such as 0.1, not '1e999'",
        ),
        (
            {"spark.executor.resource.gpu.amount": "1/2"},
            "spark.executor.resource.gpu.amount is a whole number of at least 1, not '1/2'",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_name(conf: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidCommand, match=f"^{re.escape(why)}"):
        executors_of(conf, 2)


def test_an_executor_starts_with_what_it_must_know_and_without_the_secret() -> None:
    conf = {
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
        "spark.network.timeout": "9s",
        "spark.authenticate": "true",
        "spark.authenticate.secret": "hush",
        "spark.ssl.rpc.enabled": "true",
        "spark.ssl.rpc.keyPassword": "hush-key",
        "spark.ssl.trustStorePassword": "hush-trust",
        "spark.ssl.ui.keyStorePassword": "hush-ui",
        "spark.app.name": "n",
    }
    assert executor_secrets(conf) == {
        "_SPARK_AUTH_SECRET": "hush",
        "_SPARK_SSL_RPC_KEY_PASSWORD": "hush-key",
        "_SPARK_SSL_RPC_TRUST_STORE_PASSWORD": "hush-trust",
    }
    command = executor_command(conf, java="/j", home="/s", driver="spark://d", app="app-1", heap_mb=512)
    assert command[3:7] == ("/j/bin/java", "-cp", f"{JAR}:/s/jars/*", "-Xmx512m")
    assert {"-Da=b", "-Dc=d", "-Dspark.network.timeout=9s", "-Dspark.authenticate=true"} <= set(command)
    assert "-Dspark.decommission.enabled=true" in command  # else it stays when it is told to leave
    assert "-Dspark.ssl.rpc.enabled=true" in command
    assert not any("hush" in word or "app.name" in word for word in command)
    assert command[-6:] == ("--driver-url", "spark://d", "--app-id", "app-1", "--resourceProfileId", "0")


def test_spark_submits_own_options_are_read_and_the_cluster_is_not_theirs_to_name() -> None:
    asked = asked_of(
        ["--executor-cores", "2", "--conf", "spark.a=b=c", "--driver-memory=2g", "--verbose", "x.py", "--y"]
    )
    assert asked.program == "x.py"
    assert asked.conf == {"spark.executor.cores": "2", "spark.a": "b=c", "spark.driver.memory": "2g"}
    theirs = "leave it out: `fairlog spark-submit` runs the driver on a worker"
    for words, name in (
        (["--master", "local"], "--master"),
        (["--remote=sc://h"], "--remote"),
        (["--conf", "spark.master=local"], "spark.master"),
        (["-c", "spark.submit.deployMode=cluster"], "spark.submit.deployMode"),
    ):
        with pytest.raises(InvalidCommand, match=f"^{name}: {theirs}"):
            asked_of([*words, "x.py"])
    with pytest.raises(InvalidCommand, match=r"name the app: a \.py file or a jar"):
        asked_of(["--executor-cores", "2"])


@pytest.mark.parametrize("name", OPTIONS)
def test_each_option_of_spark_submit_acts_is_passed_on_or_is_refused(name: str) -> None:
    option = OPTIONS[name]
    words = [name, *["spark.x=1"] * option.has_value, "x.py"]
    match option.does:
        case "refused":
            for arguments in (words, [name]):
                with pytest.raises(InvalidCommand, match=f"^{name}: {re.escape(option.meaning)}$"):
                    asked_of(arguments)
        case "property":
            assert asked_of(words).conf == {option.meaning: "spark.x=1" if option.has_value else "true"}
        case "passed":
            assert asked_of(words).conf == {}
            assert as_submitted(words) == words
        case "read":
            asked = asked_of(words)
            assert (asked.conf, asked.file, asked.with_defaults) != ({}, None, False)
    if option.has_value and option.does != "refused":
        with pytest.raises(InvalidCommand, match=f"^{name} needs a value$"):
            asked_of([name])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--kill", "driver-1"], "--kill: type `fairlog kill APP`"),
        (["--queue=prod", "x.py"], "--queue: there are no queues: `--company` and `--user`, "),
        (["--conf", "spark.yarn.queue=prod", "x.py"], "spark.yarn.queue: there are no queues: "),
        (["--hive", "x.py"], "spark-submit has no option --hive; docs/spark.md lists those that it has"),
        (["run-example", "SparkPi"], "run-example: name the jar of Spark's examples"),
    ],
)
def test_nothing_that_spark_submit_is_told_is_left_out_in_silence(words: list[str], why: str) -> None:
    with pytest.raises(InvalidCommand, match=f"^{re.escape(why)}"):
        asked_of(words)


def test_supervision_is_the_masters_and_spark_is_not_told_of_it() -> None:
    assert as_submitted(["--supervise", "x.py", "--supervise"]) == ["x.py", "--supervise"]


def test_the_number_of_executors_is_passed_on_as_configuration_which_spark_heeds() -> None:
    assert as_submitted(["--num-executors", "3", "x.py", "--num-executors", "9"])[:3] == [
        *("--conf", "spark.executor.instances=3"),
        "--num-executors",
    ]
    assert as_submitted(["--verbose", "x.py"]) == ["--verbose", "x.py"]


def test_a_file_of_properties_stands_behind_the_options_and_spark_is_not_told_of_it(tmp_path: Path) -> None:
    """Spark would read it in place of the configuration that names fairlog, and run the app on its own."""
    (tmp_path / "spark-defaults.conf").write_text("spark.x 1\nspark.y=2\n")
    (tmp_path / "p.conf").write_text("# no\n! no\n spark.y : 3\nspark.z a \\\n  b=c\nspark.executor.memory\t2g\n")
    given = ["--properties-file", str(tmp_path / "p.conf")]
    rest = ["--verbose", "x.py", *given]
    asked = asked_of([*given, *rest])
    named = {"spark.y": "3", "spark.z": "a b=c", "spark.executor.memory": "2g"}
    assert properties(asked.earlier(tmp_path)) == named
    assert properties(asked_of(["x.py"]).earlier(tmp_path)) == {"spark.x": "1", "spark.y": "2"}
    both = asked_of(["--load-spark-defaults", *given, "x.py"])
    assert properties(both.earlier(tmp_path)) == {"spark.x": "1", **named}
    assert as_submitted(["--load-spark-defaults", *given, *rest]) == rest
    with pytest.raises(InvalidCommand, match=r"--properties-file /no/such cannot be read: No such file"):
        asked_of(["--properties-file=/no/such", "x.py"]).earlier(tmp_path)


def spark_home(folder: Path, version: str) -> Path:
    """A folder that looks like Spark."""
    for name in ("bin/spark-submit", f"jars/spark-core_2.13-{version}.jar"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_a_spark_that_does_not_run_here_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "none"))
    with pytest.raises(NoSpark, match=f"^{tmp_path}/none has no Spark .*: set SPARK_HOME to Spark's folder; "):
        home_of_spark()
    monkeypatch.setenv("SPARK_HOME", str(spark_home(tmp_path / "old", "3.4.4")))
    with pytest.raises(NoSpark, match=r"/old is Spark 3\.4\.4, and fairlog runs 3\.5 and later; set SPARK_HOME to one"):
        home_of_spark()
    new = spark_home(tmp_path / "new", "4.3.0")
    monkeypatch.setenv("SPARK_HOME", str(new))
    assert home_of_spark() == str(new)
    java = tmp_path / "java"
    monkeypatch.setenv("JAVA_HOME", str(java))
    with pytest.raises(archives.CannotPrepare, match=f"^JAVA_HOME is {java}, which has no bin/java here; set it"):
        check_java(str(new))
    (java / "bin").mkdir(parents=True)
    (java / "bin/java").touch()
    (java / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(NoSpark, match=rf"^Spark 4\.3\.0 needs Java 17 or later, and {java} is Java 8; set JAVA_HOME"):
        check_java(str(new))
    three = str(spark_home(tmp_path / "three", "3.5.9"))
    check_java(three)
    (java / "release").write_text('JAVA_VERSION="25.0.1"\n')
    check_java(str(new))
    with pytest.raises(
        NoSpark, match=rf"^Spark 3\.5\.9 needs Java 8 to 23, and {java} is Java 25; set JAVA_HOME to one"
    ):
        check_java(three)


def test_a_driver_finds_the_jar_also_with_a_class_path_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--driver-class-path` replaces the configured one."""
    monkeypatch.setenv("SPARK_DIST_CLASSPATH", "/hadoop/*")
    assert with_jar() == {"SPARK_DIST_CLASSPATH": f"/hadoop/*:{JAR}"}


def test_packages_lie_where_a_driver_may_write_unless_the_user_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FAIRLOG_SCRATCH", raising=False)
    assert ivy_folder({}) == {}
    monkeypatch.setenv("FAIRLOG_SCRATCH", "/scratch")
    assert ivy_folder({}) == {"spark.jars.ivy": "/scratch/ivy"}
    assert ivy_folder({"spark.jars.ivy": "/mine"}) == {}


@pytest.mark.parametrize(("version", "cipher"), [("3.5.0", None), ("4.3.0", "AES/GCM/NoPadding")])
def test_what_driver_and_executors_say_to_each_other_is_encrypted(
    tmp_path: Path, version: str, cipher: str | None
) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / f"jars/spark-core_2.13-{version}.jar").touch()
    conf = defaults("acme", "ann", str(tmp_path))
    assert (conf["spark.authenticate"], conf["spark.network.crypto.enabled"]) == ("true", "true")
    assert (conf["spark.network.crypto.authEngineVersion"], conf.get("spark.network.crypto.cipher")) == ("2", cipher)
    assert conf["spark.ui.killEnabled"] == "false"


@pytest.mark.parametrize(("earlier", "enabled"), [("", "false"), ("spark.ui.enabled true\n", "true")])
def test_a_driver_has_no_open_page_unless_its_user_asks_for_one(tmp_path: Path, earlier: str, enabled: str) -> None:
    folder = conf_folder(defaults("acme", "ann", "/s"), tmp_path, earlier)
    try:
        assert properties(defaults_in(folder))["spark.ui.enabled"] == enabled
    finally:
        shutil.rmtree(folder)


def test_what_does_not_count_in_a_file_of_properties_is_said() -> None:
    said = [*without_effect("spark.x 1\nspark.yarn.queue=research\nspark.master yarn\n")]
    assert [sentence.split()[0] for sentence in said] == ["spark.master", "spark.yarn.queue"]
    assert "there are no queues: `--company` and `--user`" in said[1]


def test_each_configuration_has_a_secret_of_its_own_and_keeps_earlier_values(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.x 1\nspark.driver.extraClassPath  /mine.jar\n")
    (tmp_path / "log4j2.properties").write_text("y")
    one, two = (defaults("acme", "ann", "/s") for _ in range(2))
    assert one["spark.authenticate.secret"] != two["spark.authenticate.secret"]
    folder = conf_folder(one, tmp_path, defaults_in(tmp_path))
    try:
        text = (folder / "spark-defaults.conf").read_text()
        assert text.startswith("spark.x 1\n")
        assert f"\nspark.driver.extraClassPath /mine.jar:{JAR}:/s/jars/*\n" in text
        assert "spark.master spark+fairlog://acme/ann\n" in text
        assert (folder / "log4j2.properties").read_text() == "y"
        assert folder.stat().st_mode & 0o077 == 0
    finally:
        shutil.rmtree(folder)
    assert exports({"A": "b c"}) == "export A='b c'"


JAVA = """#!/bin/sh
case "$*" in *launcher.Main*)
    printf '\\0\\n%s\\0-cp\\0/conf:/jars\\0--add-opens=a\\0' "$0"; shift 3; printf '%s\\0' "$@"; exit;; esac
for word; do case $word in -XX:ArchiveClassesAtExit=*) file=${word#*=};; esac; done
test -n "$BROKEN" && echo "no such class" >&2 && exit 1
echo "$@" > "$file"
"""


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of Spark, beside a Java that only writes what it is asked for."""
    for folder in ("spark/jars", "java/bin"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "spark/jars/spark-core.jar").write_text("1")
    (tmp_path / "java/release").write_text('JAVA_VERSION="17.0.2"\n')
    (tmp_path / "java/bin/java").write_text(JAVA)
    (tmp_path / "java/bin/java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return tmp_path / "spark"


def test_an_archive_is_made_once_for_a_java_and_these_jars(spark: Path) -> None:
    home = str(spark)
    assert archives.options(home) == ""
    assert "spark.driver.defaultJavaOptions" not in defaults("acme", "ann", home)
    made = archives.prepare(home)
    assert f"-cp {JAR}:{home}/jars/* --add-opens=a org.apache.spark.deploy.SparkSubmit" in made.read_text()
    made.write_text("kept")
    assert archives.prepare(home) == made
    assert made.read_text() == "kept"
    conf = defaults("acme", "ann", home)
    assert conf["spark.driver.defaultJavaOptions"] == f"-XX:SharedArchiveFile={made}"
    assert conf["spark.fairlog.executorOptions"] == f"-XX:SharedArchiveFile={made}"
    (spark / "jars/spark-core.jar").write_text("another one")
    assert archives.options(home) == ""
    assert [path.name for path in made.parent.iterdir()] == [made.name]


def test_a_java_or_a_spark_that_makes_no_archive_is_named(spark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, java = str(spark), spark.parent / "java"
    monkeypatch.setenv("BROKEN", "yes")
    with pytest.raises(archives.CannotPrepare, match=f"Spark at {home} failed: no such class"):
        archives.prepare(home)
    (java / "release").write_text('JAVA_VERSION="1.8.0_402"\n')
    with pytest.raises(archives.CannotPrepare, match="Java 8 writes no archives of class data; use Java 13 or later"):
        archives.prepare(home)
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", home)
    with pytest.raises(archives.CannotPrepare, match="there is no Java: install one, such as openjdk-17-jre-headless"):
        archives.prepare(home)
    assert archives.options(home) == ""


class Owned:
    """An app that only notes what it is told."""

    made: ClassVar[list[Owned]] = []

    def __init__(self, submission: Any, secrets: dict[str, str], *, hear: Any) -> None:
        self.submission, self.secrets, self.hear = submission, secrets, hear
        self.said: list[Any] = []
        self.executors: dict[str, str] = {}
        self.made.append(self)

    def scale(self, executors: int, stop: Any = (), *, prefer: Any = None, preferring_tasks: Any = None) -> None:
        self.said.append((executors, list(stop), prefer, preferring_tasks))

    def finish(self, *how: str) -> None:
        self.said.append(how)


START = [
    "ABOUT\tmaster\tspark%2Bfairlog%3A%2F%2Facme%2Fann",
    "ABOUT\tname\tthe+app",
    "ABOUT\tjava\t%2Fj",
    "ABOUT\thome\t%2Fs",
    "ABOUT\tdriver\tspark%3A%2F%2Fd",
    "CONF\tspark.authenticate.secret\thush",
    "ENV\tA\tb%09c",
    "START\t2",
]


@pytest.fixture
def owned(monkeypatch: pytest.MonkeyPatch) -> list[Owned]:
    monkeypatch.setattr(helper, "OwnedApp", Owned)
    Owned.made.clear()
    return Owned.made


def test_the_helper_submits_scales_and_ends_the_app(owned: list[Owned], capsys: pytest.CaptureFixture[str]) -> None:
    said = [*START, "TOTAL\t5\t3\th1\t2\th2\t1", "KILL\t0\t4", "STOP"]
    helper.Helper().run(iter(f"{line}\n" for line in said))
    app, found = owned[0], owned[0].submission
    assert (found.company, found.user, found.name, found.executor_limit) == ("acme", "ann", "the app", 2)
    assert (found.executor_program, found.executor_memory_mb, found.owner_timeout_s) == (True, 1408, 30)
    assert app.secrets["_SPARK_AUTH_SECRET"] == "hush"
    assert app.secrets["A"] == "b\tc"
    stop = [f"{found.app}.0", f"{found.app}.4"]
    assert app.said == [(5, [], {"h1": 2, "h2": 1}, 3), (5, stop, {"h1": 2, "h2": 1}, 3), ()]
    assert capsys.readouterr().out == f"READY\t{found.app}\t2\n"


def test_a_driver_that_dies_fails_the_app(owned: list[Owned]) -> None:
    helper.Helper().run(iter(f"{line}\n" for line in START))
    assert owned[0].said == [("failed", "its Spark driver died")]


def test_a_master_that_names_nobody_is_refused(owned: list[Owned], capsys: pytest.CaptureFixture[str]) -> None:
    helper.Helper().run(iter(["ABOUT\tmaster\tspark%2Bfairlog%3A%2F%2F\n", "START\t2\n"]))
    assert capsys.readouterr().out.startswith("REFUSED\tthe+master+is+written+spark%2Bfairlog%3A%2F%2FCOMPANY%2FUSER")
    assert owned == []


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (("failed", 137, "used 9 MiB, above the 8 MiB granted"), "137\ttrue"),
        (("failed", 137, "its program was ended by SIGKILL"), "137\tfalse"),
        (("failed", 52, "its program ended with exit code 52"), "52\ttrue"),
        (("killed", 143, ""), "143\tfalse"),
        (("lost", None, ""), "0\tfalse"),
        (("exited", 0, ""), "0\tfalse"),
    ],
)
def test_tasks_are_charged_only_for_what_the_app_itself_did(
    owned: list[Owned], capsys: pytest.CaptureFixture[str], end: tuple[Any, int | None, str], told: str
) -> None:
    reason, code, detail = end
    one = helper.Helper()
    one.run(iter(f"{line}\n" for line in START))
    capsys.readouterr()
    event = ExecutorRemoved(app="a", executor="a.3", worker="w", reason=reason, exit_code=code, detail=detail)
    data = {name: getattr(event, name) for name in event.__struct_fields__}
    thread = threading.Thread(target=owned[0].hear, args=({"type": "ExecutorRemoved", "data": data},))
    thread.start()
    thread.join()
    assert capsys.readouterr().out.startswith(f"LOST\t3\t{told}\tfairlog%3A+{reason}")


def removed(owned: Owned, number: int, *, reason: str = "failed", code: int | None = 1, detail: str = "") -> None:
    """The end of an executor, as the app's events tell it."""
    app = owned.submission.app
    owned.executors.pop(f"{app}.{number}", None)
    data = {"app": app, "executor": f"{app}.{number}", "worker": "w", "reason": reason, "exit_code": code}
    owned.hear({"type": "ExecutorRemoved", "data": {**data, "detail": detail}})


def test_executors_that_never_reach_the_driver_fail_the_app_unless_one_serves_it(
    owned: list[Owned], capsys: pytest.CaptureFixture[str]
) -> None:
    def story() -> Iterator[str]:
        yield from (f"{line}\n" for line in START)
        [app] = owned
        app.executors[f"{app.submission.app}.0"] = "w"
        for number in range(1, 10):
            removed(app, number)
        yield "ADDED\t0\n"
        for number in range(10, 30):
            removed(app, number)
        assert app.said == []
        removed(app, 0, reason="killed")
        removed(app, 30, code=127, detail="its program ended with exit code 127")

    helper.Helper().run(story())
    why = "failed, worker w has no /j/bin/java, which the driver runs with"
    said = f"21 executors ended before they reached the driver; the last one: {why}"
    assert owned[0].said == [("failed", said), ("failed", "its Spark driver died")]
    told = capsys.readouterr().out.splitlines()
    assert unquote_plus(told[-2]) == f"LOST\t30\t127\ttrue\tfairlog: {why}"
    assert unquote_plus(told[-1]) == f"OVER\tapp {owned[0].submission.app} is failed: {said}"


def test_an_executor_that_leaves_by_itself_does_not_lower_what_the_driver_asks_for(owned: list[Owned]) -> None:
    def story() -> Iterator[str]:
        yield from (f"{line}\n" for line in [*START, "TOTAL\t1\t0"])
        removed(owned[0], 0, reason="exited", code=0)
        yield "STOP\n"

    helper.Helper().run(story())
    assert owned[0].said == [(1, [], {}, 0), (1, [], {}, 0), ()]


def test_the_jar_names_its_manager_to_spark() -> None:
    found = contents()
    assert found[SERVICE] == MANAGER.encode()
    assert {name for name in found if name.endswith(".class")} >= {"fairlog/spark/FairlogClusterManager.class"}


def test_the_jar_is_what_its_source_compiles_to(tmp_path: Path) -> None:
    if shutil.which("javac") is None or not (os.environ.get("SPARK_HOME") or find_spec("pyspark")):
        pytest.skip("javac or Spark is not installed")
    made = classes(home_of_spark(), tmp_path)
    assert made == {name: data for name, data in contents().items() if name.endswith(".class")}


def test_a_driver_is_told_for_what_an_executor_leaves() -> None:
    told: dict[str, Any] = {"claimant": "app-2", "claimant_company": "globex", "window": ""}
    assert helper.before_what(told) == "for app-2 of globex"
    assert (
        helper.before_what({"claimant": None, "claimant_company": None, "window": "disks"}) == "before the window disks"
    )
