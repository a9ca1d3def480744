"""The filling: what everybody would hold if the live workers were empty and handed out anew (semantics H2, H3).

It knows neither workers by name nor apps that run: rooms are counted by their free amounts, and what is held counts
only where shares are equal. So the same demands, quotas, offers and places of drivers give the same result.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import heapify, heappop, heapreplace
from typing import Any, Literal, NamedTuple

from scheduler.model.quota import UNBOUGHT, Quota
from scheduler.model.resources import NOTHING, Amounts, Resources
from scheduler.rules.entities.labels import amounts_in
from scheduler.rules.share.families import Families, reclassed

Cause = Literal["", "room", "cap", "drivers"]
"""Why an app got less than its demand: no room is left for its unit, its company's cap, or its company's drivers."""

Shape = tuple[Resources, int]
"""What a unit has in all, and of how many executors it is if it is a gang's, else 0.

Of one shape with another it does not matter which comes first, but for units that have a driver.
"""


@dataclass(slots=True, eq=False)
class Leaf:
    """The demand of one app, and what the filling hands it."""

    app: str
    size: Resources
    """One executor, the smallest one if the scheduler sizes them, with its demand (semantics P9); so has its driver."""
    most: int
    """How many executors it can use."""
    least: int
    """How many of them come before what others of its user want beyond theirs."""
    driver: Resources = NOTHING
    """Its driver that waits for a worker; the first unit is that and an executor."""
    alone: bool = False
    """Whether the first unit is the driver alone, since no room could ever host both."""
    held: int = 0
    """How many executors it has that were not told to leave: equal shares stay with them (semantics H3)."""
    rank: tuple[int, ...] = ()
    """Whose turn it is where shares are equal and nobody holds the executor: the least first (semantics H3)."""
    units: int = 0
    """How many executors it is entitled to."""
    driven: bool = False
    """Whether it is entitled to its driver."""
    cause: Cause = ""
    beside: Resources = NOTHING
    """What its company had been handed when it dropped out."""
    gang: bool = False
    """Whether all its executors are one unit (semantics G8)."""

    @property
    def starts(self) -> bool:
        """Whether its next unit has its driver in it."""
        return self.driver is not NOTHING and not self.driven

    @property
    def several(self) -> bool:
        """Whether its next unit is something else than one executor."""
        return self.gang or (self.driver is not NOTHING and not self.driven)

    def wants(self, *, beyond: bool) -> bool:
        """Whether it can use a unit more, within its least number or `beyond` that."""
        if self.cause:
            return False
        return self.starts or self.units < (self.most if beyond else self.least)

    @property
    def unit(self) -> tuple[Resources, ...]:
        """What is handed out next, in one piece a worker, the largest first."""
        if not self.starts:
            return (self.size,) * self.most if self.gang else (self.size,)
        both = self.most and not self.alone
        return tuple(sorted((self.driver, self.size), reverse=True)) if both else (self.driver,)

    @property
    def amounts(self) -> Resources:
        """What is handed out next, in all."""
        size, most = self.size, self.most
        if not self.starts:
            if not (self.gang and size.others):
                return size * most if self.gang else size
            others = tuple([(kind, amount * most) for kind, amount in size.others])  # what it demands, too
            return Resources(size.cores * most, size.memory_mb * most, others)
        return self.driver + size if most and not self.alone else self.driver

    @property
    def shape(self) -> Shape:
        """The shape of what is handed out next."""
        return self.amounts, self.most if self.gang else 0

    @property
    def is_held(self) -> bool:
        """Whether it holds already what would be handed out next."""
        return self.units < self.held and not self.starts

    @property
    def among_equals(self) -> int:
        """Its place among units of equal amounts: of fewer executors first, then what it holds already (H3).

        A gang's unit never takes turns with one executor of as much: what is handed out would change with who holds it.
        """
        return 2 * self.most + (not self.is_held) if self.gang else not self.is_held


@dataclass(slots=True, eq=False)
class Node:
    """A user or a company, and what it has been handed so far."""

    name: str
    used: Resources = NOTHING


@dataclass(slots=True, eq=False)
class UserNode(Node):
    """A user with the demands of its apps: the admitted ones in the order of admission, then pending ones by F."""

    leaves: list[Leaf] = field(default_factory=list)
    later: Iterator[Leaf] = field(default_factory=lambda: iter(()))
    """Pending apps, asked for one at a time: most of them are never looked at."""
    begin: Resources = NOTHING
    """What its drivers that stand hold."""
    admitted: list[Leaf] = field(default_factory=list)
    """The demands of its admitted apps."""
    changed: int = 0
    """The number of the filling for which its admitted apps were looked at last."""
    noted: int = 0
    """How many of its apps the entitlement names."""
    number: int = 0
    """How many units it was handed."""
    runs: list[list[Any]] = field(default_factory=list)
    """The shapes of these, each as its amounts, how many there are in a row, and the executors of a gang."""
    marred: bool = False
    """Whether a demand of it dropped out or a driver was handed out: then the shapes do not tell how it stands."""
    rigid: bool = True
    """Whether all that its apps want they want at least: then its place tells how each stands."""
    _least: int = 0
    _rest: int = 0

    def next(self) -> Leaf | None:
        """Whose turn it is: first what apps want at least, then the rest (semantics H2)."""
        leaves = self.leaves
        while True:
            while self._least < len(leaves):
                leaf = leaves[self._least]
                if leaf.units < leaf.least and not leaf.cause:  # most of the time: save the call
                    return leaf
                if leaf.wants(beyond=False):
                    return leaf
                self._least += 1
            more = next(self.later, None)
            if more is None:
                break
            leaves.append(more)
            self.rigid = self.rigid and more.least == more.most
        if self.rigid:
            return None
        while self._rest < len(leaves):
            if leaves[self._rest].wants(beyond=True):
                return leaves[self._rest]
            self._rest += 1
        return None

    def note(self, amounts: Resources, executors: int) -> None:
        """Count a unit of that shape."""
        self.number += 1
        runs = self.runs
        if runs and runs[-1][2] == executors and (runs[-1][0] is amounts or runs[-1][0] == amounts):
            runs[-1][1] += 1
        else:
            runs.append([amounts, 1, executors])

    def shape_at(self, number: int) -> Shape | None:
        """The shape of the unit after the first so many that it was handed."""
        for amounts, there, executors in self.runs:
            if number < there:
                return amounts, executors
            number -= there
        return None

    @property
    def place(self) -> tuple[int, int]:
        """The app whose least number of executors is not handed out, by its place, and how many it has of them."""
        least = self._least
        return least, self.leaves[least].units if least < len(self.leaves) else 0

    def go_back(self, number: int, used: Resources, looked: int, place: tuple[int, int], later: Iterator[Leaf]) -> None:
        """Stand as it did after so many units, none of its apps having dropped out; it is `rigid`."""
        least, units = place
        del self.leaves[looked:]
        for leaf in self.leaves[least:]:
            leaf.units, leaf.driven, leaf.cause = 0, False, ""
        if least < len(self.leaves):
            self.leaves[least].units = units
        self._cut(number)
        self.later, self.used, self.marred = later, used, False
        self._least, self._rest = least, 0

    def before(self, place: tuple[int, int], number: int = 1) -> tuple[int, int]:
        """Its place before it had its last units, so many of them; it is `rigid`."""
        least, units = place
        for _ in range(number):
            while not units:
                least -= 1
                units = self.leaves[least].least
            units -= units if self.leaves[least].gang else 1
        return least, units

    def _cut(self, number: int) -> None:
        """Only the first so many units are handed out."""
        beyond, runs = self.number - number, self.runs
        while beyond > 0:
            taken = min(beyond, runs[-1][1])
            runs[-1][1] -= taken
            beyond -= taken
            if not runs[-1][1]:
                runs.pop()
        self.number = number

    def begin_again(self, later: Iterator[Leaf]) -> None:
        """Nothing is handed out yet, and no pending app was looked at."""
        self.leaves = self.admitted.copy()
        self.rigid = True
        for leaf in self.leaves:
            leaf.units, leaf.driven, leaf.cause = 0, False, ""
            self.rigid = self.rigid and leaf.least == leaf.most
        self.later, self.used, self.number, self.runs, self.marred = later, self.begin, 0, [], False
        self._least = self._rest = 0

    def stand_again(
        self, number: int, used: Resources, stood: list[tuple[str, int, bool, Cause]], later: Iterator[Leaf]
    ) -> bool:
        """Let each of its apps stand as it did there; whether they are looked at in the same order."""
        self._cut(number)
        runs = self.runs
        self.begin_again(later)
        self.runs, self.number, self.used, self.marred = runs, number, used, True
        for place, (app, units, driven, cause) in enumerate(stood):
            if place == len(self.leaves):
                more = next(self.later, None)
                if more is None:
                    return False
                self.leaves.append(more)
                self.rigid = self.rigid and more.least == more.most
            leaf = self.leaves[place]
            if leaf.app != app:
                return False
            leaf.units, leaf.driven, leaf.cause = units, driven, cause
        return True

    def hand_again(self, runs: list[list[Any]], number: int) -> int:
        """Hand it the first so many units of these shapes; how many, which ends where its next one is another."""
        left = number
        for amounts, there, executors in runs:
            in_a_row, each = min(there, left), executors or 1
            taken = 0
            while taken < in_a_row and (leaf := self.next()) is not None:
                if leaf.starts or leaf.amounts != amounts or executors != (leaf.most if leaf.gang else 0):
                    break
                more = (leaf.least if leaf.units < leaf.least else leaf.most) - leaf.units
                units = min(in_a_row - taken, more // each)
                leaf.units += units * each
                taken += units
            if taken:
                self.runs.append([amounts, taken, executors])
                self.used += amounts * taken
                left -= taken
            if taken < in_a_row or not left:
                break
        self.number = number - left
        return self.number


Key = tuple[int, Resources, int, tuple[int, ...]]
"""Whose turn it is, the least first: level of the share, next unit, its place among equal ones, and rank (H3)."""


@dataclass(slots=True, eq=False)
class CompanyNode(Node):
    """A company: its weight, its cap if it may not pass its quota, and its users."""

    quota: Quota = field(default_factory=lambda: Quota(NOTHING))
    capped: bool = False
    drivers: Resources = NOTHING
    """What its drivers hold, or are handed."""
    users: list[UserNode] = field(default_factory=list)
    selected: int = 0
    """When it was selected last, by log position, as the ranks of its pending apps have it."""
    changed: int = 0
    """The number of the filling for which the ties among its users were looked at last."""
    turn: Key = (-1, NOTHING, 1, ())
    """The place of the user that was handed something last."""
    above: GroupNode | None = None
    """The department that it is in, or the cluster; None where there are no departments."""

    @property
    def branch(self) -> Node:
        """What it is in right below the cluster: a department, or itself."""
        node: Node = self
        above = self.above
        while above is not None and above.above is not None:
            node, above = above, above.above
        return node


@dataclass(slots=True, eq=False)
class GroupNode(Node):
    """A department, or the cluster: its weight, its cap, what it keeps, and whose turn it is in it (semantics H12)."""

    quota: Quota = UNBOUGHT
    unnamed: Quota = UNBOUGHT
    """Its weight in kinds that its quota does not name."""
    companies: int = 0
    cap: Quota | None = None
    kept: Resources = NOTHING
    """What of its quota is lent to nobody."""
    above: GroupNode | None = None
    within: Resources = NOTHING
    """What is reserved in the departments in it."""
    reserved: Resources = NOTHING
    """What is kept for it and not used, by departments in it or beside these."""
    turns: list[tuple[Key, int, GroupNode | None]] = field(default_factory=list)
    """Of what is in it: whose turn it is, its number, and the department if it is one."""


class GroupTree:
    """The departments up to the cluster, with what is used in each of them; `total` is what the live workers offer."""

    def __init__(self, groups: Mapping[str, GroupNode], total: Resources) -> None:
        self.groups = groups
        self.root = GroupNode("")
        self.total = total
        self.keeps = bool({each.kept for each in groups.values()} - {NOTHING})
        for each in groups.values():
            if each.above is None:
                each.above = self.root
        self.upward = sorted(groups.values(), key=lambda each: -_depth(each))
        """The departments, those within others before these."""
        if self.keeps:
            self._reserve()

    def begin_again(self) -> None:
        """Nothing is used yet, and it is nobody's turn."""
        for each in (self.root, *self.upward):
            each.used = each.within = NOTHING
            each.turns.clear()
        if self.keeps:
            self._reserve()

    def _reserve(self) -> None:
        for each in self.upward:
            each.reserved = each.within.at_least(each.kept)
            above = each.above or self.root
            above.within += each.reserved
        self.root.reserved = self.root.within

    def of(self, department: str) -> GroupNode:
        """The department of that name; the cluster without one."""
        return self.groups[department] if department else self.root

    def passes(self, group: GroupNode, more: Resources) -> bool:
        """Whether so much more in that department passes no cap and leaves what others keep (semantics H12)."""
        node: GroupNode | None = group
        while node is not None:
            if node.cap is not None and not node.cap.covers(node.used, more):
                return False
            node = node.above
        return not self.keeps or self._leaves(group, more)

    def add(self, group: GroupNode, more: Resources) -> None:
        """So much more is used in that department; less if it is negative."""
        node: GroupNode | None = group
        change = NOTHING
        while node is not None:
            node.used += more
            if self.keeps:
                node.within += change
                reserved = node.within.at_least(node.kept - node.used).at_least(NOTHING)
                change, node.reserved = reserved - node.reserved, reserved
            node = node.above

    def in_the_way(self, group: GroupNode, other: GroupNode, more: Resources) -> bool:
        """Whether so much more in that department passes the cap of one in which the other one is, too."""
        theirs, node = set[str](), group
        while other.above is not None:
            theirs.add(other.name)
            other = other.above
        while node.above is not None:
            if node.name in theirs and node.cap is not None and not node.cap.covers(node.used, more):
                return True
            node = node.above
        return False

    def _leaves(self, group: GroupNode, more: Resources) -> bool:
        """Whether room for what is reserved is left beside so much more, or no less than before."""
        node: GroupNode | None = group
        change = NOTHING
        while node is not None:
            reserved = (node.within + change).at_least(node.kept - node.used - more).at_least(NOTHING)
            change, node = reserved - node.reserved, node.above
        left = (self.total - self.root.used - more).by_kind()
        before, changed = self.root.reserved.by_kind(), change.by_kind()
        for kind, amount in more.by_kind().items():
            yet = changed.get(kind, 0)
            if amount + yet > 0 and before.get(kind, 0) + yet > left.get(kind, 0):
                return False
        return True


