"""How Spark is started for fairlog: its home, its configuration, and spark-submit with both."""

from __future__ import annotations

import os
import re
import secrets
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import mkdtemp
from typing import NoReturn

from fairlog.engines.owner import own_host
from fairlog.engines.spark import archives
from fairlog.engines.spark.conf import MASTER
from scheduler.model.errors import FairlogError, InvalidCommand

_AS_CONF = {
    "--executor-cores": "spark.executor.cores",
    "--executor-memory": "spark.executor.memory",
    "--num-executors": "spark.executor.instances",
    "--total-executor-cores": "spark.cores.max",
    "--driver-memory": "spark.driver.memory",
    "--driver-cores": "spark.driver.cores",
    "--name": "spark.app.name",
}
_JOINED = {"spark.driver.extraClassPath": ":", "spark.driver.defaultJavaOptions": " "}
_WITHOUT_VALUE = frozenset({"--verbose", "-v", "--supervise", "--help", "--version", "--usage-error"})


class NoSpark(FairlogError):
    """There is no Spark."""


def home_of_spark() -> str:
    """SPARK_HOME, or the folder of the installed pyspark. Raises: NoSpark."""
    if found := os.environ.get("SPARK_HOME"):
        return found
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise NoSpark("there is no Spark: set SPARK_HOME to its folder, or run `pip install pyspark`")
    return str(Path(spec.origin).parent)


def defaults(company: str, user: str, home: str) -> dict[str, str]:
    """The configuration with which a driver gets its executors from fairlog, with a secret of its own."""
    host, prepared = own_host(None), archives.options(home)
    shared = {"spark.driver.defaultJavaOptions": prepared, "spark.fairlog.executorOptions": prepared}
    return {
        **(shared if prepared else {}),
        "spark.master": f"{MASTER}{company}/{user}",
        "spark.driver.extraClassPath": archives.classpath(home),
        "spark.driver.host": host,
        "spark.driver.bindAddress": host,
        "spark.authenticate": "true",
        "spark.authenticate.secret": secrets.token_hex(32),
        "spark.shuffle.readHostLocalDisk": "false",  # no executor sees the folder of another
        "spark.fairlog.helper": f"{sys.executable} -m fairlog.engines.spark.helper",
    }


def conf_folder(conf: Mapping[str, str], base: Path | None = None) -> Path:
    """A private folder with spark-defaults.conf: these values, after those of the folder `base`.

    What `base` has as the driver's class path and default options is kept, before and after them.
    """
    conf = dict(conf)
    folder = Path(mkdtemp(prefix="fairlog-spark-"))
    earlier = ""
    if base is not None and base.is_dir():
        for path in base.iterdir():
            if path.name == "spark-defaults.conf":
                earlier = path.read_text()
                for name, joint in _JOINED.items():
                    if name in conf and (
                        had := re.findall(rf"^\s*{re.escape(name)}[\s=:]+(.*\S)\s*$", earlier, re.MULTILINE)
                    ):
                        conf[name] = f"{had[-1]}{joint}{conf[name]}"
            elif path.is_file():
                (folder / path.name).write_bytes(path.read_bytes())
    lines = [f"{name} {value}" for name, value in conf.items()]
    (folder / "spark-defaults.conf").write_text("\n".join((earlier, *lines, "")))
    return folder


def python_of_spark() -> dict[str, str]:
    """PYSPARK_PYTHON as it is set, else this Python where Spark is its pyspark: drivers and executors need the same."""
    if "PYSPARK_PYTHON" in os.environ:
        return {"PYSPARK_PYTHON": os.environ["PYSPARK_PYTHON"]}
    return {} if os.environ.get("SPARK_HOME") else {"PYSPARK_PYTHON": sys.executable}


def exports(variables: Mapping[str, str]) -> str:
    """Lines for `eval` in a shell."""
    return "\n".join(f"export {name}={shlex.quote(value)}" for name, value in variables.items())


def asked_of(arguments: Sequence[str]) -> tuple[dict[str, str], str]:
    """What spark-submit's own options say as configuration, and the app's file.

    Raises: InvalidCommand for what fairlog does otherwise.
    """
    conf: dict[str, str] = {}
    place = 0
    while place < len(arguments) and arguments[place].startswith("-"):
        option, equals, value = arguments[place].partition("=")
        place += 1
        if option in _WITHOUT_VALUE:
            continue
        if not equals:
            if place == len(arguments):
                raise InvalidCommand(f"{option} needs a value")
            value = arguments[place]
            place += 1
        if option in ("--master", "--deploy-mode"):
            raise InvalidCommand(f"leave out {option}: `fairlog spark-submit` runs the driver on a worker")
        if option in ("--conf", "-c"):
            name, _, text = value.partition("=")
            conf[name] = text
        elif option in _AS_CONF:
            conf[_AS_CONF[option]] = value
    if place == len(arguments):
        raise InvalidCommand("name the app: a .py file or a jar, after spark-submit's options")
    return conf, arguments[place]


def as_submitted(arguments: Sequence[str]) -> list[str]:
    """spark-submit's arguments, with the number of executors as configuration: it drops the option for our masters."""
    instances = "spark.executor.instances"
    asked = asked_of(arguments)[0].get(instances)
    return [*([] if asked is None else ["--conf", f"{instances}={asked}"]), *arguments]


def run_driver() -> NoReturn:
    """The program of a Spark driver on a worker: spark-submit in client mode, in place of this process.

    Its arguments follow `COMPANY USER HOME`.
    """
    company, user, home, *arguments = sys.argv[1:]
    folder = conf_folder(defaults(company, user, home), Path(os.environ.get("SPARK_CONF_DIR", f"{home}/conf")))
    os.environ |= {"SPARK_HOME": home, "SPARK_CONF_DIR": str(folder)}
    submit = f"{home}/bin/spark-submit"
    os.execv(submit, [submit, *as_submitted(arguments)])  # noqa: S606 (the user's Spark)


if __name__ == "__main__":
    run_driver()
