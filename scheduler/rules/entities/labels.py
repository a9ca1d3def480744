"""Which workers apps may use by their labels, and by their windows (semantics P9, W14).

What an app demands of the labels of its workers is one text, "" if nothing. A demand is *in use* while an app has it
that has not ended; only such demands are compared with workers. The demands that a worker meets are its *class*, which
stands among the kinds of what it has free, as a kind of which nothing is ever granted. A size that is sought names
the demand that must be met in the same way. So whatever counts or compares rooms by their amounts tells classes apart.

The windows that are planned for a worker are part of its class. A demand may have a *course* behind it: the windows
whose workers are left out, and those whose workers come last.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from scheduler.model.events import AppRegistered
from scheduler.model.resources import Amounts, Resources

MARK = "~"
"""With what the kind begins that names a class or a demand; it comes after all kinds of resources."""
MOST_DEMANDS, MOST_OF_COMPANY, OF_ONE_APP = 256, 64, 2
_BETWEEN_TERMS, _BETWEEN_DEMANDS = "\t", "\n"
_WINDOWS, _LAST = "\v", "\f"
"""With what the names of windows begin in a class, and in a demand those that are left out; then those that come last.
Names that follow each other are parted by it, too."""
_REQUIRED, _AVOIDED, _TOLERATED = "+", "-", "!"


class Term(NamedTuple):
    """What a demand says of one label or taint: how, its key, and the value, None = any."""

    how: str
    key: str
    value: str | None

    def excludes(self, labels: Mapping[str, str]) -> bool:
        """Whether a worker with these labels is excluded by it."""
        met = self.key in labels if self.value is None else labels.get(self.key) == self.value
        return met if self.how == _AVOIDED else not met and self.how == _REQUIRED

    def __str__(self) -> str:
        """As an option of `fairlog submit`."""
        option = {_REQUIRED: "--require", _AVOIDED: "--avoid", _TOLERATED: "--tolerate"}[self.how]
        return f"{option} {self.key}" if self.value is None else f"{option} {self.key}={self.value}"


def demands_of(spec: AppRegistered) -> tuple[str, ...]:
    """The demands that are in use while the app has not ended."""
    return tuple([demand for demand in dict.fromkeys(tried_by(spec)) if demand])


def tried_by(spec: AppRegistered) -> tuple[str, ...]:
    """The demands of the app in the order in which workers are sought: its preferred labels among them, then not."""
    if not (spec.require or spec.avoid or spec.tolerate or spec.prefer_labels):
        return ("",)
    demand = demand_of(spec.require, spec.avoid, spec.tolerate)
    if not spec.prefer_labels:
        return (demand,)
    return demand_of((*spec.require, *spec.prefer_labels), spec.avoid, spec.tolerate), demand


def demand_of(require: Iterable[str], avoid: Iterable[str], tolerate: Iterable[str]) -> str:
    """The text of the demand; "" if it demands and tolerates nothing."""
    terms = [_REQUIRED + term for term in require] + [_AVOIDED + term for term in avoid]
    return _BETWEEN_TERMS.join(sorted({*terms, *[_TOLERATED + taint for taint in tolerate]}))


@lru_cache(4096)
def terms_of(demand: str) -> tuple[Term, ...]:
    """What the demand says, term by term."""
    found = []
    for text in demand.split(_BETWEEN_TERMS) if demand else ():
        key, is_, value = text[1:].partition("=")
        found.append(Term(text[0], key, value if is_ else None))
    return tuple(found)


def by_option(demand: str) -> dict[str, list[str]]:
    """The terms of the demand as they were given: `require`, `avoid` and `tolerate`."""
    found: dict[str, list[str]] = {"require": [], "avoid": [], "tolerate": []}
    for how, key, value in terms_of(demand):
        name = {_REQUIRED: "require", _AVOIDED: "avoid", _TOLERATED: "tolerate"}[how]
        found[name].append(key if value is None else f"{key}={value}")
    return found


def met_by(demand: str, labels: Mapping[str, str], taints: Collection[str]) -> bool:
    """Whether a worker with these labels and taints meets the demand (semantics P9)."""
    terms = terms_of(demand)
    if any(term.excludes(labels) for term in terms):
        return False
    return not taints or {*taints} <= {term.key for term in terms if term.how == _TOLERATED}


def excluded_by(
    demand: str, workers: Iterable[tuple[Mapping[str, str], Collection[str], int]]
) -> Iterator[tuple[str, int]]:
    """Each term as an option, and each taint that is not tolerated, with how many of these workers it excludes.

    `workers`: labels, taints, and how many workers have these.
    """
    known, terms = list(workers), terms_of(demand)
    for term in terms:
        if excluded := sum([number for labels, _, number in known if term.excludes(labels)]):
            yield str(term), excluded
    tolerated = {term.key for term in terms if term.how == _TOLERATED}
    for taint in sorted({taint for _, taints, _ in known for taint in taints} - tolerated):
        yield f"taint {taint}", sum([number for _, taints, number in known if taint in taints])


def sought(size: Resources, demand: str) -> Resources:
    """The size with the demand that a worker must meet."""
    return Resources(size.cores, size.memory_mb, (*size.others, (MARK + demand, 0))) if demand else size


def demand_in(size: Resources) -> str:
    """The demand that a size names that is sought."""
    others = size.others
    return others[-1][0][1:] if others and others[-1][0][0] == MARK else ""


def with_course(demand: str, without: Iterable[str], last: Iterable[str]) -> str:
    """The demand, to be met on no worker with a window `without`; those `last` come last, the first of them sooner."""
    return demand + "".join([_WINDOWS + name for name in without]) + "".join([_LAST + name for name in last])


class _WithWindows(NamedTuple):
    demand: str
    without: frozenset[str]
    last: dict[str, int]


@lru_cache(4096)
def _course(demand: str) -> _WithWindows:
    before, *last = demand.split(_LAST)
    plain, *without = before.split(_WINDOWS)
    return _WithWindows(plain, frozenset(without), {name: number for number, name in enumerate(last, 1)})


def has_last(size: Resources) -> bool:
    """Whether workers come last for the size because of their windows."""
    return _LAST in demand_in(size)


def lateness(last: str, size: Resources) -> int:
    """How late a worker comes for its windows, 0 = it has none that matters; `last` of its kinds is its class."""
    later = _course(demand_in(size)).last
    if not (later and last and last[0] == MARK):
        return 0
    return max([later.get(name, 0) for name in _windows(last)], default=0)


def without_windows(room: Resources) -> Resources:
    """The room, of the class that the worker has by its labels alone."""
    others = room.others
    if not (others and others[-1][0][0] == MARK and _WINDOWS in others[-1][0]):
        return room
    plain = _named_or_none(others[-1][0].partition(_WINDOWS)[0][1:])
    return Resources(room.cores, room.memory_mb, (*others[:-1], *plain))


def in_place(moves: Moves) -> dict[Amounts, Amounts] | None:
    """Class by labels alone -> the one that takes its place; None if another one does for some of its workers."""
    found: dict[Amounts, Amounts] = {}
    for known, become in moves.items():
        for one in become:
            new = _by_labels(one)
            if found.setdefault(_by_labels(known), new) != new:
                return None
    return found


def _by_labels(met: Amounts) -> Amounts:
    return without_windows(Resources(others=met)).others


def amounts_in(size: Resources) -> Resources:
    """The size without the demand."""
    others = size.others
    if others and others[-1][0][0] == MARK:
        return Resources(size.cores, size.memory_mb, others[:-1])
    return size


def class_of(
    demands: Iterable[str], labels: Mapping[str, str], taints: Collection[str], windows: Iterable[str] = ()
) -> Amounts:
    """The class of a worker with these windows: which of these demands it meets, "" among them."""
    return _class(_text({demand for demand in ("", *demands) if met_by(demand, labels, taints)}), windows)


def _text(met: set[str]) -> str:
    return _BETWEEN_DEMANDS.join(sorted(met)) if met else MARK


def _class(text: str, windows: Iterable[str]) -> Amounts:
    return _named_or_none(text + "".join([_WINDOWS + name for name in windows]))


def _named_or_none(text: str) -> Amounts:
    """The class of that text; none for workers without windows that meet "" alone, as all do where nobody demands."""
    return _named(text) if text else ()


@lru_cache(4096)
def _named(text: str) -> Amounts:
    """One object for all that are equal to it: they are compared often."""
    return ((MARK + text, 1),)


@lru_cache(4096)
def _members(kind: str) -> frozenset[str]:
    """The demands that a class of that kind meets."""
    text = kind[1:].partition(_WINDOWS)[0]
    return frozenset() if text == MARK else frozenset(text.split(_BETWEEN_DEMANDS))


@lru_cache(4096)
def _windows(kind: str) -> frozenset[str]:
    """The windows that are planned for a class of that kind."""
    return frozenset(kind.split(_WINDOWS)[1:])


def may_use(room: Resources, size: Resources) -> bool:
    """Whether a worker with that room meets the demand of the size."""
    others = room.others
    return meets(others[-1][0] if others else "", size)


def meets(last: str, size: Resources) -> bool:
    """Whether a worker meets the demand of the size; its class, if it has one, is the `last` of its kinds."""
    others = size.others
    demand = others[-1][0][1:] if others and others[-1][0][0] == MARK else ""
    is_class = last != "" and last[0] == MARK
    if _WINDOWS in demand or _LAST in demand:
        demand, without, _ = _course(demand)
        if is_class and not without.isdisjoint(_windows(last)):
            return False
    return demand in _members(last) if is_class else not demand


def spare_demands(offered: Sequence[str], size: Resources) -> tuple[Sequence[str], int]:
    """The kinds without the class among them, and how many demands besides that of the size the class meets (P9)."""
    if not offered or offered[-1][0] != MARK:
        return offered, 0
    return offered[:-1], len(_members(offered[-1]) - {_course(demand_in(size)).demand})


def class_in(room: Resources) -> str:
    """The class of a worker with that room, as the kind that names it; "" if it has none."""
    others = room.others
    return others[-1][0] if others and others[-1][0][0] == MARK else ""


def met_in(room: Resources) -> Amounts:
    """The class of a worker with that room."""
    return room.others[-1:] if class_in(room) else ()


def met_as(room: Resources, met: Amounts) -> Resources:
    """The room, of that class."""
    amounts = amounts_in(room)
    return Resources(amounts.cores, amounts.memory_mb, (*amounts.others, *met)) if met else amounts


def demands_besides(kind: str) -> int:
    """How many demands a class of that kind meets besides one that it does; -1 if it meets none."""
    return len(_members(kind)) - 1 if kind else 0


class Classes:
    """Some classes, each of them one bit, the first one the lowest."""

    def __init__(self, kinds: tuple[str, ...]) -> None:
        self.bit = {kind: 1 << number for number, kind in enumerate(kinds)}
        self.beside = {kind: demands_besides(kind) for kind in kinds}
        """How many demands the class meets besides one that it does."""
        self._named: dict[int, Amounts] = {bit: ((kind, 1),) if kind else () for kind, bit in self.bit.items()}
        self._meeting: dict[str, int] = {}

    def meeting(self, size: Resources) -> int:
        """The classes that meet the demand of the size, as bits."""
        demand = demand_in(size)
        found = self._meeting.get(demand)
        if found is None:
            found = self._meeting[demand] = sum([bit for kind, bit in self.bit.items() if meets(kind, size)])
        return found

    def room(self, amounts: Resources, bit: int) -> Resources:
        """These amounts of a worker of that class."""
        return Resources(amounts.cores, amounts.memory_mb, (*amounts.others, *self._named[bit]))


@lru_cache(8)
def classes_of(kinds: tuple[str, ...]) -> Classes:
    """These classes: rooms of the same ones are made anew in each turn, and what meets what need not be."""
    return Classes(kinds)


@dataclass(slots=True, eq=False)
class Marks:
    """By what live workers are told apart: those of equal labels, taints and windows share one of these."""

    labels: Mapping[str, str]
    taints: tuple[str, ...]
    windows: tuple[str, ...]
    met: Amounts
    """Their class."""
    live: int = 0
    """How many live workers have them."""


NO_MARKS = Marks({}, (), (), ())

Moves = dict[Amounts, set[Amounts]]
"""Class -> the classes that its workers have from now on, itself among them if some stay."""


class Demands:
    """The demands in use, each with how many apps have it, and the classes that they make of the live workers."""

    def __init__(self) -> None:
        self.number: dict[str, int] = {}
        self._marks: dict[tuple[object, ...], Marks] = {}
        """Labels, taints and windows of live workers -> their marks."""

    def count(self, demand: str, change: int) -> Moves:
        """So many apps more have it; what becomes of the classes of live workers, of those that change."""
        before = self.number.get(demand, 0)
        if before + change:
            self.number[demand] = before + change
        else:
            del self.number[demand]
        if before and before + change:
            return {}
        named, anybody = _names(demand), met_by(demand, {}, ())
        toggled: dict[Amounts, Amounts] = {}
        moves: Moves = {}
        for marks in self._marks.values():
            known = marks.met
            alike = not marks.taints and named.isdisjoint(marks.labels)
            if anybody if alike else met_by(demand, marks.labels, marks.taints):
                if known not in toggled:
                    toggled[known] = _toggled(known, demand)
                marks.met = toggled[known]
            moves.setdefault(known, set()).add(marks.met)
        return {known: become for known, become in moves.items() if become != {known}}

    def join(self, labels: Mapping[str, str], taints: tuple[str, ...], windows: Iterable[str] = ()) -> Marks:
        """A worker of these is live from now on; its marks."""
        windows = tuple(windows)
        key = _key(labels, taints, windows)
        found = self._marks.get(key)
        if found is None:
            found = self._marks[key] = Marks(labels, taints, windows, class_of(self.number, labels, taints, windows))
        found.live += 1
        return found

    def leave(self, marks: Marks) -> None:
        """A worker of these is live no more."""
        marks.live -= 1
        if not marks.live:
            del self._marks[_key(marks.labels, marks.taints, marks.windows)]


def _key(labels: Mapping[str, str], taints: Iterable[str], windows: Iterable[str]) -> tuple[object, ...]:
    return (*sorted(labels.items()), None, *taints, None, *windows)


def _names(demand: str) -> set[str]:
    """The labels of which the demand says anything."""
    return {term.key for term in terms_of(demand) if term.how != _TOLERATED}


def _toggled(met: Amounts, demand: str) -> Amounts:
    """The class with the demand, or without it if it was among those that are met."""
    plain, between, windows = met[0][0][1:].partition(_WINDOWS) if met else ("", "", "")
    demands = {*plain.split(_BETWEEN_DEMANDS)} if plain != MARK else set[str]()
    return _named_or_none(_text(demands ^ {demand}) + between + windows)
