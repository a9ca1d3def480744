"""A filling that goes on from a mark of the last one is the one that would be made anew (semantics H2, H3)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from scheduler.model.commands import (
    AddDepartment,
    Command,
    EndApp,
    EndedExecutor,
    MoveCompany,
    RegisterCompany,
    RegisterKind,
    RegisterWorker,
    ScaleApp,
    SubmitApp,
)
from scheduler.model.commands import KillApp as Kill
from scheduler.model.commands import SetLimit as Limit
from scheduler.model.errors import CommandRejected
from scheduler.model.events import Event, ExecutorAllocated, ExecutorRevoked
from scheduler.rules.share import entitlement as sharing
from scheduler.rules.share import fill
from scheduler.rules.share.entitlement import Entitlement, filling
from scheduler.rules.share.families import are_as_before
from scheduler.rules.share.going_on import GoingOn
from scheduler.rules.share.plan import plan
from scheduler.rules.stage import sharing as stage
from scheduler.rules.state.cluster import ClusterState
from tests.property.given import Cluster, Watch
from tests.property.lawful import entitled_amid
from tests.property.test_gangs import gang
from tests.property.test_rounds import settled, wavering
from tests.property.trees import departments


def shown(found: Entitlement) -> dict[str, Any]:
    """All that a filling says, in a form that can be compared."""
    assert found.run is not None
    return {
        "leaves": {app: (leaf.units, leaf.driven, leaf.cause, leaf.held) for app, leaf in sorted(found.leaves.items())},
        "dropped": [leaf.app for leaf in found.dropped],
        "entering": sorted(found.entering),
        "overtaking": sorted(found.overtaking),
        "turned away": {
            user: {need: leaf.app for need, leaf in needs.items()} for user, needs in found.turned_away.items() if needs
        },
        "offered": found.offered,
        "companies": {node.name: (node.used, node.drivers) for node in found.companies.values()},
        "users": {
            (node.name, user.name): user.used for node in found.companies.values() for user in node.users if user.leaves
        },
        "sizes": [unit for _, unit in found.run.handed],
    }


def handed(found: Entitlement) -> dict[str, Any]:
    """What a filling hands out, and to whom."""
    everything = shown(found)
    units = {app: leaf[:2] for app, leaf in everything["leaves"].items() if leaf[:2] != (0, False)}
    return {"units": units, **{name: everything[name] for name in ("offered", "companies", "users", "sizes")}}


class Compared:
    """Compares each filling that goes on, or holds still, with one that begins anew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.found: Counter[str] = Counter()
        self._go_on, self._holding = sharing.gone_on, sharing.still_holding
        monkeypatch.setattr(sharing, "gone_on", self.gone_on)
        monkeypatch.setattr(sharing, "still_holding", self.still_holding)

    def gone_on(self, state: ClusterState) -> Entitlement | None:
        asked = state.filling.kept is not None
        found = self._go_on(state)
        if found is not None:
            self.found["gone on"] += 1
            assert shown(found) == shown(filling(state)[0])
            self._note(found, "gone on")
        return found if asked else None

    def still_holding(self, state: ClusterState) -> Entitlement | None:
        found = self._holding(state)
        if found is not None:
            self.found["held"] += 1
            assert handed(found) == handed(filling(state)[0])
            self._note(found, "held")
        return found

    def _note(self, found: Entitlement, how: str) -> None:
        self.found[f"{how} in a tree"] += found.tree is not None
        self.found[f"{how} with a gang"] += any(leaf.gang and leaf.units for leaf in found.leaves.values())


