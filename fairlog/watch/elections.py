"""An election as `status` tells it; whoever only prints one loads nothing else of the conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Elected(NamedTuple):
    """The last election: which master, after which one, "" = it was the first, when (ms), and how long nobody served.

    That is the longest time that it can have been, in ms.
    """

    master: str
    before: str
    at: int
    unserved_ms: int

    def as_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"master": self.master, "before": self.before, "at": self.at, "unservedMs": self.unserved_ms}

    @classmethod
    def of_json(cls, said: Mapping[str, Any]) -> Elected:
        """What `as_json` made."""
        return cls(said["master"], said["before"], said["at"], said["unservedMs"])

    @property
    def _s(self) -> str:
        return f"{self.unserved_ms / 1000:.1f}"

    def __str__(self) -> str:
        """In words, without the master: "after m1; nobody served for at most 3.1 s"."""
        if not self.before:
            return "the first one"
        if self.before == self.master:
            return f"again, since it was cut from the store or that was gone; nobody served for at most {self._s} s"
        return f"after {self.before}; nobody served for at most {self._s} s"
