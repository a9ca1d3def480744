"""What Spark's configuration says about executors and drivers: cores, memory, further kinds, options of the JVM."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from scheduler.model.errors import InvalidCommand
from scheduler.model.text import counted

JAR = Path(__file__).with_name("fairlog-spark.jar")
MASTER = "spark+fairlog://"
_SIZE = re.compile(r"(\d+)\s*([kmgtp]?)b?", re.IGNORECASE)
_PROPERTY = re.compile(r"([^#!\s=:][^\s=:]*)(?:\s*[=:]\s*|\s+)(.*)")
_UNIT_KIB = {"k": 1, "m": 1 << 10, "g": 1 << 20, "t": 1 << 30, "p": 1 << 40}
_RESOURCE = re.compile(r"spark\.executor\.resource\.([^.]+)\.amount")
_AT_START = re.compile(
    r"(?!.*Password$)spark\.(rpc|network|ssl|io\.encryption|authenticate(?!\.secret)|driver\.port|.*\.port$)", re.DOTALL
)
"""What an executor must know before it has asked its driver, but for the secrets."""
_PASSWORDS = {"key": "KEY", "privateKey": "PRIVATE_KEY", "keyStore": "KEY_STORE", "trustStore": "TRUST_STORE"}
"""What TLS of Spark's own messages has passwords for -> as the name of its variable has it."""
_LEAVES = {
    "spark.decommission.enabled": "true",
    "spark.storage.decommission.enabled": "true",
    "spark.storage.decommission.replicationReattemptInterval": "1s",
}
"""Without these, an executor that is told to leave stays, or leaves half a minute after its blocks were handed over.

The driver has none of them, so that it stops its idle executors itself. Values that it has hold for executors too."""
_FACTOR = re.compile(r"[0-9]{1,4}(\.[0-9]{1,9})?")
_LEAST_OVERHEAD_MIB, _OVERHEAD = 384, 0.1


def mebibytes(text: str, *, plain: str = "m") -> int:
    """A size as Spark writes it, in MiB, rounded up; `plain`: the unit of a mere number. Raises: InvalidCommand."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidCommand(f"{text[:40]!r} is not a size as Spark writes it, such as 512m or 2g")
    return -(-int(found[1]) * _UNIT_KIB[(found[2] or plain).lower()] // (1 << 10))


def properties(text: str) -> dict[str, str]:
    """The names and values of a file such as spark-defaults.conf; the last value of a name holds."""
    lines = re.sub(r"\\\r?\n[ \t]*", "", text).splitlines()
    found = (_PROPERTY.match(line.strip()) for line in lines)
    return {each[1]: each[2] for each in found if each is not None}


def size(conf: Mapping[str, str], name: str, default: str, *, plain: str = "m") -> int:
    """The size of that name, in MiB. Raises: InvalidCommand, which names it."""
    try:
        return mebibytes(conf.get(name, default), plain=plain)
    except InvalidCommand as error:
        raise InvalidCommand(f"{name}: {error}") from None


def whole(conf: Mapping[str, str], name: str, default: int, *, least: int = 1) -> int:
    """The whole number of that name. Raises: InvalidCommand, which names it."""
    text = conf.get(name, str(default)).strip()
    if not (text.isdecimal() and least <= int(text) < 1 << 31):
        raise InvalidCommand(f"{name} is a whole number of at least {least}, not {text[:40]!r}")
    return int(text)


def with_overhead(conf: Mapping[str, str], role: str, memory_mb: int) -> int:
    """The memory of a driver's or an executor's process: the heap and what the JVM needs beside it, in MiB.

    Raises: InvalidCommand.
    """
    given = f"spark.{role}.memoryOverhead"
    if given in conf:
        return memory_mb + size(conf, given, "0m")
    factor = conf.get(f"spark.{role}.memoryOverheadFactor", str(_OVERHEAD)).strip()
    if _FACTOR.fullmatch(factor) is None:
        raise InvalidCommand(f"spark.{role}.memoryOverheadFactor is a number such as 0.1, not {factor[:40]!r}")
    least = size(conf, f"spark.{role}.minMemoryOverhead", f"{_LEAST_OVERHEAD_MIB}m")
    return memory_mb + max(least, int(memory_mb * float(factor)))


class Executors(NamedTuple):
    """A driver's executors: cores, heap and whole memory of each in MiB, amounts of further kinds, and how many."""

    cores: int
    heap_mb: int
    memory_mb: int
    resources: dict[str, int]
    number: int


