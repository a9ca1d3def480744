"""How Spark is started for fairlog: its home, its configuration, and spark-submit with both."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal, NamedTuple, NoReturn
from urllib.parse import unquote, urlsplit

from fairlog.engines.owner import own_host, say
from fairlog.engines.spark import archives
from fairlog.engines.spark.conf import JAR, MASTER, executors_of, properties, size, whole, with_overhead
from scheduler.model.commands import SubmitApp
from scheduler.model.errors import FairlogError, InvalidCommand

INTERNAL = "spark-internal"
"""What stands for the app's file where its class is in Spark's own jars, or in `spark.jars`."""
_FILE, _WITH_DEFAULTS, _CONF = "--properties-file", "--load-spark-defaults", ("--conf", "-c")
_NOT_THEIRS = "leave it out: `fairlog spark-submit` runs the driver on a worker, with the executors that it is granted"
_NO_KERBEROS = "it is for YARN and Kubernetes: fairlog logs in to no Kerberos; log in within the app"


class SparkOption(NamedTuple):
    """What an option of spark-submit does here: Spark takes it as it is, it is a property, or it is refused."""

    meaning: str
    does: Literal["passed", "property", "read", "refused"] = "passed"
    has_value: bool = True
    """Whether a value follows."""


OPTIONS = {
    "--master": SparkOption(_NOT_THEIRS, "refused"),
    "--deploy-mode": SparkOption(_NOT_THEIRS, "refused"),
    "--remote": SparkOption(_NOT_THEIRS, "refused"),
    "--class": SparkOption("the driver's main class"),
    "--name": SparkOption("spark.app.name", "property"),
    "--jars": SparkOption("on the class paths of driver and executors"),
    "--packages": SparkOption("the driver fetches them, into its scratch folder"),
    "--exclude-packages": SparkOption("not fetched with `--packages`"),
    "--repositories": SparkOption("where `--packages` looks, too"),
    "--py-files": SparkOption("on the module paths of driver and executors"),
    "--files": SparkOption("in the working folder of each executor"),
    "--archives": SparkOption("unpacked in the working folder of each executor"),
    "--conf": SparkOption("a property of Spark's configuration", "read"),
    "-c": SparkOption("as `--conf`", "read"),
    _FILE: SparkOption("a file of properties; the driver gets its values", "read"),
    _WITH_DEFAULTS: SparkOption("spark-defaults.conf counts beside `--properties-file`", "read", has_value=False),
    "--driver-memory": SparkOption("spark.driver.memory", "property"),
    "--driver-cores": SparkOption("spark.driver.cores", "property"),
    "--driver-java-options": SparkOption("further options of the driver's Java"),
    "--driver-library-path": SparkOption("where the driver looks for native libraries, too"),
    "--driver-class-path": SparkOption("before the driver's class path"),
    "--executor-memory": SparkOption("spark.executor.memory", "property"),
    "--executor-cores": SparkOption("spark.executor.cores", "property"),
    "--num-executors": SparkOption("spark.executor.instances", "property"),
    "--total-executor-cores": SparkOption("spark.cores.max", "property"),
    "--proxy-user": SparkOption("whom the driver speaks for in Hadoop; fairlog's user is `--user`"),
    "--supervise": SparkOption("spark.driver.supervise", "property", has_value=False),
    "--queue": SparkOption(
        "there are no queues: `--company` and `--user`, before Spark's options, say whose share is used", "refused"
    ),
    "--principal": SparkOption(_NO_KERBEROS, "refused"),
    "--keytab": SparkOption(_NO_KERBEROS, "refused"),
    "--kill": SparkOption("type `fairlog kill APP`", "refused"),
    "--status": SparkOption("type `fairlog app APP`", "refused"),
    "--version": SparkOption("type `$SPARK_HOME/bin/spark-submit --version`", "refused", has_value=False),
    "--help": SparkOption("type `fairlog spark-submit --help`", "refused", has_value=False),
    "-h": SparkOption("type `fairlog spark-submit --help`", "refused", has_value=False),
    "--verbose": SparkOption("the driver prints more", has_value=False),
    "-v": SparkOption("as `--verbose`", has_value=False),
}
"""The options of spark-submit, each of which acts or is refused by name."""
_OURS = {
    "spark.master": _NOT_THEIRS,
    "spark.submit.deployMode": _NOT_THEIRS,
    "spark.remote": _NOT_THEIRS,
    "spark.yarn.queue": OPTIONS["--queue"].meaning,
}
"""Properties that are refused, or said not to count where they stand in a file -> why."""
_THEIRS = ("spark.ui.enabled",)
"""Properties of ours that the user's own files overrule."""
_SET_HERE = (
    "spark.driver.host",
    "spark.driver.bindAddress",
    "spark.authenticate",
    "spark.authenticate.secret",
    "spark.network.crypto.enabled",
    "spark.network.crypto.authEngineVersion",
    "spark.network.crypto.cipher",
    "spark.ui.killEnabled",
    "spark.shuffle.readHostLocalDisk",
    "spark.fairlog.helper",
    "spark.fairlog.executorOptions",
)
"""Properties of ours that overrule the user's files."""
_JOINED = {"spark.driver.extraClassPath": ":", "spark.driver.defaultJavaOptions": " "}
_OLDEST = (3, 5)
_JAVA = {3: (8, 23), 4: (17, 0)}
"""Spark's first number -> the oldest and the newest Java that it runs on; 0: any later one."""
_JAR_OF_SPARK = re.compile(r"spark-core_[\d.]+-((\d+)\.(\d+)[^/]*)\.jar")
_AUTHENTICATED = "AES/GCM/NoPadding"
"""The cipher that notices what was changed; Spark 3.5 may have none but AES/CTR."""
_DEFAULTS = "spark-defaults.conf"
CANNOT_START = 69
"""The exit code of a driver's program that could not start Spark, of which its last line says why."""
PROPERTIES = "FAIRLOG_SPARK_PROPERTIES"
"""The variable with the properties that the submitter has: a cell may not show the file, and a worker have others."""


