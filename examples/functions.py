"""Primes below a bound, counted on a cluster: `python examples/functions.py COMPANY USER`."""

from __future__ import annotations

import sys

import fairlog


def primes(first: int, last: int) -> int:
    """How many primes there are from `first` to below `last`."""
    return sum(
        all(number % factor for factor in range(2, int(number**0.5) + 1)) for number in range(max(2, first), last)
    )


def main(company: str, user: str) -> None:
    """Count on as many executors as the calls need, at most two."""
    parts = range(0, 20_000, 1_000)
    with fairlog.Executor(company=company, user=user, cores=2, elastic=(0, 2)) as pool:
        counts = pool.map(primes, parts, (part + 1_000 for part in parts))
        print(sum(counts), "primes below 20000")  # noqa: T201 (what it is for)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/functions.py COMPANY USER")
    main(*sys.argv[1:])
