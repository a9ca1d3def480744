"""Fairness, waits and utilisation of workload traces under the default rules, in virtual time, printed as JSON.

`traces.py FILE.swf...` runs each trace as `fairlog whatif --trace` does, its users divided among four companies. The
figures do not depend on the machine. Waits count from submission, to admission and to the first grant. The shortfall is
what companies occupy, or are granted, below their entitlements. Killed are the executors that ended at their date, and
lost what their tasks had done, which counts as utilisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks._common import show, words
from recovery.replay.rebuild import unhindered
from witness.swf import read_trace
from witness.whatif import OtherWorld, Rules

COMPANIES = 4


def _waits(waits: Sequence[int]) -> dict[str, int]:
    """Mean and 95th percentile, by nearest rank, in seconds."""
    ordered = sorted(waits)
    return {
        "mean_s": round(sum(ordered) / len(ordered) / 1000),
        "p95_s": round(ordered[-(-len(ordered) * 95 // 100) - 1] / 1000),
    }


def _figures(file: Path) -> dict[str, Any]:
    began = perf_counter()
    with file.open(errors="replace") as lines:
        trace = read_trace(lines, COMPANIES)
    world = OtherWorld(Rules(), trace.work, follows=False)
    with unhindered():
        for turn in trace.turns:
            world.take(turn)
        world.run_until()
    found, accounts = world.report(), list(world.meter.accrued(world.state.at))
    offered = world.state.fleet.total.cores * (world.state.at - world.meter.first_at)
    cluster = found["cluster"]
    return {
        "apps": cluster["apps"],
        "ended": cluster["ended"],
        "refused": found["refused"],
        "shortfall_core_h": round(cluster["shortfallCoreS"] / 3600),
        "grant_shortfall_core_h": round(sum(row["grantShortfallCoreS"] for row in found["rows"]) / 3600),
        "jain": cluster["jain"],
        "admitted": _waits([a.admitted_at - a.submitted_at for a in accounts if a.admitted_at is not None]),
        "started": _waits([a.started_at - a.submitted_at for a in accounts if a.started_at is not None]),
        "utilisation": round(sum(account.granted_ms.cores for account in accounts) / offered, 4),
        "makespan_h": round(found["makespanMs"] / 3_600_000, 1),
        "killed": world.killed,
        "lost_core_h": round(world.lost_core_ms / 3_600_000),
        "took_s": round(perf_counter() - began),
    }


def main() -> None:
    """Run the traces and print their figures."""
    files = [Path(word) for word in words(__doc__, "FILE.swf")]
    if missing := [str(file) for file in files if not file.is_file()]:
        raise SystemExit(f"no such file: {', '.join(missing)}; name traces in the Standard Workload Format")
    show(**{file.name: _figures(file) for file in files})


if __name__ == "__main__":
    main()
