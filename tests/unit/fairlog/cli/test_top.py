"""What `top` says of companies."""

from __future__ import annotations

from typing import Any

import pytest

from fairlog.cli.verbs.top import _tables

ANSWERS: dict[str, Any] = {"apps": [], "cluster": {"at": 0}, "workers": []}


class Told:
    """A session in which one company has that much granted of a quota of 16 cores and 32 GiB."""

    def __init__(self, cores: int, memory: int, quota: tuple[int | str, int | str] = (16, 32768)) -> None:
        self.company = {
            "company": "acme",
            "share": "2/1",  # of all that its apps ask for, by which the next company is chosen
            "grantedCores": cores,
            "grantedMemory": memory,
            "demandCores": 32,
            "quotaCores": quota[0],
            "quotaMemory": quota[1],
        }

    def ask(self, view: str, **_: object) -> Any:
        return {**ANSWERS, "shares": {"byEntitlement": True, "companies": [self.company]}}[view]


@pytest.mark.parametrize(
    ("cores", "memory", "part"), [(16, 8192, "100.0%"), (4, 24576, " 75.0%"), (32, 8192, "200.0%"), (0, 0, "  0.0%")]
)
def test_the_share_of_a_quota_is_what_is_held_of_it(cores: int, memory: int, part: str) -> None:
    told: Any = Told(cores, memory)
    (_, rows), *_ = _tables(told)
    assert str(rows[0][1]).endswith(f" {part}")


def test_a_quota_need_be_no_whole_number() -> None:
    """As the default one of three companies on 16 cores."""
    told: Any = Told(4, 8192, ("16/3", "32768/3"))
    (_, rows), *_ = _tables(told)
    assert str(rows[0][1]).endswith("  75.0%")
