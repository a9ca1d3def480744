"""Makes the jar from its source: `python -m fairlog.engines.spark.build SPARK_HOME`. Needs javac."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from fairlog.engines.spark.conf import JAR

SOURCE = Path(__file__).with_name("java")
SERVICE = "META-INF/services/org.apache.spark.scheduler.ExternalClusterManager"
MANAGER = "fairlog.spark.FairlogClusterManager\n"


def classes(home: str, folder: Path) -> dict[str, bytes]:
    """The compiled classes by their names in the jar, for Java 8 and later."""
    files = map(str, sorted(SOURCE.rglob("*.java")))
    options = ("--release", "8", "-Xlint:-options", "-cp", f"{home}/jars/*", "-d", str(folder))
    subprocess.run(["javac", *options, *files], check=True)  # noqa: S603, S607 (our own source)
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.class"))}


def contents(jar: Path = JAR) -> dict[str, bytes]:
    """What a jar holds."""
    with ZipFile(jar) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def build(home: str, jar: Path = JAR) -> None:
    """Write the jar, byte for byte the same from the same classes."""
    with TemporaryDirectory() as folder, ZipFile(jar, "w", ZIP_DEFLATED) as archive:
        for name, data in {SERVICE: MANAGER.encode(), **classes(home, Path(folder))}.items():
            archive.writestr(ZipInfo(name), data, ZIP_DEFLATED)


if __name__ == "__main__":
    build(sys.argv[1])
