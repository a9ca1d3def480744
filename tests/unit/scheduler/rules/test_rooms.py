"""Where room is to come and where more can be gathered, kept as workers change (semantics E1, P8, Z6)."""

from __future__ import annotations

from random import Random
from typing import Any

from scheduler.model.resources import NOTHING, Resources
from scheduler.rules.entities import Allocation, Hold, Worker
from scheduler.rules.rooms import CHANGED_WORKERS, Rooms, could_gather

SIZES = [Resources(cores, 1024) for cores in (2, 6, 12)]


class Counted(dict[str, Worker]):
    """Workers, and how often one of them was looked at."""

    looked = 0

    def get(self, name: str, default: Any = None) -> Any:
        """Count it."""
        self.looked += 1
        return super().get(name, default)

    def values(self) -> Any:
        """Count all of them."""
        self.looked += len(self)
        return super().values()


def idle(name: str) -> Worker:
    offer = Resources(16, 65536)
    return Worker(name, "node", name, "", offer, offer)


def change(worker: Worker, chance: Random, number: int) -> None:
    """Grant, tell to stop, end, hold, release, drain or undrain."""
    running = [one for one in worker.executors.values() if one.status != "stopping"]
    match chance.randrange(6):
        case 0 | 1 if worker.free.cores >= 4:
            size = Resources(chance.choice((1, 4)), 512)
            worker.executors[f"e{number}"] = Allocation(f"e{number}", "app", worker.id, size)
            worker.free -= size
        case 2 if running:
            running[0].status = "stopping"
            worker.leaving += running[0].resources
        case 3 if worker.executors:
            gone = worker.executors.pop(next(iter(worker.executors)))
            worker.leaving -= gone.resources if gone.status == "stopping" else NOTHING
            worker.free += gone.resources
        case 4:
            worker.holds = {} if worker.holds else {number: Hold(number, worker.id, "app", SIZES[0], "hold", 0)}
        case _:
            worker.status = "draining" if worker.status == "alive" else "alive"


def by_looking_at_all(workers: dict[str, Worker], size: Resources, without: list[str]) -> tuple[bool, str | None]:
    live = [one for one in workers.values() if one.status == "alive" and one.id not in without]
    coming = any(one.leaving != NOTHING and one.to_come(None).covers(size) for one in live)
    found = [(-one.free.cores, -one.free.memory_mb, one.id) for one in live if could_gather(one, size)]
    return coming, min(found)[2] if found else None


def test_the_answers_are_those_of_a_look_at_every_worker() -> None:
    chance, workers = Random(11), {name: idle(name) for name in "abcdefgh"}
    rooms, answers = Rooms(workers), set()
    for number in range(1, 4000):
        worker = workers[chance.choice("abcdefgh")]
        change(worker, chance, number)
        rooms.touch(worker)
        if chance.randrange(3):
            size, without = chance.choice(SIZES), chance.sample("abcdefgh", chance.randrange(3))
            answer = rooms.will_have(size, without), rooms.first(size, without)
            assert answer == by_looking_at_all(workers, size, without)
            answers.add(answer)
        if not chance.randrange(5):
            rooms.forget_unasked()
    assert len(answers) > 12


def test_who_asks_in_vain_again_looks_at_what_changed_alone() -> None:
    workers = Counted({f"w{number}": idle(f"w{number}") for number in range(500)})
    rooms = Rooms(workers)
    for number, worker in enumerate(workers.values()):
        worker.executors["one"] = Allocation(f"e{number}", "app", worker.id, worker.offer)
        worker.free = NOTHING
    assert rooms.first(SIZES[0], ()) is None
    before = workers.looked
    rooms.forget_unasked()
    for worker in list(dict.values(workers))[:3]:
        rooms.touch(worker)
    assert rooms.first(SIZES[0], ()) is None
    assert workers.looked == before + 3


def test_workers_are_followed_only_while_somebody_asks() -> None:
    worker = idle("a")
    rooms, followed = Rooms({"a": worker}), []
    for asks in (False, True, False):
        if asks:
            assert rooms.first(SIZES[0], ()) == "a"
        rooms.touch(worker)
        followed.append(rooms.watching)
        rooms.forget_unasked()
        rooms.forget_unasked()
        assert not rooms.will_have(SIZES[0], ())
    assert followed == [False, True, False]


def test_where_nobody_asks_workers_that_changed_are_not_noted_without_end() -> None:
    workers = Counted()
    rooms, leaving = Rooms(workers), idle("a")
    leaving.leaving = SIZES[0]
    rooms.touch(leaving)
    for number in range(3 * CHANGED_WORKERS):
        rooms.touch(idle(f"w{number}"))
    assert workers.looked >= CHANGED_WORKERS
    assert rooms.known() == ({}, {})