def command(
    random: Random,
    state: ClusterState,
    companies: int,
    sizes: list[int],
    number: int,
    *,
    gangs: bool,
    labels: bool = False,
) -> Command | None:
    """What happens next: apps come, end, are killed or change their demand, executors end."""
    choice = random.random()
    if choice < 0.55:
        cores, driver = random.choice(sizes), random.random() < 0.05
        if gangs and random.random() < 0.4:
            company, user = f"c{random.randrange(companies)}", random.choice(["ann", "bob", "cal"])
            memory_mb = 256 * cores  # so that a gang has as much as one executor now and then
            executors = random.choice([1, 2, 2, 4, 12])
            return gang(
                f"app-{number}", executors, company=company, user=user, cores=cores, executor_memory_mb=memory_mb
            )
        own: dict[str, Any] = {}
        if random.random() < 0.7:
            memory_mb = 256 * cores if gangs else random.choice([256, 1024])
            own = {"executor_cores": cores, "executor_memory_mb": memory_mb}
        if labels and random.random() < 0.7:
            how = random.choice(["avoid", "avoid", "require", "prefer_labels"])
            own[how] = (random.choice(["zone=a", "disk", *NOBODYS]) if how != "require" else "zone=a",)
            own["tolerate"] = ("spot",) if random.random() < 0.2 else ()
        return SubmitApp(
            app=f"app-{number}",
            company=f"c{random.randrange(companies)}",
            user=random.choice(["ann", "bob", "cal"]),
            command=("true",),
            cores=cores * random.choice([1, 2, 4, 20]),
            tasks=None if driver else 100_000,
            driver=driver,
            **own,
        )
    if choice < 0.75 and state.executors:
        executor = random.choice(sorted(state.executors))
        return EndedExecutor(executor=executor, reason=random.choice(["exited", "failed", "killed"]), done=choice < 0.6)
    apps = [app.id for app in state.apps.values() if app.ended is None]
    if not apps:
        return None
    app = random.choice(apps)
    if choice < 0.9:
        return EndApp(app=app, reason="finished") if choice < 0.85 else Kill(app=app)
    return ScaleApp(app=app, executors=random.choice([1, 2, 5, 12]))


def labelled(random: Random, each: int) -> dict[str, Any]:
    """By what a worker is told apart; now and then it offers a further kind."""
    labels = {"zone": random.choice("abc")} | ({"disk": "ssd"} if random.random() < 0.3 else {})
    gpus = {"gpu": tuple([f"{each}-{number}" for number in range(2)])} if random.random() < 0.1 else {}
    return {"labels": labels, "taints": ("spot",) if random.random() < 0.2 else (), "resources": gpus}


NOBODYS = [f"x{number}" for number in range(9)]
"""Labels that no worker has."""


def play(
    seed: int,
    *,
    gangs: bool = False,
    tree: bool = False,
    labels: bool = False,
    before: Watch = lambda _, __: None,
) -> None:
    """A busy cluster of workers of 16 cores, with a few companies, of which some have caps."""
    random = Random(seed)
    cluster = Cluster({"reclaim_patience_s": 5}, before=before, each_event=False, each_refusal=False)
    if labels:
        cluster.turn(RegisterKind(kind="gpu"))
    number, companies = 0, random.choice([2, 3, 6])
    workers = random.choice([2, 6, 15])
    names = [""]
    if tree:
        added = departments(random, workers * 16, limits=random.random() < 0.5)
        if seed % 2:  # then shares are equal more often
            added = [AddDepartment(department=each.department, parent=each.parent) for each in added]
        cluster.turn(*added)
        names = [each.department for each in added]
    sizes = random.choice([[4], [4], [2, 4], [1, 3, 4, 8]])
    for name in range(companies):
        capped = random.random() < 0.2
        quota: dict[str, Any] = (
            {"part": f"1/{random.randint(2, 5)}", "borrow": not capped} if random.random() < 0.4 else {}
        )
        cluster.turn(RegisterCompany(company=f"c{name}", **quota))
        if tree:
            cluster.turn(MoveCompany(company=f"c{name}", department=random.choice(["", *names, *names, *names])))
    cluster.turn(
        *[
            RegisterWorker(
                worker=f"w{each:02}",
                node="n",
                host="h",
                cores=16,
                memory_mb=65536,
                **(labelled(random, each) if labels and seed % 3 else {}),
            )
            for each in range(workers)
        ]
    )
    if random.random() < 0.2:
        cluster.turn(Limit(scope="user", company="c0", user="*", name="max_cores", value=workers * 4))
    for _ in range(50):
        commands = []
        for _ in range(random.choice([1, 1, 3])):
            number += 1
            each = command(random, cluster.state, companies, sizes, number, gangs=gangs, labels=labels)
            if each is not None:
                commands.append(each)
        with suppress(CommandRejected):
            cluster.turn(*commands, after_s=random.choice([0, 1, 30]))


