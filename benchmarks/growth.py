"""What gangs and departments add to a turn of 50 commands on a full cluster (semantics G8, H12), in one run.

- none: as `mixed` of `full.py`: ten apps end, and twenty are submitted.
- gangs: with 100 gangs waiting, of users of their own, two of each company.
- departments: with 200 and 1,000 of them in a tree, five in each, over the same 50 companies.
- companies: with 1,000 companies, without departments and with one for each.
- toggled: twenty apps come, each of which avoids a label of its own, and all but the last end.
- required, avoided: with workers of 256 labels (P9), of which each app requires one, or avoids one; each company 64.
- together: with 100 gangs waiting, 1,000 departments, and a label that each app requires.

Times are CPU time of this thread: medians, and the longest turn; `times_none`: how often the median is that of `none`.
`anew_ms` is that of a filling that begins anew.
"""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

from msgspec.structs import replace

from benchmarks._common import arguments, show
from benchmarks.full import COMPANIES, Full, measured
from scheduler.model.commands import AddDepartment, Command, KillApp, MoveCompany, RegisterWorker, SubmitApp
from scheduler.rules.entities.labels import MOST_DEMANDS, MOST_OF_COMPANY
from scheduler.rules.stage.turn import Turn

MANY = 1_000
LABELS = MOST_DEMANDS
TOGGLES = 20
IN_EACH = 5
"""So many departments are in one."""


@dataclass
class Labelled(Full):
    """Full, with workers of so many labels; what each app says of one of these, if anything."""

    says: str = ""

    def worker(self, number: int) -> RegisterWorker:
        """Worker `number`, with its label."""
        return replace(super().worker(number), labels={"pool": str(number % LABELS)} if self.says else {})

    def submission(self) -> SubmitApp:
        """The next app; the labels take turns, too, as many as a company may demand and from another one on."""
        app = super().submission()
        turn, company = divmod(self.number, self.companies)
        label = (turn % MOST_OF_COMPANY + company * LABELS // self.companies) % LABELS
        return replace(app, **{self.says: (f"pool={label}",)}) if self.says else app

    def toggled(self, turn: int) -> list[Command]:
        """Twenty times an app comes that avoids a label which none avoided and no worker has, and the last one ends."""
        found: list[Command] = []
        for number in range(turn * TOGGLES, (turn + 1) * TOGGLES):
            name = f"toggled-{number}"
            found.append(replace(self.own(0, "user0", (4, 2048)), app=name, avoid=(name,)))
            if number:
                found.append(KillApp(app=f"toggled-{number - 1}"))
        return found


def gang(number: int) -> SubmitApp:
    """A gang of 2 to 8 executors."""
    executors = 2 + number % 7
    return SubmitApp(
        app=f"gang-{number}",
        company=f"company{number % COMPANIES}",
        user=f"ganged{number // COMPANIES}",
        command=("rank",),
        cores=4 * executors,
        executor_cores=4,
        executor_memory_mb=2048,
        gang=True,
        executor_program=True,
    )


def departments(full: Full, number: int) -> None:
    """Add so many departments, and put the companies into them, the first ones into the last."""
    parents = [f"d{(each - 1) // IN_EACH}" if each else "" for each in range(number)]
    full.turn(*(AddDepartment(department=f"d{each}", parent=parent) for each, parent in enumerate(parents)))
    places = {name: number - 1 - each * number // full.companies for each, name in enumerate(full.state.companies)}
    full.turn(*(MoveCompany(company=name, department=f"d{max(0, place)}") for name, place in places.items()))


class Case(NamedTuple):
    """What there is in a full cluster."""

    gangs: int = 0
    departments: int = 0
    companies: int = COMPANIES
    says: str = ""
    toggled: bool = False


def figures(workers: int, turns: int, case: Case) -> dict[str, Any]:
    """Of a full cluster with so much in it."""
    full = Labelled(workers, pending=10 * workers, companies=case.companies, says=case.says)
    full.fill()
    if case.departments:
        departments(full, case.departments)
    if case.gangs:
        full.turn(*map(gang, range(case.gangs)))
    gc.collect()
    gc.freeze()
    full.turn(*full.mixed(0))
    found = measured(full, full.toggled if case.toggled else full.mixed, turns)
    gc.unfreeze()
    return found


def main() -> None:
    """Run the benchmark and print the figures."""
    workers, turns = arguments(__doc__, workers=1_000, turns=20)
    cases = {
        "none": Case(),
        "100_gangs": Case(gangs=100),
        "200_departments": Case(departments=200),
        "1000_departments": Case(departments=MANY),
        "1000_companies": Case(companies=MANY),
        "1000_companies_and_departments": Case(companies=MANY, departments=MANY),
        "toggled": Case(toggled=True),
        "256_required": Case(says="require"),
        "256_avoided": Case(says="avoid"),
        "together": Case(gangs=100, departments=MANY, says="require"),
    }
    found: dict[str, dict[str, Any]] = {}
    for name, case in cases.items():
        print(f"\r{name}  ", end="", file=sys.stderr, flush=True)
        found[name] = figures(workers, turns, case)
        found[name]["times_none"] = round(found[name]["median_ms"] / found["none"]["median_ms"], 2)
    print(file=sys.stderr)
    compiled = not (sys.modules[Turn.__module__].__file__ or "").endswith(".py")
    show(compiled=compiled, workers=workers, turns=turns, **found)


if __name__ == "__main__":
    main()
