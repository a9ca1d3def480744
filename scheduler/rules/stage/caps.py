"""The caps of companies and departments, as grants, needs, targets and loans keep to them (semantics H1, H12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler.model.resources import Resources
from scheduler.rules.share.entitlement import tree_of
from scheduler.rules.share.fill import GroupNode, GroupTree

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App
    from scheduler.rules.entities.companies import Company, Department
    from scheduler.rules.state.cluster import ClusterState


def is_bounded(state: ClusterState, company: str) -> bool:
    """Whether the company has a cap, or a department that it is in."""
    known = state.companies[company]
    return not known.spec.may_borrow or known.capped_above


def granted(of: Company | Department) -> Resources:
    """What it is granted."""
    return of.balance.granted


def staying(of: Company | Department) -> Resources:
    """What it is granted but for what leaves."""
    return of.staying


class UnderCaps:
    """What a company and the departments above it hold by some measure, against their caps.

    With `keeping` what other departments keep is regarded, too.
    """

    def __init__(
        self,
        state: ClusterState,
        company: str,
        measure: Callable[[Company | Department], Resources],
        *,
        keeping: bool = False,
    ) -> None:
        known = state.companies[company]
        self._state, self._company = state, company
        self._quota = None if known.spec.may_borrow else state.queue.companies[company].tenant.quota
        self._own = measure(known)
        self._tree: GroupTree | None = None
        if keeping:
            self._tree = tree_of(state, measure)
        elif known.above:
            self._tree = GroupTree(_chain(known, measure), state.fleet.total)

    def passes(self, more: Resources) -> bool:
        """Whether so much more for the company passes no cap, and leaves what is kept."""
        if self._quota is not None and not self._quota.covers(self._own, more):
            return False
        return self._tree is None or self._tree.passes(self._group(self._tree, self._company), more)

    def add(self, company: str, more: Resources) -> None:
        """So much more is held by that company; less if it is negative."""
        if company == self._company:
            self._own += more
        if self._tree is not None:
            self._tree.add(self._group(self._tree, company), more)

    def helps(self, company: str, more: Resources) -> bool:
        """Whether that company holds a part of what keeps the other one from so much `more`."""
        own = company == self._company
        if own and self._quota is not None and not self._quota.covers(self._own, more):
            return True
        tree = self._tree
        if tree is None:
            return False
        mine, theirs = self._group(tree, self._company), self._group(tree, company)
        return tree.in_the_way(mine, theirs, more)

    def regards(self, company: str) -> bool:
        """Whether what that company holds could ever keep the other one from more."""
        tree = self._tree
        return company == self._company or (tree is not None and self._group(tree, company) is not tree.root)

    def _group(self, tree: GroupTree, company: str) -> GroupNode:
        """The nearest department above that company which is regarded."""
        for each in self._state.companies[company].above:
            if each.name in tree.groups:
                return tree.groups[each.name]
        return tree.root


def _chain(known: Company, measure: Callable[[Company | Department], Resources]) -> dict[str, GroupNode]:
    """The departments above a company, with what they hold."""
    found: dict[str, GroupNode] = {}
    before: GroupNode | None = None
    for each in known.above:
        node = found[each.name] = GroupNode(each.name, used=measure(each), cap=each.cap)
        if before is not None:
            before.above = node
        before = node
    return found


def placed(state: ClusterState, company: str, *, keeping: bool = False) -> UnderCaps:
    """What counts of grants: what changes its place counts once (semantics H1, H6)."""
    held = UnderCaps(state, company, granted, keeping=keeping)
    for hold in state.holds.values():
        for one in hold.leaving.values():
            if one.moved:
                held.add(state.apps[one.app].spec.company, -one.resources)
    return held


def is_capped(state: ClusterState, app: App, size: Resources) -> bool:
    """Whether what is granted leaves no room for it below the caps (semantics H1)."""
    company = app.spec.company
    return is_bounded(state, company) and not UnderCaps(state, company, granted).passes(size)


def passes_staying(state: ClusterState, company: str, more: Resources) -> bool:
    """Whether the company may have so much more beside what stays (semantics H1, H7)."""
    return not is_bounded(state, company) or UnderCaps(state, company, staying).passes(more)
