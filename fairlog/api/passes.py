"""Passes of drivers: with one, a driver's program acts for the user of its app, from inside of its cell.

A pass is `fp_CLAIMS.KEY.MAC`, made and checked as the tokens of grants are. It names who submits the app. It is good
while the app goes on and the submitter's token is, for submitting apps of the same user, and for these apps alone.
It ends with its app, and with `UNUSED_MS` if that is not submitted before. Its app is the first of that name that was
submitted after it was made: another one of the same name needs its own.
Until the driver of an app that has ended is gone, it ends apps with it: else these would go on until their lease ends.
"""

from __future__ import annotations

import hmac
import secrets
from typing import TYPE_CHECKING

import msgspec
from msgspec import structs

from scheduler.model.commands import BY_WHAT_RUNS, FinishApp, ScaleApp, SubmitApp
from scheduler.model.errors import NotAllowed, NotAuthenticated
from scheduler.model.sender import By, Role, worker_sender
from scheduler.service.grant_tokens import parts_of, signed_text
from scheduler.store.framing import framed

if TYPE_CHECKING:
    from scheduler.model.commands import Command
    from scheduler.rules.state.cluster import ClusterState
    from scheduler.service.keyring import Keyring

PREFIX = "fp_"
MAIL_ROUTES = frozenset({"publish", "message"})
"""Routes of the mailbox of an app."""
SEEN_ROUTES = MAIL_ROUTES | {"app", "apps"}
"""What runs in an executor may ask for in the name of its user, of its own app alone."""
_OWN = {each: each.__name__[0].lower() + each.__name__[1:] for each in BY_WHAT_RUNS}
"""What it may have done to its own app, and the routes of that: nothing by which anything more would run."""
OWN_ROUTES = SEEN_ROUTES | frozenset(_OWN.values())
"""What it may ask for, of its own app."""
ROUTES = MAIL_ROUTES | {
    "commands",
    "submitApp",
    "scaleApp",
    "finishApp",
    "beat",
    "explain",
    "app",
    "appEvents",
    "links",
}
"""What a driver may ask for."""
UNUSED_MS = 3600 * 1000
"""How long a pass waits for its app to be submitted."""
_PURPOSE = "fairlog pass"
"""No message of the inbox begins with it, since no cluster has that name."""


class Pass(msgspec.Struct, frozen=True, array_like=True):
    """What a pass claims: who submits which app, for whom."""

    cluster: str
    account: str
    token: str
    role: Role
    company: str
    user: str
    app: str
    made: int
    """When it was made (ms); one for the mailbox has the time when its app was submitted."""
    mail: bool = False
    """Whether it is good for the app's mailbox only; then it names no submitter."""
    after: int = 0
    """A log position before that of its app; 0 = a server of an earlier version made it, or it is for the mailbox."""
    worker: str = ""
    """Of a pass for the mailbox: where the program runs; "" = a server of an earlier version made it."""

    def who(self, route: str) -> By:
        """In whose name the driver acts; what runs in an executor asks its worker to end its app or put it back."""
        if self.mail and route not in SEEN_ROUTES:
            return worker_sender(self.worker)
        if self.mail:
            return By(f"{self.company}/{self.user}", "", "user")
        return By(self.account, self.token, self.role)

    def check(self, state: ClusterState, route: str, app: str | None) -> None:
        """Raises: NotAllowed unless the driver may ask that, of that app if it is of one."""
        if self.mail:
            if route not in OWN_ROUTES or app != self.app or not (self.worker or route in SEEN_ROUTES):
                raise NotAllowed(
                    f"a program of app {self.app} may look at its app, use its mailbox, end it and put it back, no more"
                )
            return
        if route not in ROUTES:
            raise NotAllowed(f"the driver of app {self.app} may submit, scale and follow apps of its user, no more")
        self._check_time(state, ends=route in ("finishApp", "commands"))
        of = None if app is None else state.apps.get(app)
        if of is not None:
            self._check_user(of.spec.company, of.spec.user)

    def check_first(self, submitted: int, first: int | None) -> None:
        """Raises: NotAuthenticated unless the app `submitted` then (ms) is the first after the pass, as is known."""
        if first != submitted:
            raise NotAuthenticated(f"the pass is not of this app {self.app}, which was submitted later; get a new one")

    def check_command(self, state: ClusterState, command: Command) -> None:
        """Raises: NotAllowed unless the driver may send the command, which concerns an app of its user."""
        self._check_time(state, ends=isinstance(command, FinishApp))
        if isinstance(command, SubmitApp):
            self._check_user(command.company, command.user)
        elif isinstance(command, ScaleApp | FinishApp):
            self.check(state, "commands", command.app)
        elif self.mail and isinstance(command, BY_WHAT_RUNS):
            self.check(state, _OWN[type(command)], command.app)
        else:
            self.check(state, type(command).__name__, None)

    def _check_time(self, state: ClusterState, *, ends: bool) -> None:
        app = state.apps.get(self.app)
        if not ends and (app is None or app.ended is not None):
            raise NotAllowed(f"app {self.app} has ended: its driver may end apps of its user, no more")

    def _check_user(self, company: str, user: str) -> None:
        if (company, user) != (self.company, self.user):
            raise NotAllowed(f"the driver of app {self.app} acts for {self.company}/{self.user} alone")


