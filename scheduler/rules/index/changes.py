"""The last filling and what changed since: the fold marks it, and whoever wants the next filling asks (H2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.model import events
from scheduler.rules.entities.labels import in_place

if TYPE_CHECKING:
    from scheduler.model.resources import Amounts
    from scheduler.rules.entities.labels import Moves

OF_ONE_APP = frozenset(
    {
        events.AppRegistered,
        events.AppReady,
        events.AppHeld,
        events.AppReleased,
        events.AppDelayed,
        events.AppDue,
        events.AppAdmitted,
        events.AppChanged,
        events.AppExpired,
        events.AppRemoved,
        events.ExecutorAllocated,
        events.ExecutorRevoked,
        events.RevocationWithdrawn,
        events.ExecutorRemoved,
    }
)
"""Events that change what one app wants, holds or waits for, and nothing else that a filling depends on."""
OF_NOBODY = frozenset(
    {
        events.NeedBegan,
        events.NeedEnded,
        events.TargetSet,
        events.TargetEnded,
        events.SlotAwaited,
        events.ExecutorChanged,
        events.WorkerLabelled,
        events.WindowAdded,
        events.WindowRemoved,
        events.WorkerSuspected,
        events.WorkerProbed,
        events.WorkerCleared,
        events.AppWarned,
        events.TaskCancelled,
        events.TaskRequeued,
        events.AppExtended,
        events.CommandRefused,
        events.RefusalsOmitted,
        events.KeyChanged,
        events.LogSealed,
        events.AccountAdded,
        events.AccountChanged,
        events.RoleGranted,
        events.RoleRevoked,
        events.TokenIssued,
        events.TokenRevoked,
        events.AppsShown,
    }
)
"""Events on which no filling depends."""


class LastFilling:
    """The last filling, and what changed since."""

    def __init__(self) -> None:
        self.kept: Any = None
        """The `Entitlement` of the last filling, if it may still hold."""
        self.apps: dict[str, None] = {}
        """The apps that an event named since it was made, or found to hold still."""
        self.since: dict[str, None] = {}
        """The apps that an event named since it was made."""
        self.classes: dict[Amounts, Amounts] = {}
        """Class by labels -> the one of the filling that it took the place of since."""

    def mark(self, event: Any) -> None:  # noqa: ANN401 - an event of any type
        """Note what the event may change of the filling that is kept: one app, nothing, or all of it."""
        kind = type(event)
        if kind in OF_ONE_APP:
            self.note(event.app)
        elif kind not in OF_NOBODY:
            self.kept = None

    def note(self, app: str) -> None:
        """Note that the app may want, hold or wait for something else."""
        if self.kept is not None:
            self.apps[app] = self.since[app] = None

    def reclass(self, moves: Moves) -> None:
        """The workers of these classes are of others from now on (semantics P9)."""
        become = in_place(moves)
        if self.kept is None or become is None:
            self.forget()
            return
        before = {new: self.classes.pop(old, old) for old, new in become.items()}
        if len(before) < len(become) or not before.keys().isdisjoint(self.classes):
            self.forget()
        else:
            self.classes.update(before)

    def keep(self, filling: Any) -> None:  # noqa: ANN401 - an `Entitlement`, which knows states
        """Keep the filling of the state as it stands."""
        if filling is not self.kept:
            self.kept = filling
            self.since.clear()
            self.classes.clear()
        self.apps.clear()

    def forget(self) -> None:
        """No filling is kept."""
        self.kept = None
        self.apps.clear()
        self.since.clear()
        self.classes.clear()