class NoSpark(FairlogError):
    """There is no Spark, or none that runs here."""


def home_of_spark() -> str:
    """SPARK_HOME, or the folder of the installed pyspark. Raises: NoSpark."""
    home = _named_home()
    if not home:
        raise NoSpark("there is no Spark: set SPARK_HOME to its folder, or run `pip install pyspark`")
    version_of(home)
    return home


def _named_home() -> str:
    spec = None if os.environ.get("SPARK_HOME") else find_spec("pyspark")
    return os.environ.get("SPARK_HOME") or (
        "" if spec is None or spec.origin is None else str(Path(spec.origin).parent)
    )


def version_of(home: str) -> tuple[str, int]:
    """Spark's version, and its first number. Raises: NoSpark if there is none, or one of before 3.5."""
    found = _jar_of_spark(home)
    if found is None or not Path(home, "bin", "spark-submit").exists():
        raise NoSpark(
            f"{home} has no Spark (no bin/spark-submit and jars/spark-core_*.jar): set SPARK_HOME to Spark's folder; "
            "in a cell, that is one which the operator shares by `worker --share`, or by FAIRLOG_SHARE for `up`"
        )
    if (int(found[2]), int(found[3])) < _OLDEST:
        raise NoSpark(f"{home} is Spark {found[1]}, and fairlog runs 3.5 and later; set SPARK_HOME to one of these")
    return found[1], int(found[2])


def _jar_of_spark(home: str) -> re.Match[str] | None:
    return next(filter(None, (_JAR_OF_SPARK.fullmatch(jar.name) for jar in Path(home, "jars").glob("*.jar"))), None)


def check_java(home: str) -> None:
    """Raises: NoSpark, CannotPrepare, if there is no Java here for this Spark."""
    version, major = version_of(home)
    java, (oldest, newest) = archives.java_home(), _JAVA[min(major, max(_JAVA))]
    found = archives.java_version(java)
    if found is not None and (found < oldest or (newest and found > newest)):
        which = f"{oldest} to {newest}" if newest else f"{oldest} or later"
        raise NoSpark(f"Spark {version} needs Java {which}, and {java} is Java {found}; set JAVA_HOME to one")


def defaults(company: str, user: str, home: str) -> dict[str, str]:
    """The configuration with which a driver gets its executors from fairlog, with a secret of its own."""
    host, prepared, found = own_host(None), archives.options(home), _jar_of_spark(home)
    shared = {"spark.driver.defaultJavaOptions": prepared, "spark.fairlog.executorOptions": prepared}
    return {
        **(shared if prepared else {}),
        "spark.master": f"{MASTER}{company}/{user}",
        "spark.driver.extraClassPath": archives.classpath(home),
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(32),
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        **({"spark.network.crypto.cipher": _AUTHENTICATED} if found is not None and int(found[2]) >= 4 else {}),
        "spark.ui.enabled": "false",  # its pages ask nobody who they are, and nobody encrypts them
        "spark.ui.killEnabled": "false",
        "spark.shuffle.readHostLocalDisk": "false",  # no executor sees the folder of another
        "spark.fairlog.helper": f"{sys.executable} -m fairlog.engines.spark.helper",
    }


