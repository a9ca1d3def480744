"""The last filling and what changed since: the fold marks it, and whoever wants the next filling asks (H2)."""

from __future__ import annotations

from typing import Any

from scheduler.model import events

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

    def keep(self, filling: Any) -> None:  # noqa: ANN401 - an `Entitlement`, which knows states
        """Keep the filling of the state as it stands."""
        if filling is not self.kept:
            self.kept = filling
            self.since.clear()
        self.apps.clear()

    def forget(self) -> None:
        """No filling is kept."""
        self.kept = None
        self.apps.clear()
        self.since.clear()
