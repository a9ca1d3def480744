"""`sshare`: the companies and their users."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

from fairlog.compat.slurm import sacctmgr
from fairlog.compat.slurm.road import ApiRoad, Me
from fairlog.compat.slurm.tables import SSHARE
from fairlog.compat.slurm.words import SlurmError, name_idle, read

_NO_NUMBER = "FairShare is empty: no number orders jobs; `fairlog explain ID` tells the rule"
USUAL = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage"


def run(words: list[str]) -> int:
    """List companies and users; `fairlog shares` says what each is entitled to."""
    given, rest = read(SSHARE, words)
    if rest:
        raise SlurmError(f"unrecognized argument {rest[0][:40]!r}")
    name_idle("sshare", given)
    asked = {option.name: value for option, value in given}
    columns = sacctmgr.columns_of(asked.get("format", USUAL))
    road = ApiRoad()
    me = Me(road)
    wanted = {each for each in asked.get("accounts", "").split(",") if each}
    users = set(me.names(asked["users"])) if "users" in asked else None if "all" in asked else {me.user}
    rows = [row for row in sacctmgr.associations(road) if users is None or row["user"] in users]
    if "Users" not in asked:
        rows = [{"company": each, "user": ""} for each in sacctmgr.companies(road)] + rows
    rows = [row for row in rows if not wanted or row["company"] in wanted]
    names = {name for name, _ in columns}
    if "FairShare" in names:
        sys.stderr.write(f"sshare: note: {_NO_NUMBER}\n")
    if any(name.endswith(("Shares", "Usage", "LevelFS")) for name in names):
        known = figures(road.get("/v1/shares", fresh="true"))
        rows = [row | known.get((row["company"], row["user"]), {}) for row in rows]
    return sacctmgr.show(asked, columns, [row | {"factor": ""} for row in rows])


def figures(shares: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """Company and user, "" for the whole company -> its quota and the cores that it holds now, each also as a part.

    There is no number by which jobs are ordered, as Slurm's FairShare: `fairlog explain` says which rule decides. Its
    LevelFS, of a company, is its part of the quotas for each part of what all hold: who is below 1 has more than that.
    """
    quotas = {each["company"]: Fraction(each["quotaCores"]) for each in shares["companies"]}
    whole, held = sum(quotas.values()), sum(each["heldCores"] for each in shares["companies"])
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for each in (*shares["companies"], *shares["users"]):
        used = each["heldCores"]
        about: dict[str, Any] = {"usage": used, "used": f"{used / held if held else 0:.6f}"}
        if "user" not in each:
            quota = quotas[each["company"]]
            part = quota / whole if whole else Fraction(0)
            level = f"{float(part * held / used):.6f}" if used else "inf"
            about |= {"shares": round(quota), "part": f"{float(part):.6f}", "level": level}
        found[each["company"], each.get("user", "")] = about
    return found
