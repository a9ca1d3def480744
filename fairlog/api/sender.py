"""Commands of callers, which go through the inbox: the master decides, also whether the caller may.

What a caller certainly may not do is mostly refused here already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec.structs import replace

from fairlog.api.limits import Buckets
from fairlog.api.pages import plain
from fairlog.api.past import NotReady
from fairlog.api.replica import Replica
from fairlog.api.sight import machine_ms
from scheduler.model import commands
from scheduler.model.commands import (
    BATCH,
    NEVER_SENT,
    Command,
    SubmitApp,
    check_length,
    command_of,
    read_command,
    write_command,
)
from scheduler.model.errors import CommandRejected, InvalidCommand, NotAllowed
from scheduler.model.sender import By
from scheduler.rules.command.permission import permit
from scheduler.rules.state.cluster import ClusterState
from scheduler.rules.view.views import may_be_number, named
from scheduler.service.client import CommandClient
from scheduler.service.receipts import Receipt
from scheduler.store.keys import Keys
from scheduler.store.transient import LaneFull

if TYPE_CHECKING:
    from redis import Redis


MAX_ID = 128
TOLD_RATE, TOLD_BURST = 1 / 30, 5.0
"""How many commands an account has refused by the master although this server knows that it may not send them: so the
log tells of attempts, and of no flood of them."""
LONG_WAIT_S = 2.0
"""How long the end of the log is waited for where this server is behind it."""
ATTEMPT = "attempt"
"""The kind of a submission that the master only hears of: no app is of it."""


class _Due(NamedTuple):
    """A command that goes to the master, and its place in what was sent.

    `secrets`: those that are put aside for it. `refusal`: why its sender may not. `attempt`: the command is a
    submission of which the master only hears, since its secrets are put nowhere.
    """

    number: int
    command: Command
    secrets: Mapping[str, str] = {}
    refusal: NotAllowed | None = None
    attempt: bool = False


class CommandSender:
    """Sends the commands of callers and waits for their receipts. May be used by several threads."""

    def __init__(self, store: Redis, keys: Keys, replica: Replica, client: CommandClient) -> None:
        self.store, self.keys, self.replica, self._client = store, keys, replica, client
        self._told = Buckets(TOLD_RATE, TOLD_BURST)

    def send(
        self, who: By, command: Command, secrets: Mapping[str, str] | None = None, *, command_id: str = ""
    ) -> Receipt:
        """Carry out a command once, however often it is sent under the same id.

        Raises: CommandRejected; NoMaster if nobody has answered, so that it may still be carried out.
        """
        identity = _identity(who, command_id)
        due = self._due(0, who, command, secrets or {}, [identity])
        if due.refusal is not None and not self._is_told(who, command):
            raise due.refusal
        (outcome,) = self._send_batch(who, [due], identity)
        if isinstance(outcome, CommandRejected):
            raise outcome
        return outcome

    def send_many(self, who: By, bodies: Sequence[bytes], *, command_id: str = "") -> list[Receipt | CommandRejected]:
        """Carry out commands (JSON) in order; the result of a refused one is its refusal. Raises: as `send`.

        Commands that can be read go to the master in one batch even if some are not allowed: it refuses them, and a
        batch that is sent again has the same ids. A batch of none is answered by the master, too: it says that it
        serves.
        """
        if len(bodies) > BATCH:
            raise InvalidCommand(f"a batch has at most {BATCH} commands, not {len(bodies)}; send it in parts")
        identity = _identity(who, command_id)
        outcomes: list[Receipt | CommandRejected | None] = [None] * len(bodies)
        due: list[_Due] = []
        for number, body in enumerate(bodies):
            try:
                command, secrets = read_request(body)
            except CommandRejected as refusal:
                outcomes[number] = refusal
                continue
            try:
                ids = [identity, f"{identity}.{len(due)}"]
                each = self._due(number, who, command, secrets, ids)
            except InvalidCommand as wrong:
                outcomes[number] = wrong
                continue
            if each.refusal is not None and not self._is_told(who, command):
                outcomes[number] = each.refusal
            due.append(each)
        if not bodies or any(outcomes[each.number] is None for each in due):
            for each, outcome in zip(due, self._send_batch(who, due, identity), strict=True):
                outcomes[each.number] = outcome
        return cast("list[Receipt | CommandRejected]", outcomes)

    def _send_batch(self, who: By, due: Sequence[_Due], identity: str | None) -> list[Receipt | CommandRejected]:
        """What became of the commands. Raises: as `send`, but for a refusal of one of them."""
        client = self._client
        ours: dict[int, SubmitApp] = {}
        """Submissions whose secrets are put aside, by their place in `due`."""
        try:
            for place, (_, command, secrets, *_) in enumerate(due):
                if secrets and isinstance(command, SubmitApp) and client.put_aside(command, secrets):
                    ours[place] = command
            outcomes = client.send_batch([each.command for each in due], command_id=identity, by=who)
        except (CommandRejected, LaneFull):
            for command in ours.values():
                client.forget(command)
            raise
        for place, command in ours.items():
            if isinstance(outcomes[place], CommandRejected):
                client.forget(command)
        said = zip(due, outcomes, strict=True)
        return [each.refusal if each.attempt and each.refusal else outcome for each, outcome in said]

    def _due(
        self, number: int, who: By, command: Command, secrets: Mapping[str, str], ids: Sequence[str | None]
    ) -> _Due:
        """What goes to the master of a command of `who` that may have been carried out before, under one of the `ids`.

        What a submission holds is of no account for whoever may not submit it. Raises: InvalidCommand.
        """
        command = self._with_ids(command)
        try:
            self.refuse_early(who, command)
        except NotAllowed as refusal:
            if not isinstance(command, SubmitApp) or not (secrets or command.env) or self._was_carried_out(ids):
                return _Due(number, command, refusal=refusal)
            return _Due(number, replace(command, kind=ATTEMPT), refusal=refusal, attempt=True)
        if isinstance(command, SubmitApp):
            command = _naming(command, secrets)
            _check_secrets(command, secrets)
        return _Due(number, command, secrets)

    def _was_carried_out(self, ids: Sequence[str | None]) -> bool:
        """Whether a command was, under one of the ids: its sender, who asks again, hears so from the master."""
        return self.replica.peek(
            lambda state: any(each in state.commands and each not in state.refusals for each in ids if each)
        )

    def _is_told(self, who: By, command: Command) -> bool:
        """Whether the master hears of a command that `who` may not send, and logs it."""
        return type(command) not in NEVER_SENT and not self._told.take(who.account, 1.0) and self._is_led()

    def _is_led(self) -> bool:
        """Whether a master holds the lease, so that a refusal does not have to be waited for in vain."""
        return bool(self.store.exists(self.keys.lease))

    def refuse_early(self, who: By, command: Command) -> None:
        """Raises: NotAllowed if `who` may not send the command by a state that is not older than the request.

        Who waits for that has just been allowed something, or tries. Raises: NotReady if this server stays behind.
        """
        if (why := NEVER_SENT.get(type(command))) is not None:
            raise NotAllowed(why)
        try:
            self._permit(who, command)
        except NotAllowed:
            end = self.replica.log.head().seq
            if self.replica.head >= end:
                raise
            if not self.replica.wait_for(end, LONG_WAIT_S):
                raise NotReady(f"this server is behind the log, which ends at position {end}; ask again") from None
            self._permit(who, command)

    def _permit(self, who: By, command: Command) -> None:
        """Raises: NotAllowed if `who` may not send the command by the state that is folded here."""

        def refuse(state: ClusterState) -> None:
            if state.closed:
                permit(state, command, who, machine_ms())

        if who.role == "worker":  # whose grants are looked through
            self.replica.read(refuse)
        else:
            self.replica.peek(refuse)

    def app_named(self, text: str) -> str:
        """The id of the app that a text from outside is: its id or its number (`scheduler.rules.view.views.named`).

        A number that this server has not folded yet is waited for.
        """
        if not may_be_number(text):
            return text
        if self.replica.head < int(text) <= self.replica.log.head().seq:
            self.replica.wait_for(int(text), LONG_WAIT_S)
        return self.replica.peek(lambda state: named(state, text))

    def _with_ids(self, command: Command) -> Command:
        """The command with ids of apps where it has numbers."""
        if isinstance(command, SubmitApp):
            if not command.after:
                return command
            return replace(
                command, after={why: tuple(map(self.app_named, apps)) for why, apps in command.after.items()}
            )
        app = getattr(command, "app", None)
        return command if app is None or (found := self.app_named(app)) == app else replace(command, app=found)


def read_request(body: bytes) -> tuple[Command, Mapping[str, str]]:
    """A command from JSON, and the secrets of a submission, its field `secrets`, which are not checked yet.

    Raises: InvalidCommand if it cannot be read.
    """
    if b'"secrets"' not in body:
        check_length(body)
        return read_command(body), {}
    try:
        values = plain(body)
    except ValueError as error:
        raise InvalidCommand(f"the command is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidCommand("the command: it cannot be read: expected object")
    return request_of(values)


def request_of(values: dict[str, Any]) -> tuple[Command, Mapping[str, str]]:
    """As `read_request`, of decoded JSON. Raises: InvalidCommand."""
    secrets: Any = values.get("secrets", {}) if values.get("type") == SubmitApp.__name__ else {}
    command = command_of({name: value for name, value in values.items() if name != "secrets" or not secrets})
    if not secrets:
        check_length(write_command(command))
        return command, {}
    if not isinstance(secrets, dict) or not all(isinstance(value, str) for value in secrets.values()):
        raise InvalidCommand("secrets must be an object of texts by the names of their variables")
    return _naming(cast("SubmitApp", command), secrets), secrets


def _naming(command: SubmitApp, secrets: Mapping[str, str]) -> SubmitApp:
    """The submission, which names its variables."""
    return command if command.env or not secrets else replace(command, env=tuple(sorted(secrets)))


def _check_secrets(command: SubmitApp, secrets: Mapping[str, str]) -> None:
    """Raises: InvalidCommand unless the submission can have these secrets."""
    commands.check_variables(secrets)
    commands.check_script(command, secrets)
    if secrets and set(command.env) != set(secrets):
        raise InvalidCommand("env and secrets must name the same variables; leave out env")


def _identity(who: By, key: str) -> str | None:
    """The id of a command that is sent with an idempotency key, which is the caller's own; None for a new one.

    Raises: InvalidCommand.
    """
    if len(key) > MAX_ID or not key.isascii() or not (key or "x").isprintable():
        raise InvalidCommand(f"an idempotency key has 1 to {MAX_ID} printable ASCII characters")
    if not key or not who.token:
        return key or None
    identity = f"{who.account}:{key}"
    return identity if len(identity) <= MAX_ID else sha256(identity.encode()).hexdigest()
