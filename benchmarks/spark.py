"""Pi by Spark on fairlog's executors beside `local[2]`, as JSON: seconds of each, in turns, and fairlog's own part.

On fairlog, two cores are one executor, which is one JVM as with `local[2]`, or two executors of a core each.

Needs Java and Spark (SPARK_HOME or pyspark), and writes Spark's archive of class data (`fairlog spark prepare`).
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks._common import arguments
from fairlog.engines.spark.driver import NoSpark, home_of_spark

ROUNDS = 3
PROGRAM = Path(__file__).parents[1] / "examples" / "spark_pi.py"


def pi(environment: dict[str, str], folder: Path, *options: str) -> float:
    """How long spark-submit takes from its start to its end."""
    command = [
        f"{environment['SPARK_HOME']}/bin/spark-submit",
        "--executor-memory",
        "1g",
        "--total-executor-cores",
        "2",
    ]
    began_s = time.perf_counter()
    done = subprocess.run([*command, *options, PROGRAM], env=environment, cwd=folder, capture_output=True, check=False)
    if done.returncode or b"Pi is roughly 3.1" not in done.stdout:
        raise SystemExit(f"Spark failed: {done.stderr[-2000:].decode(errors='replace')}")
    return time.perf_counter() - began_s


def main() -> None:
    """Measure on a cluster of its own."""
    arguments(__doc__)
    try:
        home = home_of_spark()
    except NoSpark as error:
        raise SystemExit(print(f"not measured: {error}")) from None
    if shutil.which("java") is None:
        raise SystemExit(print("not measured: there is no Java"))
    with TemporaryDirectory() as folder:
        data, work = Path(folder, "up"), Path(folder, "work")
        work.mkdir()
        plain = {**os.environ, "SPARK_HOME": home, "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        ours = {**plain, "HOME": folder, "XDG_DATA_HOME": folder}
        ours["FAIRLOG_SHARE"] = " ".join(
            [
                home,
                str(Path(plain["PYSPARK_PYTHON"]).parents[1]),
                *filter(lambda path: "site-packages" in path, sys.path),
            ]
        )

        def verb(*arguments: str) -> str:
            command = [sys.executable, "-m", "fairlog", "--data", str(data), *arguments]
            return subprocess.run(command, env=ours, check=True, stdout=subprocess.PIPE, text=True).stdout

        verb("spark", "prepare")
        verb("up", "--detach", "--workers", "1", "--cores", "2", "--memory", "4G")
        try:
            verb("company", "add", "acme")
            lines = verb("spark", "env", "--company", "acme", "--user", "ann").splitlines()
            ours |= dict(shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in lines)
            seconds: dict[str, list[float]] = {"one": [], "two": [], "local": []}
            for _ in range(ROUNDS):
                seconds["one"].append(pi(ours, work, "--executor-cores", "2"))
                seconds["two"].append(pi(ours, work, "--executor-cores", "1"))
                seconds["local"].append(pi(plain, work, "--master", "local[2]"))
            events = [json.loads(line) for line in verb("log", "--json").splitlines()]
        finally:
            verb("down")
            shutil.rmtree(ours.get("SPARK_CONF_DIR", folder))
        demanded = {each["data"]["app"]: each["at"] for each in events if each["type"] == "AppRegistered"}
        started = [each for each in events if each["type"] == "ExecutorChanged"]
        own = [each["at"] - demanded[each["data"]["executor"].rpartition(".")[0]] for each in started]
        found = {name: round(statistics.median(each), 1) for name, each in seconds.items()}
        for shape in ("one", "two"):
            ratios = [ours_s / local_s for ours_s, local_s in zip(seconds[shape], seconds["local"], strict=True)]
            found[f"{shape}OfLocal"] = round(statistics.median(ratios), 2)
        told = {**found, "executorStartedMs": statistics.median(own)}
        print(json.dumps({**told, "load": round(os.getloadavg()[0], 1)}))


if __name__ == "__main__":
    main()