FOUND = {"plain": (411,), "gangs in a tree": (300, 413, 462)}
"""Clusters in which one went on, or was kept, although another one would have been made anew."""


@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("kind", ["plain", "gangs", "tree", "gangs in a tree"])
def test_a_filling_that_goes_on_is_the_one_that_begins_anew(
    kind: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fill, "EVERY", every)
    monkeypatch.setattr(fill, "MOST_MARKS", 20)
    compared = Compared(monkeypatch)
    for seed in (*range(6), *FOUND.get(kind, ())):
        play(seed, gangs="gangs" in kind, tree="tree" in kind)
    for how in ("gone on", "held"):
        assert compared.found[how] > 100, "now and then"
        assert ("gang" not in kind) == (compared.found[f"{how} with a gang"] == 0)
        assert ("tree" not in kind) == (compared.found[f"{how} in a tree"] == 0)


def test_fillings_go_on_where_apps_of_any_kind_and_workers_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "EVERY", 1)
    compared = Compared(monkeypatch)
    for seed in range(4):
        wavering(seed, mixed=True)
        settled(seed, large=seed % 2 > 0, backfill=seed > 1)
    assert compared.found["gone on"] > 20
    assert compared.found["held"] > 100


def test_fillings_go_on_where_demands_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the classes of all workers meet is known by other names then, if each meets as much as before."""
    monkeypatch.setattr(fill, "EVERY", 1)
    compared = Compared(monkeypatch)
    found: Counter[str] = Counter()
    alike, reclass = are_as_before, fill.Filling.reclass

    def looked(*args: Any) -> bool:
        same = alike(*args)
        found["alike" if same else "others"] += 1
        return same

    def renamed(run: fill.Filling, become: Any) -> None:
        found["with gpus"] += any(kind == "gpu" for room in run.rooms.number for kind, _ in room.others)
        reclass(run, become)

    monkeypatch.setattr(sharing, "are_as_before", looked)
    monkeypatch.setattr(fill.Filling, "reclass", renamed)
    for seed in range(20):
        play(seed, labels=True, gangs=seed % 5 == 0, tree=seed % 7 == 0)
    assert compared.found["gone on"] > 100
    assert compared.found["held"] > 100
    assert min(found[each] for each in ("alike", "others", "with gpus")) > 10, found


def test_what_is_kept_of_a_filling_is_what_would_be_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of plans, and of the apps above their entitlement."""
    found: Counter[str] = Counter()

    def compared(state: ClusterState) -> Entitlement:
        entitled = sharing.entitlement(state)
        if entitled.run is None:
            return entitled
        found["plans after one"] += entitled.planned is not None
        known = plan(state, entitled)
        entitled.planned = None
        made = plan(state, entitled)
        assert (known.contents, known.missed) == (made.contents, made.missed)
        assert (known.standing, known.short) == (made.standing, made.short)
        found["above after those before"] += entitled.above_before is not None
        above = [app.id for app in entitled.above(state)]
        everybody = [app.id for app in state.waiting.values() if not app.over and entitled.surplus(app) > 0]
        assert sorted(above) == sorted(everybody)
        found["above"] += len(above)
        return entitled

    monkeypatch.setattr(stage, "entitlement", compared)
    monkeypatch.setattr(fill, "EVERY", 1)
    for seed in range(16):
        play(seed, gangs=seed % 4 > 0, tree=seed % 4 > 2)
    for each in ("plans after one", "above after those before", "above"):
        assert found[each] > 100, each


