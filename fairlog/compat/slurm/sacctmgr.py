"""`sacctmgr` and `sshare`: which user belongs to which company."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from fairlog.compat.slurm.jobs import always
from fairlog.compat.slurm.road import ApiRoad, Me, Problem
from fairlog.compat.slurm.sacct import lines
from fairlog.compat.slurm.tables import CLUSTER, QOS, SACCTMGR
from fairlog.compat.slurm.words import SlurmError, name_idle, read

Row = dict[str, Any]
_TRES = {"cpu": "max_cores", "mem": "max_memory_mb"}
"""Slurm's name of what is limited -> the limit."""
FIELDS: dict[str, tuple[int, Callable[[Row], object]]] = {
    "User": (10, lambda row: row["user"]),
    "Account": (10, lambda row: row["company"]),
    "DefaultAccount": (10, lambda row: row["company"]),
    "Cluster": (10, always(CLUSTER)),
    "Partition": (10, always("")),
    "Admin": (9, always("None")),
    "AdminLevel": (9, always("None")),
    "Share": (9, always(1)),
    "FairShare": (10, lambda row: row.get("factor", 1)),
    "QOS": (20, always(QOS)),
    "DefaultQOS": (9, always(QOS)),
    "DefQOS": (9, always(QOS)),
    "MaxWall": (11, always("")),
    "Name": (10, lambda row: row["company"]),
    "Organization": (10, lambda row: row["company"]),
    "Descr": (10, lambda row: row["company"]),
    "Description": (10, lambda row: row["company"]),
    "RawShares": (10, lambda row: row.get("shares", 1)),
    "NormShares": (11, lambda row: row.get("part", "")),
    "RawUsage": (11, lambda row: row.get("usage", 0)),
    "EffectvUsage": (13, lambda row: row.get("used", "")),
    "NormUsage": (11, lambda row: row.get("used", "")),
    "LevelFS": (10, lambda row: row.get("level", "")),
    "GrpJobs": (7, lambda row: row.get("max_running_apps", "")),
    "GrpTRES": (13, lambda row: ",".join(f"{kind}={row[name]}" for kind, name in _TRES.items() if name in row)),
    "GrpCPUs": (8, lambda row: row.get("max_cores", "")),
    "GrpMem": (7, lambda row: row.get("max_memory_mb", "")),
}
"""Name -> the usual width, and what a row has there."""
_WITHOUT = (
    *("Classification", "ControlHost", "ControlPort", "Coordinators", "DefaultWCKey", "Features"),
    *("FedState", "Federation", "Flags", "GraceTime", "GrpCPUMins", "GrpCPURunMins", "GrpJobsAccrue", "GrpNodes"),
    *("GrpSubmit", "GrpTRESMins", "GrpTRESRaw", "GrpTRESRunMins", "GrpWall", "ID", "LimitFactor", "MaxCPUMins"),
    *("MaxCPUs", "MaxCPUsPU", "MaxJobs", "MaxJobsAccruePA", "MaxJobsAccruePU", "MaxJobsPA", "MaxJobsPU", "MaxNodes"),
    *("MaxNodesPU", "MaxSubmit", "MaxSubmitPA", "MaxSubmitPU", "MaxTRES", "MaxTRESMins", "MaxTRESPA"),
    *("MaxTRESPU", "MaxTRESPerNode", "MaxTRESRunMinsPA", "MaxTRESRunMinsPU", "MinPrioThres", "MinTRES", "NodeCount"),
    *("NodeNames", "ParentID", "ParentName", "PluginIDSelect", "Preempt", "PreemptExemptTime", "PreemptMode"),
    *("Priority", "QOS_RAW", "RPC", "TRES", "TRESRunMins", "UsageFactor", "UsageThres"),
)
"""Fields of Slurm of which companies and users have nothing."""
FIELDS |= {name: (max(7, len(name)), always("")) for name in _WITHOUT}
_LONG = {
    "grpsubmitjobs": "GrpSubmit",
    "maxcpusperjob": "MaxCPUs",
    "maxcpusperuser": "MaxCPUsPU",
    "maxjobsperaccount": "MaxJobsPA",
    "maxjobsperuser": "MaxJobsPU",
    "maxnodesperjob": "MaxNodes",
    "maxnodesperuser": "MaxNodesPU",
    "maxsubmitjobs": "MaxSubmit",
    "maxsubmitjobsperaccount": "MaxSubmitPA",
    "maxsubmitjobsperuser": "MaxSubmitPU",
    "maxsubmitjobspu": "MaxSubmitPU",
    "maxtresperaccount": "MaxTRESPA",
    "maxtresperjob": "MaxTRES",
    "maxtresperuser": "MaxTRESPU",
    "maxwalldurationperjob": "MaxWall",
    "usagethreshold": "UsageThres",
}
"""Longer names of fields."""
_ASSOCIATION = "Cluster,Account,Partition,Share,MaxWall,QOS,DefaultQOS"
"""What is told of a user in a company."""


