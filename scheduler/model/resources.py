"""Capacity and shares of it, exact: whole cores, whole MiB, fractions that are never rounded."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

UNLIMITED_CORES = 2**31 - 1
"""What an app of unlimited cores counts down from, as in Spark (semantics A6)."""
UNLIMITED_MEMORY_MB = 2**62


class Resources(NamedTuple):
    """An amount of `cores` (whole) and `memory_mb` (MiB)."""

    cores: int
    memory_mb: int

    def covers(self, other: Resources) -> bool:
        """Whether `other` fits into this amount in both dimensions."""
        return other.cores <= self.cores and other.memory_mb <= self.memory_mb


class Share:
    """A non-negative fraction `numerator / denominator`, ordered exactly; a denominator of 0 is the largest of all.

    Cross multiplication instead of `fractions.Fraction`: shares are compared far more often than
    they are printed, and reducing each one costs more than comparing it.
    """

    __slots__ = ("denominator", "numerator")

    def __init__(self, numerator: int, denominator: int) -> None:
        self.numerator = numerator
        self.denominator = denominator

    def __lt__(self, other: Share) -> bool:
        return self.numerator * other.denominator < other.numerator * self.denominator

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Share):
            return NotImplemented
        return self.numerator * other.denominator == other.numerator * self.denominator

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        """The share as "n/d" in lowest terms; "1/0" where nothing was bought but something is held."""
        divisor = gcd(self.numerator, self.denominator) or 1
        return f"{self.numerator // divisor}/{self.denominator // divisor}"

    def __repr__(self) -> str:
        return f"Share({self.numerator}, {self.denominator})"

    def __float__(self) -> float:
        return self.numerator / self.denominator if self.denominator else float("inf")


class Quota(NamedTuple):
    """What a company may hold: `cores / denominator` cores and `memory_mb / denominator` MiB (semantics C2)."""

    cores: int
    memory_mb: int
    denominator: int = 1

    def covers(self, cores: int, memory_mb: int) -> bool:
        """Whether that amount stays within the quota in both dimensions (semantics C4)."""
        return cores * self.denominator <= self.cores and memory_mb * self.denominator <= self.memory_mb

    def share_of(self, cores: int, memory_mb: int) -> Share:
        """The dominant share of that amount: the larger of its cores ratio and its memory ratio (semantics C3)."""
        quota_cores, quota_mb, denominator = self
        if not quota_cores or not quota_mb:
            exceeded = (cores and not quota_cores) or (memory_mb and not quota_mb)
            if exceeded:
                return Share(1, 0)
            return max(_ratio(cores * denominator, quota_cores), _ratio(memory_mb * denominator, quota_mb))
        cores *= denominator
        memory_mb *= denominator
        if cores * quota_mb < memory_mb * quota_cores:
            return Share(memory_mb, quota_mb)
        return Share(cores, quota_cores)


def _ratio(amount: int, quota: int) -> Share:
    return Share(amount, quota) if quota else Share(0, 1)


def round_up(amount: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is not below `amount`."""
    return -(-amount // multiple) * multiple


def size_text(memory_mb: int | str) -> str:
    """Memory as people write it: `512M`, `2G`; a fraction of a MiB as "n/d M"."""
    if isinstance(memory_mb, str):
        return f"{memory_mb} M"
    return f"{memory_mb // 1024}G" if memory_mb % 1024 == 0 else f"{memory_mb}M"