def executors_of(conf: Mapping[str, str], initial: int) -> Executors:
    """What the configuration asks for; `initial` is Spark's own reading of how many. Raises: InvalidCommand."""
    cores = whole(conf, "spark.executor.cores", 1)
    heap_mb = size(conf, "spark.executor.memory", "1g")
    memory_mb = with_overhead(conf, "executor", heap_mb) + size(conf, "spark.executor.pyspark.memory", "0m")
    if conf.get("spark.memory.offHeap.enabled") == "true":
        memory_mb += size(conf, "spark.memory.offHeap.size", "0", plain="k")
    resources = {found[1]: whole(conf, name, 1) for name in conf if (found := _RESOURCE.fullmatch(name))}
    number = initial
    if "spark.executor.instances" in conf:
        whole(conf, "spark.executor.instances", 1, least=0)
    if conf.get("spark.dynamicAllocation.enabled") != "true" and "spark.executor.instances" not in conf:
        number = whole(conf, "spark.cores.max", cores) // cores if "spark.cores.max" in conf else initial
        if not number and initial:
            raise InvalidCommand(
                f"spark.cores.max, {conf['spark.cores.max']}, is less than the {counted(cores, 'core')} "
                f"of one executor; "
                "raise it, or lower spark.executor.cores"
            )
    return Executors(cores, heap_mb, memory_mb, resources, number)


def executor_secrets(conf: Mapping[str, str]) -> dict[str, str]:
    """The secrets that an executor must know at its start, as variables: a command line is read by whoever is near."""
    found = {"_SPARK_AUTH_SECRET": conf.get("spark.authenticate.secret", "")}
    for what, named in _PASSWORDS.items():
        general = conf.get(f"spark.ssl.{what}Password", "")
        found[f"_SPARK_SSL_RPC_{named}_PASSWORD"] = conf.get(f"spark.ssl.rpc.{what}Password", general)
    return {name: value for name, value in found.items() if value}


def executor_command(
    conf: Mapping[str, str], *, java: str, home: str, driver: str, app: str, heap_mb: int, options: Sequence[str] = ()
) -> tuple[str, ...]:
    """The command of an executor: its JVM, in place of the shell that knows the executor's number, host and cores."""
    written = " ".join(conf.get(f"spark.executor.{name}JavaOptions", "") for name in ("default", "extra"))
    paths = [conf.get("spark.executor.extraClassPath", ""), f"{JAR}:{home}/jars/*"]
    begun = [f"-D{name}={value}" for name, value in sorted(conf.items()) if _AT_START.match(name)]
    script = (
        'export SPARK_LOCAL_DIRS="$FAIRLOG_SCRATCH"; exec "$0" "$@" --executor-id "${FAIRLOG_EXECUTOR_ID##*.}" '
        '--hostname "${SPARK_LOCAL_HOSTNAME:-$FAIRLOG_HOST}" --cores "$FAIRLOG_CORES"'
    )
    return (
        *("sh", "-c", script, f"{java}/bin/java", *options, "-cp", ":".join(filter(None, paths)), f"-Xmx{heap_mb}m"),
        *written.split(),
        *begun,
        *(f"-D{name}={value}" for name, value in _LEAVES.items()),
        *("org.apache.spark.executor.CoarseGrainedExecutorBackend", "--driver-url", driver),
        *("--app-id", app, "--resourceProfileId", "0"),
    )