def run(words: list[str]) -> int:
    """List users, companies or the one cluster."""
    given, rest = read(SACCTMGR, words)
    name_idle("sacctmgr", given)
    asked = {option.name: value for option, value in given}
    verb, what = [*(word.lower() for word in rest[:2]), "", ""][:2]
    if not verb:
        raise SlurmError("name a command, such as `sacctmgr show account`")
    if verb not in ("list", "show"):
        raise SlurmError(f"{verb[:40]} is refused: companies and users are managed by `fairlog company` and `account`")
    about, named = _about(rest[2:])
    columns = columns_of(about["format"]) if "format" in about else []
    road = ApiRoad()
    names = {
        "user",
        "users",
        "association",
        "associations",
        "assoc",
        "account",
        "accounts",
        "cluster",
        "clusters",
        "qos",
    }
    if what not in names:
        raise SlurmError(f"Bad entity {what[:40]!r}; there are user, association, account, cluster and qos")
    if what.startswith("account"):
        rows, usual = [{"user": "", "company": each} for each in companies(road)], "Account,Descr,Organization"
    elif what.startswith(("cluster", "qos")):
        rows, usual = [{"user": "", "company": QOS if what == "qos" else CLUSTER}], "Name"
    else:
        rows, usual = associations(road), "User,DefaultAccount,Admin"
        usual += f",{_ASSOCIATION}" if "associations" in asked or "withassoc" in about else ""
        if what.startswith("assoc"):
            usual = f"Cluster,Account,User,{_ASSOCIATION.removeprefix('Cluster,Account,')}"
        users = _parts(about.get("user", ""), *named)
        wanted = Me(road).names(",".join(users)) if users else []
        rows = [row for row in rows if not wanted or row["user"] in wanted]
    of = _parts(about.get("account", ""), *(named if what.startswith(("account", "cluster", "qos")) else ()))
    columns = columns or columns_of(usual)
    if any(name.startswith("Grp") for name, _ in columns):
        rows = with_limits(road, rows)
    return show(asked, columns, [row for row in rows if not of or row["company"] in of])


def with_limits(road: ApiRoad, rows: list[Row]) -> list[Row]:
    """The rows, each with the limits of its user, or of its company where it is none's."""
    known: dict[tuple[str, str], Row] = {}
    for each in road.get("/v1/limits"):
        if each["scope"] in ("user", "company"):
            known.setdefault((each["company"], each["user"] or ""), {})[each["limit"]] = each["value"]
    return [row | known.get((row["company"], row["user"]), {}) for row in rows]


def _parts(*texts: str) -> list[str]:
    return [each for text in texts for each in text.split(",") if each]


def _about(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """What conditions such as `user=ann` say, and the names without one. Raises: Refused for an unknown one."""
    about: dict[str, str] = {}
    named: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        low = name.lower()
        if low in ("where", "withassoc"):
            about[low] = ""
        elif not equals:
            named.append(word)
        elif (full := {"users": "user", "accounts": "account"}.get(low, low)) in ("user", "account", "format"):
            about[full] = value.strip("'\"")
        elif low not in ("cluster", "clusters") or value != CLUSTER:
            raise SlurmError(f"Unknown condition: {word[:40]}; there are user=, account= and format=")
    return about, named


def columns_of(text: str) -> list[tuple[str, int]]:
    """The fields of a list, and their widths. Raises: Refused for an unknown field."""
    columns: list[tuple[str, int]] = []
    known = {name.lower(): name for name in FIELDS} | _LONG
    for each in text.split(","):
        name, percent, width = each.strip().partition("%")
        full = known.get(name.lower()) or next(
            (whole for low, whole in known.items() if name and low.startswith(name.lower())), ""
        )
        if not full or (percent and not width.removeprefix("-").isdecimal()):
            raise SlurmError(f'Unknown field "{each[:40]}"')
        columns.append((full, int(width) if percent else FIELDS[full][0]))
    return columns


def show(asked: dict[str, str], columns: list[tuple[str, int]], rows: list[Row]) -> int:
    """Print the rows as sacct prints its own."""
    table = [[str(FIELDS[name][1](row)) for name, _ in columns] for row in rows]
    sys.stdout.write("".join(f"{line}\n" for line in lines(asked, columns, table)))
    return 0


def companies(road: ApiRoad) -> list[str]:
    """The companies by name."""
    return [str(each["company"]) for each in road.get("/v1/companies")]


def associations(road: ApiRoad) -> list[Row]:
    """Which user belongs to which company; before there are accounts, the caller to each."""
    try:
        accounts = [each["account"] for each in road.get("/v1/accounts")]
    except Problem:  # not everybody may list them
        accounts = []
    found = [dict(zip(("company", "user"), each.split("/", 1), strict=True)) for each in accounts]
    found = [row for row in found if row["company"] not in ("op", "auditor", "worker")]
    if found:
        return found
    me = Me(road)
    mine = [me.company] if me.company else companies(road)
    return [{"company": company, "user": me.user} for company in mine]
