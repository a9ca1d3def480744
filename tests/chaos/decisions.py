"""The promises of `tests.chaos.checker`, and that the audit finds nothing: it recomputes every decision."""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos import checker
from tests.chaos.checker import Evidence
from witness.audit.audit import Audit


def _deviations(evidence: Evidence) -> Iterator[str]:
    for found in Audit().deviations(evidence.facts):
        yield f"log position {found.seq}: {found.rule}: {found.done}; due: {found.due}"


PROMISES = {**checker.PROMISES, "the log is whole, and every decision follows from it": _deviations}