def conf_folder(conf: Mapping[str, str], base: Path, earlier: str) -> Path:
    """A private folder as `base`, with these values in spark-defaults.conf after the properties `earlier`.

    What these have as the driver's class path and default options is kept, before and after them, and so is whether the
    driver has a UI.
    """
    had = properties(earlier)
    conf = {name: value for name, value in conf.items() if name not in _THEIRS or name not in had}
    joined = {
        name: f"{had[name]}{joint}{conf[name]}" for name, joint in _JOINED.items() if name in had and name in conf
    }
    folder = Path(mkdtemp(prefix="fairlog-spark-"))
    for path in base.iterdir() if base.is_dir() else ():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    lines = [f"{name} {value}" for name, value in {**conf, **joined}.items()]
    (folder / _DEFAULTS).write_text("\n".join((earlier, *lines, "")))
    return folder


def without_effect(earlier: str) -> Iterator[str]:
    """A sentence for each of these properties that does not count here."""
    for name in sorted(properties(earlier).keys() & _OURS.keys()):
        yield f"{name} in Spark's properties does not count: {_OURS[name]}"


def overruled(conf: Iterable[str]) -> dict[str, str]:
    """The properties that do not count in a driver's file -> why."""
    return {name: _OURS.get(name, "fairlog sets it for each driver") for name in sorted({*_OURS, *_SET_HERE} & {*conf})}


def folder_of_conf() -> Path:
    """Where the configuration of Spark lies: SPARK_CONF_DIR, else a folder of its home."""
    return Path(os.environ.get("SPARK_CONF_DIR") or Path(_named_home(), "conf"))


def defaults_in(folder: Path) -> str:
    """The text of its spark-defaults.conf."""
    return _text(folder / _DEFAULTS) if (folder / _DEFAULTS).is_file() else ""


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


def kept_variables() -> dict[str, str]:
    """The variables of this process that a driver on a worker needs: of Spark, of Java and of where Python looks."""
    kept = ("JAVA_HOME", "PYTHONPATH", "SPARK_DIST_CLASSPATH")
    return {**{name: os.environ[name] for name in kept if os.environ.get(name)}, **python_of_spark()}


def ivy_folder(had: Mapping[str, str]) -> dict[str, str]:
    """Where `--packages` puts jars, unless that is said: a cell shows no home folder, which is Spark's choice."""
    scratch, name = os.environ.get("FAIRLOG_SCRATCH"), "spark.jars.ivy"
    return {name: f"{scratch}/ivy"} if scratch and name not in had else {}


def with_jar() -> dict[str, str]:
    """SPARK_DIST_CLASSPATH with fairlog's jar: a driver whose own class path replaces the configured one finds it."""
    return {"SPARK_DIST_CLASSPATH": ":".join(filter(None, (os.environ.get("SPARK_DIST_CLASSPATH"), str(JAR))))}


def python_of_spark() -> dict[str, str]:
    """PYSPARK_PYTHON as it is set, else this Python where Spark is its pyspark: drivers and executors need the same."""
    if "PYSPARK_PYTHON" in os.environ:
        return {"PYSPARK_PYTHON": os.environ["PYSPARK_PYTHON"]}
    return {} if os.environ.get("SPARK_HOME") else {"PYSPARK_PYTHON": sys.executable}


def exports(variables: Mapping[str, str]) -> str:
    """Lines for `eval` in a shell."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


class SparkOptions(NamedTuple):
    """What spark-submit is asked for: its options as configuration, the app's file, and the file of properties."""

    conf: dict[str, str]
    program: str
    file: str | None
    with_defaults: bool

    def earlier(self, folder: Path) -> str:
        """The properties that stand behind the options: of `folder`, or of the file. Raises: InvalidCommand."""
        found = [defaults_in(folder)] if self.file is None or self.with_defaults else []
        if self.file is not None:
            try:
                found.append(_text(Path(self.file)))
            except OSError as error:
                raise InvalidCommand(f"{_FILE} {self.file} cannot be read: {error.strerror}") from None
        return "\n".join(found)


def _options(arguments: Sequence[str], ours: Container[str] = ()) -> Iterator[tuple[Sequence[str], str, str]]:
    """spark-submit's own options up to the app: the words of each, its name and its value.

    `ours` are fairlog's, which stand before them. Raises: InvalidCommand.
    """
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        option, equals, value = arguments[place].partition("=")
        known = OPTIONS.get(option)
        if known is None and option in ours:
            raise InvalidCommand(f"{option} is an option of fairlog; put it before those of spark-submit")
        if known is None:
            raise InvalidCommand(f"spark-submit has no option {option[:40]}; docs/spark.md lists those that it has")
        if known.does == "refused":
            raise InvalidCommand(f"{option}: {known.meaning}")
        words = arguments[place : place + 1 + (not equals and known.has_value)]
        if len(words) == 1 and not equals and known.has_value:
            raise InvalidCommand(f"{option} needs a value")
        place += len(words)
        yield words, option, value or words[-1]


