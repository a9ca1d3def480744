"""What events of accounts, roles and tokens change (semantics I)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scheduler.model import events
from scheduler.model.events import Event
from scheduler.rules.state.facts import Facts
from scheduler.rules.state.fold.effects import count_apps


def _account_added(facts: Facts, event: events.AccountAdded) -> None:
    facts.closed = True
    count_apps(facts)
    facts.accounts.add(event)


def _account_changed(facts: Facts, event: events.AccountChanged) -> None:
    facts.accounts.known[event.account].display = event.display


def _account_removed(facts: Facts, event: events.AccountRemoved) -> None:
    facts.accounts.remove(event.account)


def _role_granted(facts: Facts, event: events.RoleGranted) -> None:
    facts.accounts.grant(event)


def _role_revoked(facts: Facts, event: events.RoleRevoked) -> None:
    facts.accounts.revoke(event.account, event.role, event.department)


def _token_issued(facts: Facts, event: events.TokenIssued) -> None:
    facts.accounts.issue(event, facts.at)


def _token_revoked(facts: Facts, event: events.TokenRevoked) -> None:
    facts.accounts.end(event.token)


def _apps_shown(facts: Facts, event: events.AppsShown) -> None:
    if event.shown:
        facts.accounts.shown[event.company] = None
    else:
        del facts.accounts.shown[event.company]


FOLDS: dict[type[Event], Callable[[Facts, Any], None]] = {
    events.AccountAdded: _account_added,
    events.AccountChanged: _account_changed,
    events.AccountRemoved: _account_removed,
    events.RoleGranted: _role_granted,
    events.RoleRevoked: _role_revoked,
    events.TokenIssued: _token_issued,
    events.TokenRevoked: _token_revoked,
    events.AppsShown: _apps_shown,
}
"""Type of event -> what folds it."""
