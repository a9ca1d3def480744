"""The users of the store and what each may do there: the one table from which the ACL file and its tests are made.

The commands are listed one by one, because the categories of servers differ and grow. `+@connection` covers what a
connection says about itself, and WAIT and WAITAOF, which not every server has.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping
from typing import NamedTuple

from scheduler.store.keys import Keys, escaped


class Role(NamedTuple):
    """A user of the store: words of `write` and `read` are keys of the cluster, those of `queues` RQ's; `*` is any end.

    In `queues`, `{C}` stands for the cluster's name, and `{E}` for that name as RQ's ids spell it.
    """

    user: str
    purpose: str
    write: str
    read: str
    queues: str
    commands: str


_LOG = "log archive damaged snapshot:* snapshots lease masters office schema settled shorter unreplicated"
_WORK = "tasks:* begun:* later:* near:* output:* live kept kept:* driver-output:* mail:* visit:* visited"
_ASKING = "inbox sent:* reply:*"
_RINGING = "queue:fairlog.{C}.master"
_SERVING = (
    f"{_RINGING} queue:fairlog.{{C}}.worker.* queue:fairlog.{{C}}.app.* job:{{E}}__* job:fairlog_2e{{E}}_2e* "
    "worker:* workers workers:* queues"
)
_READS = (
    "config|get exists get hexists hget hgetall hkeys hlen hmget hvals info lindex llen lrange role smembers time type "
    "xinfo|stream xlen xrange xread xrevrange zcard zcount zlexcount zrange zrangebylex "
    "zrangebyscore zscore"
)
_SENDS = "blpop del discard eval evalsha exec expire hset multi pexpire pttl rpush script|load set ttl xadd"
_WORKS = "hdel hincrby hincrbyfloat hsetnx lpop lpush ltrim persist sadd srem unwatch watch zadd zrem"

AUDITOR = "fairlog-auditor"
SEES_USERS = "acl|getuser"
"""The command of those who may know what the store's users may do."""

ROLES = (
    Role(
        user="fairlog-master",
        purpose="masters, and operators on their hosts",
        write="*",
        read="",
        queues=_SERVING,
        commands=f"{_READS} {_SENDS} {_WORKS} lrem memory|usage {SEES_USERS} rename unlink xtrim zremrangebyscore",
    ),
    Role(
        user="fairlog-api",
        purpose="API servers, which work for agents and executors as well",
        write=f"{_ASKING} inbox:* unclaimed:* reads reads-archive rate:* owners {_WORK} heartbeats agents "
        "served shorter full-disks unused noticed ended-sessions estimates estimated grants:*",
        read=f"{_LOG} secrets:* audited backed-up",
        queues=_SERVING,
        commands=f"{_READS} {_SENDS} {_WORKS} memory|usage xtrim",
    ),
    Role(
        user=AUDITOR,
        purpose="reading, auditing and backing up the log, of which it only notes how far that is",
        write="audited backed-up",
        read=f"{_LOG} reads reads-archive heartbeats agents served full-disks unused noticed",
        queues="",
        commands=f"{_READS} memory|usage set",
    ),
    Role(
        user="fairlog-replica",
        purpose="replicas of the store, as their masteruser and masterauth",
        write="",
        read="",
        queues="",
        commands="ping psync replconf",
    ),
)
"""API servers may write grants because a script that only reads a key needs the right to write it."""


def acl_line(role: Role, cluster: str, sha256: str) -> str:
    """The line of an ACL file for that user, whose password has this hash (hex SHA-256)."""
    return f"user {role.user} on #{sha256} {' '.join(rules(role, cluster))}"


def rules(role: Role, cluster: str) -> list[str]:
    """What the user may do, as rules of an ACL. Raises: InvalidCommand if the cluster's name is invalid."""
    prefix = Keys(cluster).prefix
    named = role.queues.format(C=cluster, E=escaped(cluster)).split()
    keys = [*(f"~{prefix}{key}" for key in role.write.split()), *(f"~rq:{name}" for name in named)]
    keys += [f"%R~{prefix}{key}" for key in role.read.split()]
    commands = [f"+{command}" for command in role.commands.split()]
    return ["resetchannels", "resetkeys", *keys, "-@all", "+@connection", "-@admin", "-@dangerous", *commands]


DEFAULT_OFF = "user default off resetpass ~* &* +@all"
"""Nobody can be this user, which is off; the server itself is, when it reads its append-only file at its start."""


def acl_file(cluster: str, hashes: Mapping[str, str]) -> str:
    """The ACL file of a store with one cluster; `hashes`: user -> hex SHA-256 of its password.

    Raises: InvalidCommand if the cluster's name is invalid.
    """
    lines = (acl_line(role, cluster, hashes[role.user]) for role in ROLES)
    return "\n".join((DEFAULT_OFF, *lines, ""))


def new_password() -> str:
    """256 random bits, in characters that need no quoting in a URL."""
    return secrets.token_hex(32)


def hash_of(password: str) -> str:
    """The hex SHA-256 of a password."""
    return hashlib.sha256(password.encode()).hexdigest()