def asked_of(arguments: Sequence[str], ours: Container[str] = ()) -> SparkOptions:
    """What spark-submit's arguments say; `ours` are fairlog's own options.

    Raises: InvalidCommand for what fairlog does otherwise.
    """
    conf: dict[str, str] = {}
    file, with_defaults, place = None, False, 0
    for words, option, value in _options(arguments, ours):
        place += len(words)
        if option in _CONF:
            name, _, text = value.partition("=")
            if name in _OURS:
                raise InvalidCommand(f"{name}: {_OURS[name]}")
            conf[name] = text
        elif OPTIONS[option].does == "property":
            conf[OPTIONS[option].meaning] = value if OPTIONS[option].has_value else "true"
        elif option == _FILE:
            file = value
        with_defaults = with_defaults or option == _WITH_DEFAULTS
    if place == len(arguments):
        raise InvalidCommand("name the app: a .py file or a jar, after spark-submit's options")
    if arguments[place] == "run-example":
        raise InvalidCommand("run-example: name the jar of Spark's examples, after `--class` with the class")
    return SparkOptions(conf, arguments[place], file, with_defaults)


def as_submitted(arguments: Sequence[str]) -> list[str]:
    """spark-submit's arguments, with the number of executors as configuration: it drops the option for our masters.

    The file of properties is left out: with it, Spark would not read the configuration that names fairlog. So is
    `--supervise`, which the master heeds.
    """
    instances = "spark.executor.instances"
    asked = asked_of(arguments).conf.get(instances)
    kept, place = ([] if asked is None else ["--conf", f"{instances}={asked}"]), 0
    for words, option, _ in _options(arguments):
        place += len(words)
        kept += words if option not in (_FILE, _WITH_DEFAULTS, "--supervise") else ()
    return [*kept, *arguments[place:]]


def driver_size(conf: Mapping[str, str]) -> tuple[int, int]:
    """The driver's cores and memory in MiB. Raises: InvalidCommand, also if what executors are asked for is no size.

    So what cannot be read is refused where it is submitted, not in the driver.
    """
    executors_of(conf, 2)
    return whole(conf, "spark.driver.cores", 1), with_overhead(conf, "driver", size(conf, "spark.driver.memory", "1g"))


def submission(
    arguments: Sequence[str],
    conf: Mapping[str, str],
    variables: Mapping[str, str],
    *,
    app: str,
    company: str,
    user: str,
    home: str,
    folder: str | None,
) -> SubmitApp:
    """The app of a driver on a worker, which spark-submit's `arguments` and the whole configuration `conf` describe.

    `variables` are those of its environment, `folder` is the one that driver and executors see. Raises: InvalidCommand.
    """
    cores, memory_mb = driver_size(conf)
    return SubmitApp(
        app=app,
        company=company,
        user=user,
        name=conf.get("spark.app.name", Path(asked_of(arguments).program).name),
        cores=0,
        driver=True,
        driver_cores=cores,
        driver_memory_mb=memory_mb,
        supervise=conf.get("spark.driver.supervise") == "true",
        command=(sys.executable, "-m", "fairlog.engines.spark.driver", company, user, home, *arguments),
        env=tuple(sorted(variables)),
        cwd=folder,
        grace_s=30,
    )


def path_of(resource: str) -> str | None:
    """The path of an app's file on the driver's machine; None for one that Spark fetches or has itself."""
    parts = urlsplit(resource)
    if parts.scheme in ("file", "local"):
        return unquote(parts.path)
    return None if parts.scheme or resource == INTERNAL else resource


def check_program(program: str) -> None:
    """Raises: NoSpark if the app's file has an absolute path and is not there; Spark would miss a class."""
    path = path_of(program)
    if path is not None and path.startswith("/") and not Path(path).exists():
        host = os.environ.get("FAIRLOG_HOST", "this machine")
        raise NoSpark(
            f"{path[:200]} is not there for a driver on {host}: the file is needed at that path on every worker, "
            "in a cell below the driver's folder, or in a folder that `worker --share` shows"
        )


def run_driver() -> NoReturn:
    """The program of a Spark driver on a worker: spark-submit in client mode, in place of this process.

    Its arguments follow `COMPANY USER HOME`.
    """
    company, user, home, *arguments = sys.argv[1:]
    try:
        check_java(home)
        check_program(asked_of(arguments).program)
        earlier = os.environ.pop(PROPERTIES, "")
        conf = defaults(company, user, home) | ivy_folder(properties(earlier))
        folder = conf_folder(conf, Path(home, "conf"), earlier)
    except FairlogError as error:
        say(str(error))
        raise SystemExit(CANNOT_START) from None
    os.environ |= {"SPARK_HOME": home, "SPARK_CONF_DIR": str(folder), **with_jar()}
    submit = f"{home}/bin/spark-submit"
    os.execv(submit, [submit, *as_submitted(arguments)])  # noqa: S606 (the user's Spark)


if __name__ == "__main__":
    run_driver()