def _depth(group: GroupNode) -> int:
    number, above = 0, group.above
    while above is not None:
        number, above = number + 1, above.above
    return number


LEVELS = 1 << 128
"""Levels of a whole quota: so many that shares are ordered exactly, since amounts are below 2^60."""
NOWHERE = LEVELS << 128
"""The level of whoever has nothing as a weight."""


_NO_FAMILIES = Families(())
"""Of plain rooms alone, of which most clusters are, and which never get further kinds."""


class Rooms:
    """What the live workers offer beside drivers, counted by amounts; units are taken from the room that fits best."""

    def __init__(self, rooms: Mapping[Resources, int]) -> None:
        self.number = {room: number for room, number in rooms.items() if number}
        self._plain = sorted(room for room in self.number if not room.others)
        further = [room for room in self.number if room.others]
        self._families = Families(further) if further else _NO_FAMILIES

    def best(self, size: Resources) -> Resources | None:
        """The room with the fewest kinds besides those of `size`, then the least left; None if it fits nowhere."""
        if not size.others:
            plain = self._plain
            for index in range(bisect_left(plain, Resources(size.cores, size.memory_mb)), len(plain)):
                if plain[index].memory_mb >= size.memory_mb:
                    return plain[index]
        return self._families.best(size)

    def take(self, size: Resources) -> Resources | None:
        """Hand out that much on one worker; the room that it had, None if it fits nowhere."""
        room = self.best(size)
        if room is not None:
            self._count(room, -1)
            self._count(room - size, 1)
        return room

    def take_several(self, size: Resources, most: int) -> tuple[Resources, int] | None:
        """Hand out that much up to so many times on one worker, as `take` would; the room that it had, and how often.

        Of sizes with further kinds or demands one at a time. None if it fits nowhere.
        """
        if size.others:
            found = self.take(size)
            return None if found is None else (found, 1)
        room = self.best(size)
        if room is None:
            return None
        several = min(most, room.holds(size) if size.memory_mb else room.cores // size.cores)
        self._count(room, -1)
        self._count(room - size * several, 1)
        return room, several

    def take_many(self, size: Resources, number: int) -> bool:
        """Hand out that much so many times, as `take` would; whether there is room. If not, some of it is taken."""
        while number:
            room = self.best(size)
            if room is None:
                return False
            each = room.holds(size) if size.memory_mb else room.cores // size.cores
            rooms = max(1, min(number // each, self.number[room]))
            taken = min(each, number)
            self._count(room, -rooms)
            self._count(room - size * taken, rooms)
            number -= rooms * taken
        return True

    def take_all(self, sizes: Iterable[Resources], *, back: bool = False) -> bool:
        """Hand out all of them, each on one worker, or none; `back`: none, but see whether all could be."""
        taken: list[tuple[Resources, Resources]] = []
        whole = True
        for size in sizes:
            room = self.take(size)
            if room is None:
                whole = False
                break
            taken.append((room, room - size))
        if back or not whole:
            for one, rest in reversed(taken):
                self._count(rest, -1)
                self._count(one, 1)
        return whole

    def _count(self, room: Resources, change: int) -> None:
        number = self.number.get(room, 0)
        if number and number + change:
            self.number[room] = number + change
            return
        if number:
            del self.number[room]
        else:
            self.number[room] = change
        if room.others:
            self._families.change(room, there=not number)
        elif number:
            del self._plain[bisect_left(self._plain, room)]
        else:
            insort(self._plain, room)


EVERY = 64
"""After so many units, and as many again for each 64 users, it is marked how far a filling is."""
OFTEN = 8
"""So much more often it is marked just before a size fitted no room any more in the filling before."""
MOST_MARKS = 48
DENSE = 12
"""So many of the last marks stay, and of those before one of two as often as there are too many."""

Stood = tuple[int, Resources, Shape | None, int, tuple[int, int], list[tuple[str, int, bool, Cause]] | None]
"""Of a user: units, what it has, its next unit, the apps looked at, its place; how each app stood if it is marred."""


@dataclass(slots=True, eq=False)
class Mark:
    """How far a filling was when all of lower shares was handed out, and nothing of higher ones."""

    filling: int
    """The number of the filling that made it."""
    rooms: dict[Resources, int]
    full: set[Resources]
    delicate: set[Shape]
    marred: set[Node]
    """The branches with a user that is `marred`: there the order of equal shares matters."""
    handed: int
    dropped: int
    companies: list[tuple[Resources, Resources, Key]]
    """Of each company: what it was handed, what its drivers hold, and whose turn it was last."""
    users: list[list[Stood]]


Handed = tuple[str, tuple[Resources, ...]]
"""App, and what the unit that it was handed is made of."""


First = tuple[CompanyNode, UserNode, Leaf, int]
"""Who has a slot: its company and user, its demand, and how many executors it is handed before everybody else."""


class WhoseTurn(NamedTuple):
    """Whose turn it is."""

    companies: list[tuple[Key, int]]
    users: list[list[tuple[Key, int]]]
    """Of each company."""
    leaves: list[list[Leaf | None]]
    """The next demand of each user of each company."""


class Filling:
    """One filling; `run` hands out units until nobody can use another one."""

    def __init__(
        self,
        rooms: Mapping[Resources, int],
        companies: Iterable[CompanyNode],
        total: Resources,
        tree: GroupTree | None = None,
    ) -> None:
        self.rooms = Rooms(rooms)
        self.companies = list(companies)
        self.total = total
        self.tree = tree
        """The departments, if there are any."""
        self.number = 0
        """How many before it went on one from the other."""
        self._of_users = Quota(total)
        self._unnamed = Quota(total, max(1, len(self.companies)))
        self.handed: list[Handed] = []
        """What was handed out, in the order of the filling; the apps are those of the filling that was gone on with."""
        self.dropped: list[Leaf] = []
        """The demands that dropped out, in that order."""
        self.marks: list[Mark] = []
        """How far it was at times, so that the next filling can go on from there."""
        self._full: set[Resources] = set()
        """Sizes that fit no room any more: rooms only become less."""
        self._delicate: set[Shape] = set()
        """Shapes of which it matters who comes first: of units with a driver, of gangs that found no room, and of what
        a cap kept out, since a smaller unit of its company may come next.
        """
        self._plain = True
        """Whether shares only rose: no unit had further kinds, or no memory, and nobody was handed anything first.

        Nor did anybody have nothing as a weight, or was refused what others keep.
        """
        self._unsettled: dict[Node, Counter[Shape]] = {}
        """Branch -> the units that it has and that are handed out once more in it, in the order of now."""
        self.is_settled = True
        """Whether those could be."""
        self._last_mark = 0
        self._full_at: list[int] = []
        """How much was handed out each time a size fitted no room any more."""
        self._expected: list[int] = []
        """How much the filling before had handed out then, of those that are to come, the last one first."""
        self._every = EVERY * max(1, sum([len(company.users) for company in self.companies]) // 64)

    def run(self, first: Iterable[First] = ()) -> None:
        """Repeat: the company with the least share, in it the user with the least, its next unit (semantics H2).

        Before everybody come those `first` who have slots (semantics H10).
        """
        # 1. Who has a slot is handed its units before everybody else.
        for whose, of, demand, units in first:
            self._plain = False
            while not demand.cause and (demand.starts or demand.units < min(units, demand.most)):
                self._hand(whose, of, demand)
        # 2. Companies stand in a heap by their shares, and the users of each in one of their own.
        turns = self._turns()
        queue = turns.companies
        if self.tree is not None:
            self._run_down(self.tree, turns)
            return
        # 3. Whoever is first is handed one unit and stands by its new share; who wants no more leaves the heap.
        level = -1
        while queue:
            key, number = queue[0]
            if key[0] != level:
                self._mark_at(key[0], turns)
                level = key[0]
            company, users = self.companies[number], turns.users[number]
            self._hand_to(company, users, turns.leaves[number])
            if users:
                heapreplace(queue, (self._company_key(company, users[0][0]), number))
            else:
                heappop(queue)

    def _hand_to(
        self,
        company: CompanyNode,
        users: list[tuple[Key, int]],
        leaves: list[Leaf | None],
        again: Counter[Shape] | None = None,
    ) -> None:
        """The next unit of the company, to its user with the least share, whose turn comes again."""
        turn, place = users[0]
        user, leaf = company.users[place], leaves[place]
        if leaf is not None:
            company.turn = turn
            if again is None:
                self._hand(company, user, leaf)
            else:
                self._hand_again(company, user, leaf, again)
            leaf = leaves[place] = user.next()
        if leaf is not None:
            heapreplace(users, (self._user_key(user, leaf), place))
        else:
            heappop(users)

    def _run_down(self, tree: GroupTree, turns: WhoseTurn) -> None:
        """As `run`, from the cluster down to the child with the least share (semantics H12)."""
        # 1. From the bottom up, each department gets a heap of what is in it, and a share.
        for key, number in turns.companies:
            above = self.companies[number].above or tree.root
            above.turns.append((key, number, None))
        number = len(self.companies)
        for group in tree.upward:
            number += 1
            if group.turns:
                heapify(group.turns)
                self._settle(group, turns, number)
            if group.turns:
                above = group.above or tree.root
                above.turns.append((self._group_key(group), number, group))
        # 2. From the root down, unit by unit, whatever has the least share on each level.
        root = tree.root
        heapify(root.turns)
        level = -1
        while root.turns:
            key = root.turns[0][0]
            if key[0] != level:
                self._mark_at(key[0], turns)
                level = key[0]
            self._hand_down(root, turns)

    def _hand_down(self, group: GroupNode, turns: WhoseTurn, again: Counter[Shape] | None = None) -> None:
        """The next unit in the department, whose parts then have their turns again."""
        path, node = list[tuple[GroupNode, int, GroupNode | None]](), group
        while True:
            key, number, child = node.turns[0]
            if key[0] >= NOWHERE:
                self._plain = False
            path.append((node, number, child))
            if child is None:
                break
            node = child
        company, users = self.companies[number], turns.users[number]
        self._hand_to(company, users, turns.leaves[number], again)
        for node, number, child in reversed(path):
            if not (users if child is None else child.turns):
                heappop(node.turns)
                continue
            key = self._company_key(company, users[0][0]) if child is None else self._group_key(child)
            heapreplace(node.turns, (key, number, child))

    def _turns(self) -> WhoseTurn:
        """Whose turn it is, once what was handed out before is settled."""
        turns = WhoseTurn([], [], [])
        for number, company in enumerate(self.companies):
            leaves = [user.next() for user in company.users]
            users = [
                (self._user_key(company.users[place], leaf), place)
                for place, leaf in enumerate(leaves)
                if leaf is not None
            ]
            heapify(users)
            turns.users.append(users)
            turns.leaves.append(leaves)
            self._settle(company, turns, number)
            if users:
                turns.companies.append((self._company_key(company, users[0][0]), number))
        heapify(turns.companies)
        return turns

    def _settle(self, branch: Node, turns: WhoseTurn, number: int) -> None:
        """Hand out once more what the branch has of equal shares: to whoever comes first in it by now (H3)."""
        again = self._unsettled.get(branch)
        for _ in range(0 if again is None else again.total()):
            if isinstance(branch, GroupNode) and branch.turns:
                self._hand_down(branch, turns, again)
            elif isinstance(branch, CompanyNode) and turns.users[number]:
                self._hand_to(branch, turns.users[number], turns.leaves[number], again)
            else:
                self.is_settled = False

    def _hand_again(self, company: CompanyNode, user: UserNode, leaf: Leaf, again: Counter[Shape]) -> None:
        """A unit for which room is taken already, since one of its shape was handed out there."""
        shape = amounts, executors = leaf.shape
        again[shape] -= 1
        capped = company.capped and not company.quota.covers(company.used, amounts)
        if leaf.starts or again[shape] < 0 or capped or not self._passes(company, amounts):
            self.is_settled = False
        leaf.units += executors or 1
        user.used += amounts
        user.note(amounts, executors)
        company.used += amounts
        if company.above is not None and self.tree is not None:
            self.tree.add(company.above, amounts)

    def _mark_at(self, level: int, turns: WhoseTurn) -> None:
        """Note how far it is, now and then, as what comes next has a share of that level."""
        handed, often, expected = len(self.handed), self._every // OFTEN, self._expected
        while expected and expected[-1] < handed:
            expected.pop()
        every = often if expected and expected[-1] <= handed + often else self._every
        if handed >= self._last_mark + every and self._plain and level < NOWHERE:
            self._mark(turns.leaves)

    def _mark(self, following: list[list[Leaf | None]]) -> None:
        """Note how far it is: the company with the least share has a larger one than all that was handed out before."""
        users: list[list[Stood]] = []
        marred: set[Node] = set()
        for company, leaves in zip(self.companies, following, strict=True):
            theirs: list[Stood] = []
            for user, leaf in zip(company.users, leaves, strict=True):
                each = None
                if user.marred:
                    marred.add(company.branch)
                    each = [(one.app, one.units, one.driven, one.cause) for one in user.leaves]
                after = None if leaf is None else leaf.shape
                theirs.append((user.number, user.used, after, len(user.leaves), user.place, each))
            users.append(theirs)
        self.marks.append(
            Mark(
                filling=self.number,
                rooms=self.rooms.number.copy(),
                full=self._full.copy(),
                delicate=self._delicate.copy(),
                marred=marred,
                handed=len(self.handed),
                dropped=len(self.dropped),
                companies=[(company.used, company.drivers, company.turn) for company in self.companies],
                users=users,
            )
        )
        self._last_mark = len(self.handed)
        if len(self.marks) > MOST_MARKS:
            del self.marks[: MOST_MARKS - DENSE : 2]

    def go_on_from(
        self, mark: Mark, before: Filling, settled: list[int], unsettled: dict[Node, Counter[Shape]]
    ) -> None:
        """Be as far as the filling before was there; its companies and users are as far already.

        But for the last units of equal shares in the branches that are `unsettled`. Among users of the companies
        `settled` others may have them now than at the marks within the same shares.
        """
        self._full, self._delicate = mark.full.copy(), mark.delicate.copy()
        self.handed, self.dropped = before.handed, before.dropped
        self._expected = before._full_at[::-1]
        self._full_at = [number for number in before._full_at if number < mark.handed]
        del self.handed[mark.handed :], self.dropped[mark.dropped :]
        marks = self.marks = before.marks[: before.marks.index(mark)]
        while marks and any(marks[-1].companies[each][2][:2] == mark.companies[each][2][:2] for each in settled):
            marks.pop()
        self._last_mark, self.number = mark.handed - self._every, before.number + 1
        self._unsettled = unsettled
        if self.tree is not None:
            self.tree.begin_again()
            for company in self.companies:
                if company.above is not None and company.used is not NOTHING:
                    self.tree.add(company.above, company.used)

    def reclass(self, become: Mapping[Amounts, Amounts]) -> None:
        """The rooms of these classes are of others, which changes nothing but their names (semantics P9)."""
        self.rooms = Rooms(reclassed(self.rooms.number, become))
        for mark in self.marks:
            mark.rooms = reclassed(mark.rooms, become)

    def was_tied(self, turn: Key, last: Shape, used: Resources) -> bool:
        """Whether a unit of that shape, the last one of what a user has, was one of those of equal shares (H3).

        `turn`: the place of the user of its company that was handed something last.
        """
        level, amounts, among, _ = turn
        if last != (amounts, among // 2):
            return False
        return level_of(self._of_users, self._of_users, used - amounts, ()) == level

    def heeds(self, leaf: Leaf) -> bool:
        """Whether it matters at which place among equal shares the demand was handed its units."""
        return leaf.driver is not NOTHING or leaf.shape in self._delicate

    def _hand(self, company: CompanyNode, user: UserNode, leaf: Leaf) -> None:
        size = leaf.size
        if leaf.several:
            self._hand_several(company, user, leaf)
        elif size in self._full:
            leaf.cause = "room"
        elif (company.capped and not company.quota.covers(company.used, size)) or not self._passes(company, size):
            leaf.cause = "cap"
            self._delicate.add(leaf.shape)
        elif self.rooms.take(size) is None:
            leaf.cause = "room"
            self._found_full(size)
        else:
            self.handed.append((leaf.app, (size,)))
            user.used += size
            company.used += size
            if company.above is not None and self.tree is not None:
                self.tree.add(company.above, size)
            leaf.units += 1
            runs = user.runs
            if runs and runs[-1][0] is size:  # a gang's amounts are an object of their own
                runs[-1][1] += 1
                user.number += 1
            else:
                user.note(size, 0)
                self._plain = self._plain and size.memory_mb > 0 and not amounts_in(size).others
        if leaf.cause:
            user.marred = True
            leaf.beside = company.used
            self.dropped.append(leaf)

    def _hand_several(self, company: CompanyNode, user: UserNode, leaf: Leaf) -> None:
        """A unit that has a driver in it, or all executors of a gang."""
        unit, amounts, starts = leaf.unit, leaf.amounts, leaf.starts
        if not amounts.memory_mb or amounts_in(amounts).others:
            self._plain = False
        leaf.cause = self._taken(company, leaf, unit, amounts)
        if starts or leaf.cause:
            self._delicate.add(leaf.shape)
        if starts:
            user.marred = True
        if leaf.cause:
            return
        self.handed.append((leaf.app, unit))
        user.used += amounts
        company.used += amounts
        if company.above is not None and self.tree is not None:
            self.tree.add(company.above, amounts)
        if starts:
            company.drivers += leaf.driver
            leaf.driven = True
        else:
            user.note(amounts, leaf.most)
        leaf.units += len(unit) - starts

    def _taken(self, company: CompanyNode, leaf: Leaf, unit: tuple[Resources, ...], amounts: Resources) -> Cause:
        """Take room for all of a unit; why not, if that is so."""
        if not self._full.isdisjoint(unit):
            return "room"
        if (company.capped and not company.quota.covers(company.used, amounts)) or not self._passes(company, amounts):
            return "cap"
        if leaf.starts and not may_start(company.quota, company.drivers, leaf.driver):
            return "drivers"
        if self.rooms.take_all(unit):
            return ""
        if len(unit) == 1:
            self._found_full(unit[0])
        return "room"

    def _found_full(self, size: Resources) -> None:
        self._full.add(size)
        self._full_at.append(len(self.handed))

    def _passes(self, company: CompanyNode, more: Resources) -> bool:
        """Whether so much more passes no cap above the company (semantics H12)."""
        if company.above is None or self.tree is None or self.tree.passes(company.above, more):
            return True
        self._plain = self._plain and not self.tree.keeps
        return False

    def _group_key(self, group: GroupNode) -> Key:
        """Whose turn it is among what is in one department, by the one who comes first in this one."""
        _, amounts, free, rank = group.turns[0][0]
        return level_of(group.quota, group.unnamed, group.used, amounts.others), amounts, free, rank

    def _user_key(self, user: UserNode, leaf: Leaf) -> Key:
        """Whose turn it is among the users of a company, `leaf` being next of this one (semantics H3)."""
        amounts = leaf.amounts
        level = level_of(self._of_users, self._of_users, user.used, amounts.others)
        return level, amounts, leaf.among_equals, leaf.rank

    def _company_key(self, company: CompanyNode, first: Key) -> Key:
        """Whose turn it is among companies, `first` being that of its user who comes first."""
        _, amounts, among, rank = first
        return level_of(company.quota, self._unnamed, company.used, amounts.others), amounts, among, rank


def may_start(quota: Quota, drivers: Resources, driver: Resources) -> bool:
    """Whether a company whose drivers hold that much may start another: at most half of its quota, or none (H5)."""
    if drivers == NOTHING:
        return True
    return quota.covers(NOTHING, (drivers + driver) * 2)


def level_of(quota: Quota, unnamed: Quota, used: Resources, others: Iterable[tuple[str, int]]) -> int:
    """The share that is used of a quota, in `LEVELS`: the largest ratio over cores, memory and those kinds (H1).

    A kind that the quota does not name has the weight of `unnamed`. Nothing as a weight makes the largest share.
    """
    of, times = quota.amount, quota.denominator
    if not (of.cores and of.memory_mb):
        return NOWHERE
    cores, memory_mb = used.cores * times, used.memory_mb * times
    if cores * of.memory_mb < memory_mb * of.cores:
        level = memory_mb * LEVELS // of.memory_mb
    else:
        level = cores * LEVELS // of.cores
    for kind, amount in others:
        if not amount:  # it is a demand (P9)
            continue
        by = quota if quota.named is None or kind in quota.named else unnamed
        whole = by.amount.amount(kind)
        level = max(level, used.amount(kind) * by.denominator * LEVELS // whole if whole else NOWHERE)
    return level
