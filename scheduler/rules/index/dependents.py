"""Which apps wait for the ends, or the beginnings, of which others: `App.awaits` by those waited for (semantics J)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from scheduler.rules.entities.apps import is_met

if TYPE_CHECKING:
    from scheduler.rules.entities.apps import App


class Dependents:
    """The pending apps that are not ready, by what they wait for."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, App]] = {}
        """App that has not ended -> the apps that wait for it, in the order of submission."""

    def begin(self, app: App, apps: Mapping[str, App]) -> None:
        """Note what a new app waits for; what has ended already is judged now (semantics J1)."""
        for name, condition in app.spec.after:
            ended = apps[name].ended
            began = condition == "began" and apps[name].began
            if not began and (ended is None or not is_met(condition, ended)):
                app.awaits = app.awaits or {}
                app.awaits[name] = condition
            if ended is not None and name in app.awaits:
                app.unmet = app.unmet or name
        self.add(app, apps)

    def add(self, app: App, apps: Mapping[str, App]) -> None:
        """Note what the pending app still waits for."""
        for name in app.awaits:
            if name in apps and apps[name].ended is None:
                self.of.setdefault(name, {})[app.id] = app

    def drop(self, app: App) -> None:
        """The app, which was not ready, has ended."""
        for name in app.awaits:
            if name in self.of:
                del self.of[name][app.id]
                if not self.of[name]:
                    del self.of[name]

    def tell(self, ended: str, reason: str) -> list[App]:
        """The apps that waited for this end, which meets their condition or makes it impossible (semantics J2)."""
        told = list(self.of.pop(ended).values())
        for app in told:
            if is_met(app.awaits[ended], reason):
                del app.awaits[ended]
            else:
                app.unmet = app.unmet or ended
        return told

    def tell_beginning(self, begun: str) -> list[App]:
        """The apps that waited for no more than this beginning, and need wait for it no longer (semantics J1)."""
        of = self.of[begun]
        told = [app for app in of.values() if app.awaits[begun] == "began"]
        for app in told:
            del app.awaits[begun], of[app.id]
        if not of:
            del self.of[begun]
        return told
