"""Archives of class data: with one, the JVMs of drivers and executors find Spark's classes parsed and verified.

An archive lies in Spark's own folder, so that it is wherever Spark is, and is named after the Java and the jars that it
is of. A JVM uses it if its class path begins as that of the JVM that wrote it (`classpath`); else it ignores it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from fairlog.engines.spark.conf import JAR
from scheduler.model.errors import FairlogError

OLDEST_JAVA = 13
_FOLDER = "fairlog-archives"
_LAUNCHER, _SUBMIT = "org.apache.spark.launcher.Main", "org.apache.spark.deploy.SparkSubmit"
"""What prints the command of a JVM with the options that Spark needs, and what that runs."""
_LOCAL = ("--master", "local[2]", "--driver-memory", "1g")
_JOB = """
from pyspark.sql import SparkSession, functions
spark = SparkSession.builder.appName("prepare").getOrCreate()
pairs = spark.sparkContext.parallelize(range(100), 2).map(lambda number: (number % 3, number))
assert len(pairs.reduceByKey(lambda one, other: one + other).collect()) == 3
assert len(spark.range(100).groupBy((functions.col("id") % 5).alias("k")).count().collect()) == 5
spark.stop()
"""
"""What loads the classes that most jobs need, in one JVM."""


class CannotPrepare(FairlogError):
    """No archive can be made here; the sentence says why."""


def java_home() -> Path:
    """JAVA_HOME, or the home of the `java` on the path. Raises: CannotPrepare."""
    found = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    if found is None or not Path(found).exists():
        if named := os.environ.get("JAVA_HOME"):
            raise CannotPrepare(f"JAVA_HOME is {named}, which has no bin/java here; set it to the folder of a Java")
        raise CannotPrepare("there is no Java: install one, such as openjdk-17-jre-headless, or set JAVA_HOME")
    return Path(found).resolve().parents[1]


def classpath(home: str) -> str:
    """The class path of drivers and executors."""
    return f"{JAR}:{home}/jars/*"


def archive(home: str, java: Path) -> Path:
    """The archive for this Java and the jars of this Spark, whether it exists or not."""
    said = [str(java), _release(java)]
    for jar in (JAR, *sorted(Path(home, "jars").glob("*.jar"))):
        about = jar.stat()
        said.append(f"{jar} {about.st_size} {about.st_mtime_ns}")
    return Path(home, _FOLDER, f"{sha256(os.linesep.join(said).encode()).hexdigest()[:16]}.jsa")


def _run(command: Sequence[str], environment: Mapping[str, str], folder: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 (the user's Java and Spark)
        command, env=environment, cwd=folder, capture_output=True, text=True, errors="replace", check=False
    )


def _scala(home: str) -> str:
    """The version of Scala that Spark's launcher wants to be told, such as 2.13."""
    jars = Path(home, "jars").glob("scala-library-*.jar")
    return next((jar.stem.removeprefix("scala-library-").rpartition(".")[0] for jar in jars), "")


def _release(java: Path) -> str:
    file = java / "release"
    return file.read_text() if file.exists() else ""


def java_version(java: Path) -> int | None:
    """The first number of that Java's version, such as 17; None if it does not say."""
    found = re.search(r'JAVA_VERSION="(?:1\.)?(\d+)', _release(java))
    return None if found is None else int(found[1])


def options(home: str) -> str:
    """The option of JVMs with which they use the archive that `prepare` has made; "" if there is none."""
    try:
        found = archive(home, java_home())
    except (CannotPrepare, OSError):
        return ""
    return f"-XX:SharedArchiveFile={found}" if found.exists() else ""


def prepare(home: str) -> Path:
    """Make the archive, unless it is there, by running a small job in a JVM here. Raises: CannotPrepare."""
    java = java_home()
    made = archive(home, java)
    if made.exists():
        return made
    version = java_version(java)
    if version is not None and version < OLDEST_JAVA:
        raise CannotPrepare(f"Java {version} writes no archives of class data; use Java {OLDEST_JAVA} or later")
    try:
        made.parent.mkdir(exist_ok=True)
        folder = TemporaryDirectory(dir=made.parent)
    except OSError as error:
        raise CannotPrepare(
            f"{made.parent} cannot be written ({error.strerror}); run this as whoever installed Spark"
        ) from None
    with folder as name:
        job, draft = Path(name, "job.py"), Path(name, made.name)
        job.write_text(_JOB)
        environment = {key: value for key, value in os.environ.items() if key != "SPARK_CONF_DIR"}
        environment |= {"SPARK_HOME": home, "SPARK_SCALA_VERSION": _scala(home)}
        found = _run(
            [f"{java}/bin/java", "-cp", f"{home}/jars/*", _LAUNCHER, _SUBMIT, *_LOCAL, str(job)], environment, name
        )
        command = [word.strip() for word in found.stdout.split("\0") if word.strip()]
        if _SUBMIT in command:
            command[command.index("-cp") + 1] = classpath(home)
            ran = _run([*command[:1], f"-XX:ArchiveClassesAtExit={draft}", *command[1:]], environment, name)
        else:
            ran = found
        if ran.returncode or not draft.exists():
            said = [line for line in (ran.stdout + ran.stderr).splitlines() if line.strip() and "[cds]" not in line]
            raise CannotPrepare(f"Spark at {home} failed: {said[-1] if said else f'exit code {ran.returncode}'}")
        draft.chmod(0o644)
        draft.replace(made)
    return made
