"""Servers with known security holes, by version.

From the release notes of Valkey (github.com/valkey-io/valkey/releases) and Redis (github.com/redis/redis/releases,
redis.io/docs release notes) and the CVE records, as of September 2026. Only holes that a user of the store, or somebody
who can reach it, can use; only those whose mended release is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LUA_2024 = ("CVE-2024-46981",)
_LUA_2025 = ("CVE-2025-49844", "CVE-2025-46817", "CVE-2025-46818", "CVE-2025-46819")
_EARLY_2026 = ("CVE-2025-67733", "CVE-2026-21863")
_MAY_2026 = ("CVE-2026-23479", "CVE-2026-25243", "CVE-2026-23631")
_JULY_2026 = ("CVE-2026-56684", "CVE-2026-63639")
_TLS_2026 = ("CVE-2026-81934",)
_AUGUST_2026 = ("GHSA-fq2f-crmw-q97r", "GHSA-jcj7-v34w-v9vv")
_NEVER = 1 << 30

_MENDED: Mapping[str, Mapping[tuple[int, int], Sequence[tuple[int, tuple[str, ...]]]]] = {
    "valkey": {
        (7, 2): ((11, _LUA_2025), (12, _EARLY_2026), (13, _MAY_2026)),
        (8, 0): ((6, _LUA_2025), (7, _EARLY_2026), (8, _MAY_2026), (10, _JULY_2026)),
        (8, 1): ((4, _LUA_2025), (6, _EARLY_2026), (7, _MAY_2026), (9, _JULY_2026)),
        (9, 0): ((3, (*_EARLY_2026, "CVE-2026-27623")), (4, _MAY_2026), (5, _JULY_2026)),
        (9, 1): ((1, _JULY_2026), (2, _AUGUST_2026)),
    },
    "redis": {
        (7, 0): ((_NEVER, (*_LUA_2024, *_LUA_2025)),),
        (7, 2): ((7, _LUA_2024), (11, _LUA_2025)),
        (7, 4): ((2, _LUA_2024), (6, _LUA_2025), (9, _MAY_2026)),
        (8, 0): ((4, _LUA_2025),),
        (8, 2): ((2, _LUA_2025), (6, _MAY_2026), (9, _TLS_2026)),
        (8, 4): ((3, _MAY_2026), (6, _TLS_2026)),
        (8, 6): ((3, _MAY_2026), (6, _TLS_2026)),
        (8, 8): ((2, _TLS_2026),),
        (8, 10): ((1, _TLS_2026),),
    },
}
"""Server -> major and minor version -> the patch release that mends these holes."""


def server_of(info: Mapping[str, Any]) -> tuple[str, str]:
    """The server's name, `valkey` or `redis`, and version, from its INFO."""
    name = "valkey" if "valkey_version" in info else "redis"
    return name, str(info[f"{name}_version"])


def known_holes(name: str, version: str) -> str:
    """A sentence that names the known holes of that server; "" if it has none."""
    major, minor, patch = (*(int(part) for part in version.split(".")[:3] if part.isdecimal()), 0, 0, 0)[:3]
    open_ = [(mended, holes) for mended, holes in _MENDED[name].get((major, minor), ()) if patch < mended]
    if not open_:
        return ""
    newest = open_[-1][0]
    use = "a later minor version" if newest == _NEVER else f"{major}.{minor}.{newest} or later"
    holes = ", ".join(hole for _, found in open_ for hole in found)
    what = f"the store is {name} {version}, which has known security holes ({holes})"
    return f"{what}; use {use}, or a build that mends them"