@pytest.mark.parametrize("looks", [entitled_amid, sharing.entitlement])
def test_who_looks_on_amid_a_turn_leaves_it_the_filling_by_which_it_goes(
    looks: Callable[[ClusterState], Entitlement], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what is watched would decide otherwise than what nobody watches, as it does with the other one."""
    monkeypatch.setattr(fill, "EVERY", 1)
    found: Counter[str] = Counter()

    def before(state: ClusterState, event: Event) -> None:
        kept = state.filling.kept
        if kept is not None and kept.run is not None and isinstance(event, ExecutorAllocated | ExecutorRevoked):
            known = shown(kept)
            looks(state)
            found["kept" if shown(kept) == known else "spoilt"] += 1

    for seed in range(6):
        play(seed, tree=seed % 2 > 0, before=before)
    assert found["kept"] > 100
    assert (found["spoilt"] == 0) == (looks is entitled_amid)


def settled_anew(*, tree: bool) -> dict[str, int]:
    """Who is entitled to how much once who held the last of equal shares has lost it, and another one ranks before."""
    cluster = Cluster({"reclaim_patience_s": 5}, each_event=False, each_refusal=False)
    if tree:
        cluster.turn(AddDepartment(department="d"))
    for company in ("a", "b", "c") if tree else ("a", "c"):
        part = "2/3" if company == "a" and not tree else "1/3"
        cluster.turn(RegisterCompany(company=company, part=part, borrow=True))
    for company in ("a", "b") if tree else ():
        cluster.turn(MoveCompany(company=company, department="d"))
    cluster.turn(RegisterWorker(worker="w", node="n", host="h", cores=20, memory_mb=65536))
    for company, user, executors in (("a", "ann", 1), ("b" if tree else "a", "bob", 3), ("c", "cal", 3)):
        cluster.turn(
            SubmitApp(
                app=user,
                company=company,
                user=user,
                command=("true",),
                cores=12,
                tasks=100_000,
                executor_limit=executors,
                executor_cores=4,
                executor_memory_mb=256,
            )
        )
    cluster.turn(ScaleApp(app="ann", executors=3))
    before = sharing.entitlement(cluster.state)
    assert [before.leaves[app].units for app in ("ann", "bob", "cal")] == [1, 2, 2], "who holds it has it"
    for executor in sorted(cluster.state.apps["bob"].executors)[:2]:  # the first one was told to leave, for cal
        cluster.turn(EndedExecutor(executor=executor, reason="exited"))
    now = sharing.entitlement(cluster.state)
    return {app: now.leaves[app].units for app in ("ann", "bob", "cal")}


@pytest.mark.parametrize("tree", [False, True])
def test_equal_shares_are_settled_anew_where_a_filling_goes_on(*, tree: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "EVERY", 1)
    compared = Compared(monkeypatch)
    assert settled_anew(tree=tree) == {"ann": 2, "bob": 1, "cal": 2}
    assert compared.found["gone on"]


def entered_beside_a_cap() -> None:
    """An app enters that is handed as much at the same share as one that a cap keeps out, which then makes way."""
    cluster = Cluster({"reclaim_patience_s": 5}, each_event=False, each_refusal=False)
    cluster.turn(RegisterCompany(company="capped", part="1/5"), RegisterCompany(company="b", part="1/2", borrow=True))
    cluster.turn(RegisterWorker(worker="w", node="n", host="h", cores=32, memory_mb=65536))
    one_each = {
        "ann-4": "capped",
        "ann-2": "capped",
        "bob-4": "capped",
        "x-4": "b",
        "y-4": "b",
        "z-2": "b",
        "x-4-next": "b",
    }
    for app, company in one_each.items():
        user, cores = app.split("-")[:2]
        cluster.turn(
            SubmitApp(
                app=app,
                company=company,
                user=user,
                command=("true",),
                cores=int(cores),
                tasks=100_000,
                executor_cores=int(cores),
                executor_memory_mb=256,
            )
        )
    found = sharing.entitlement(cluster.state)
    assert found.leaves["bob-4"].cause == "cap"
    assert found.run is not None
    assert [app for app, _ in found.run.handed][-2:] == ["x-4-next", "ann-2"], "the one that was admitted comes first"


def test_a_filling_is_not_kept_where_a_cap_makes_the_place_of_an_equal_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = Compared(monkeypatch)
    entered_beside_a_cap()
    monkeypatch.setattr(fill.Filling, "heeds", lambda *_: False)
    with pytest.raises(AssertionError):
        entered_beside_a_cap()
    assert compared.found["held"]


def let_in_by_the_last_of_a_forgotten_app() -> None:
    """What an ended app still holds is claimed; with its end the app is forgotten, and a limit lets another one in."""
    cluster = Cluster({"reclaim_patience_s": 60, "retained_apps": 0}, each_event=False, each_refusal=False)
    cluster.turn(RegisterCompany(company="a"), RegisterCompany(company="b"))
    cluster.turn(RegisterWorker(worker="w", node="n", host="h", cores=16, memory_mb=65536))
    cluster.turn(Limit(scope="company", company="a", name="max_cores", value=8))
    for app, company, user, cores in (("first", "a", "ann", 4), ("full", "b", "bob", 40), ("next", "a", "cal", 8)):
        own: dict[str, Any] = {"executor_cores": 4, "executor_memory_mb": 256, "tasks": 100_000}
        cluster.turn(SubmitApp(app=app, company=company, user=user, command=("true",), cores=cores, **own))
    cluster.turn(Kill(app="first"))
    assert "next" not in sharing.entitlement(cluster.state).leaves
    cluster.turn(EndedExecutor(executor="first.0", reason="killed"))
    assert "first" not in cluster.state.apps
    assert sharing.entitlement(cluster.state).leaves["next"].units == 2


def test_a_limit_lets_in_where_who_made_way_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "EVERY", 1)
    Compared(monkeypatch)
    let_in_by_the_last_of_a_forgotten_app()


def looked_at_again() -> tuple[dict[str, fill.Leaf], dict[str, fill.Leaf]]:
    """What was looked at before and after an app of ann makes way for one of bob; others of its size wait behind."""
    cluster = Cluster({"reclaim_patience_s": 60}, each_event=False, each_refusal=False)
    cluster.turn(RegisterCompany(company="a"))
    cluster.turn(RegisterWorker(worker="w", node="n", host="h", cores=32, memory_mb=65536))
    wanted = {"bob": (4, 4, 4, 4, 2), "cal": (4, 4, 4, 2, 1), "dan": (4, 4, 4), "ann": (4, 4)}
    own: dict[str, Any] = {"company": "a", "command": ("true",), "tasks": 100_000, "executor_memory_mb": 256}
    cluster.turn(
        *[
            SubmitApp(app=f"{user}{number}", user=user, cores=cores, executor_cores=cores, **own)
            for user, sizes in wanted.items()
            for number, cores in enumerate(sizes)
        ]
    )
    cluster.turn(EndApp(app="dan0", reason="finished"), EndedExecutor(executor="dan0.0", reason="exited"))
    before = {**sharing.entitlement(cluster.state).leaves}
    assert {"bob2", "bob4", "cal2", "cal3", "cal4"} <= before.keys(), "one of each size that found no room"
    assert "bob3" not in before
    cluster.turn(EndApp(app="ann0", reason="finished"), EndedExecutor(executor="ann0.0", reason="exited"))
    return before, sharing.entitlement(cluster.state).leaves


def test_what_was_looked_at_is_not_made_anew_where_a_filling_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill, "EVERY", 1)
    compared = Compared(monkeypatch)
    before, now = looked_at_again()
    assert compared.found["gone on"]
    assert now["bob2"].units == 1
    assert "bob3" in now, "it is looked at, as the one before it found room"
    assert now["cal4"] is before["cal4"]


def test_a_planted_bug_of_what_was_looked_at_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def the_same(_going: GoingOn, before: list[tuple[fill.Leaf, bool]], *__: Any) -> Iterator[fill.Leaf]:
        for leaf, _ in before:
            leaf.units, leaf.cause = 0, ""
            yield leaf  # whether it drops out again or not

    monkeypatch.setattr(GoingOn, "_looked_at_before", the_same)
    monkeypatch.setattr(fill, "EVERY", 1)
    Compared(monkeypatch)
    with pytest.raises(AssertionError, match="turned away"):
        looked_at_again()


def settles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill.Filling, "was_tied", lambda *_: False)


def settles_only_in_the_company(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fill.CompanyNode, "branch", property(lambda company: company))


@pytest.mark.parametrize("plant", [settles_nothing, settles_only_in_the_company])
def test_a_planted_bug_of_going_on_is_found(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    monkeypatch.setattr(fill, "EVERY", 1)
    Compared(monkeypatch)
    with pytest.raises(AssertionError):
        settled_anew(tree=True)


def test_a_planted_bug_of_classes_that_others_take_the_place_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "are_as_before", lambda *_: True)
    monkeypatch.setattr(fill, "EVERY", 1)
    Compared(monkeypatch)
    with pytest.raises(AssertionError):
        play(20, labels=True, gangs=True)
