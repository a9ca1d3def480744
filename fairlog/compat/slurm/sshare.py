"""`sshare`: the companies and their users."""

from __future__ import annotations

from fairlog.compat.slurm import sacctmgr
from fairlog.compat.slurm.road import ApiRoad, Me
from fairlog.compat.slurm.tables import SSHARE
from fairlog.compat.slurm.words import SlurmError, read, without_effect

USUAL = "Account,User,RawShares,NormShares,RawUsage,EffectvUsage,FairShare"


def run(words: list[str]) -> int:
    """List companies and users; `fairlog shares` says what each is entitled to."""
    given, rest = read(SSHARE, words)
    if rest:
        raise SlurmError(f"unrecognized argument {rest[0][:40]!r}")
    without_effect("sshare", given)
    asked = {option.name: value for option, value in given}
    road = ApiRoad()
    me = Me(road)
    wanted = {each for each in asked.get("accounts", "").split(",") if each}
    users = set(me.names(asked["users"])) if "users" in asked else None if "all" in asked else {me.user}
    rows = [row for row in sacctmgr.associations(road) if users is None or row["user"] in users]
    if "Users" not in asked:
        rows = [{"company": each, "user": ""} for each in sacctmgr.companies(road)] + rows
    rows = [row for row in rows if not wanted or row["company"] in wanted]
    return sacctmgr.show(asked, asked.get("format", USUAL), rows)