class Passes:
    """Makes and checks passes. Without a keyring a key of this process signs."""

    def __init__(self, cluster: str, ring: Keyring | None) -> None:
        self._cluster, self._ring = cluster, ring
        self._own = secrets.token_bytes(32)

    def who(self, shown: Pass, route: str) -> By:
        """In whose name the pass asks for the route; for its worker this server vouches by its key."""
        who = shown.who(route)
        return who if who.role != "worker" or self._ring is None else structs.replace(who, door=self._ring.door)

    def make(self, who: By, company: str, user: str, app: str, now: int, *, after: int = 0) -> str:
        """A pass, made at `now` (ms), for the driver of the app, which `who` is about to submit for the user.

        `after` is a position of the log that the submission comes after.
        """
        role = who.role or "user"
        return self._signed(Pass(self._cluster, who.account, who.token, role, company, user, app, now, after=after))

    def make_for_mail(self, company: str, user: str, app: str, submitted: int, worker: str = "") -> str:
        """A pass for what runs on the worker of the app that was `submitted` then (ms): its mailbox, X4 and X6."""
        claims = Pass(self._cluster, "", "", "user", company, user, app, submitted, mail=True, worker=worker)
        return self._signed(claims)

    def _signed(self, claims: Pass) -> str:
        said = msgspec.json.encode(claims)
        door = self._ring.door if self._ring is not None else ""
        text = framed(_PURPOSE, said)
        mac = hmac.digest(self._own, text, "sha256").hex() if self._ring is None else self._ring.mac(door, text)
        return signed_text(PREFIX, said, door, mac)

    def claims(self, text: str) -> Pass:
        """What the pass claims. Raises: NotAuthenticated unless a door of this cluster has signed it."""
        try:
            said, door, mac = parts_of(PREFIX, text)
            found = msgspec.json.decode(said, type=Pass)
        except ValueError:
            raise NotAuthenticated("this is not the pass of a driver") from None
        if not self._is_signed(door, framed(_PURPOSE, said), mac) or found.cluster != self._cluster:
            raise NotAuthenticated("the pass of this driver is not signed by a door of this cluster")
        return found

    def read(self, text: str, state: ClusterState, now: int) -> Pass:
        """What the pass claims. Raises: NotAuthenticated unless it is good at `now` (ms)."""
        found = self.claims(text)
        app = state.apps.get(found.app)
        over = app is None or (app.ended is not None and (found.mail or app.driver is None))
        if app is not None and app.submitted_at > found.made + (0 if found.mail else UNUSED_MS):
            raise NotAuthenticated(f"the pass is not of this app {found.app}, which was submitted later; get a new one")
        if app is None or over or (app.spec.company, app.spec.user) != (found.company, found.user):
            raise NotAuthenticated(f"the pass of this driver is good no longer: its app {found.app} does not go on")
        if found.token:
            known = state.accounts.tokens.get(found.token)
            if known is None or known.account != found.account or now >= known.expires:
                raise NotAuthenticated("the token by which this driver's app was submitted is not valid any more")
        return found

    def _is_signed(self, door: str, text: bytes, mac: str) -> bool:
        if self._ring is None:
            return hmac.compare_digest(hmac.digest(self._own, text, "sha256").hex().encode(), mac.encode())
        return self._ring.is_signed(text, door, mac)
