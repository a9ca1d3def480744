"""Which apps wait for the ends, or the beginnings, of which others: an index of the facts in `App` (semantics J)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import TYPE_CHECKING

from recovery.second_edition.rules.entities import is_met

if TYPE_CHECKING:
    from recovery.second_edition.rules.entities import App


class Dependents:
    """The pending apps that are not ready, by what they wait for."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, App]] = {}
        """App that has not ended -> the apps that wait for it, in the order of submission."""
        self.judged: list[tuple[int, str]] = []
        """(position of its submission, app) of each app that the next turn lets be ready, or removes, in order."""

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
        """Index what the pending app still waits for."""
        for name in app.awaits:
            if name in apps and apps[name].ended is None:
                self.of.setdefault(name, {})[app.id] = app
        self.judge(app)

    def drop(self, app: App) -> None:
        """The app, which was not ready, has ended."""
        for name in app.awaits:
            if name in self.of:
                del self.of[name][app.id]
                if not self.of[name]:
                    del self.of[name]
        self.judge(app)

    def tell(self, ended: str, reason: str) -> None:
        """The end of an app meets a condition of those that wait for it, or makes it impossible (semantics J2)."""
        for app in self.of.pop(ended).values():
            if is_met(app.awaits[ended], reason):
                del app.awaits[ended]
            else:
                app.unmet = app.unmet or ended
            self.judge(app)

    def tell_beginning(self, begun: str) -> None:
        """An app has begun, which those that wait for no more than that need wait for no longer (semantics J1)."""
        of = self.of[begun]
        for app in [app for app in of.values() if app.awaits[begun] == "began"]:
            del app.awaits[begun], of[app.id]
            self.judge(app)
        if not of:
            del self.of[begun]

    def judge(self, app: App) -> None:
        """Bring `judged` up to date with the app."""
        key = app.submitted, app.id
        place = bisect_left(self.judged, key)
        known = self.judged[place : place + 1] == [key]
        if app.judged and not known:
            self.judged.insert(place, key)
        elif known and not app.judged:
            del self.judged[place]
