"""What a store's answers say of its durability."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import BusyLoadingError, NoPermissionError

from scheduler.store.durability import Durability, weakness
from scheduler.store.transient import NotDurable

GOOD = {
    "appendfsync": "always",
    "appendonly": "yes",
    "maxmemory-policy": "noeviction",
    "no-appendfsync-on-rewrite": "no",
}
USER = [b"flags", [b"off"], b"passwords", [], b"commands", b"+@all", b"keys", b"~*", b"channels", b"&*"]


def configured(**changes: str) -> list[bytes]:
    return [word.encode() for pair in (GOOD | changes).items() for word in pair]


def persistence(**changes: str) -> bytes:
    said = {"aof_rewrite_in_progress": "0", "aof_rewrite_scheduled": "0", "aof_last_bgrewrite_status": "ok"} | changes
    return "\r\n".join(("# Persistence", *(f"{name}:{value}" for name, value in said.items()))).encode()


@pytest.mark.parametrize(
    "busy", [{"aof_rewrite_in_progress": "1"}, {"aof_rewrite_scheduled": "1"}, {"aof_last_bgrewrite_status": "err"}]
)
def test_a_file_that_was_off_counts_only_once_all_is_in_it(busy: dict[str, str]) -> None:
    seen = Durability()
    seen.judge((configured(), persistence(**busy), USER))
    with pytest.raises(NotDurable, match="run `CONFIG SET appendonly yes` on it"):
        seen.judge((configured(appendonly="no"), persistence(), USER))
    for _ in range(2):
        with pytest.raises(NotDurable, match="has not yet written to its file"):
            seen.judge((configured(), persistence(**busy), USER))
    seen.judge((configured(), persistence(), USER))
    seen.judge((configured(), persistence(**busy), USER))


def test_a_store_that_is_away_is_not_called_unsuitable() -> None:
    for place in range(3):
        said: list[Any] = [configured(), persistence(), USER]
        said[place] = BusyLoadingError("Redis is loading the dataset in memory")
        with pytest.raises(BusyLoadingError):
            Durability().judge(said)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({}, ""),
        ({"commands": "-@all"}, "commands -@all"),
        ({"commands": "+@all -flushall"}, "commands +@all -flushall"),
        ({"keys": ""}, "keys none"),
        ({"databases": "alldbs"}, ""),
        ({"databases": "db=0"}, "databases db=0"),
    ],
)
def test_the_default_user_may_do_everything_or_the_line_is_named(said: dict[str, str], found: str) -> None:
    user = [b"flags", [b"off"], *(word.encode() for pair in said.items() for word in pair)]
    weak = weakness(configured(), user)
    assert (
        (f"which has {found}; " in weak and "`user default off resetpass ~* &* +@all`" in weak) if found else not weak
    )


def test_who_may_not_ask_is_told_what_to_allow() -> None:
    refusal = NoPermissionError("no permissions")
    assert "allow it for this user" in weakness(refusal, USER)
    assert "`fairlog store acl`" in weakness(configured(), refusal)
