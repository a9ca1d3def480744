"""What workers do, through API servers: they hold a token and the addresses of servers, and nothing of the store.

A call goes to the server that answered last, and to the next one if that does not answer. Every call may be repeated.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from scheduler.model.commands import RegisterWorker
from scheduler.model.errors import NotAllowed, NotAuthenticated
from scheduler.model.grants import Grant
from scheduler.model.text import of_bytes
from scheduler.service.addresses import MAILBOX_VARIABLE, UNIX
from scheduler.service.outage import ApiAway
from scheduler.store.secrets import UnreadableSecrets
from scheduler.store.task_queue import Completion, Step
from scheduler.store.visits import Orders, Report, Visit
from workers import door
from workers.bell import Bell, ring
from workers.door import Ended, Held, Registrant, registering
from workers.rundir import RunDir
from workers.servers import ANSWER_S, MASTER_S, Servers, error_of, has_answer, trusted
from workers.store_door import StepNumbers
from workers.token import PATIENCE_S, Terms, WorkerToken

WAIT_S = 1.0
"""The interval of an agent's ticks while it has anything, and of its heartbeats unless the server says a longer one."""
MOST_BYTES = 180_000
"""The most bytes of completions or output in a request, as JSON; servers take 256 KiB."""
_NOT_GRANTED = Step(
    granted=False,
    tasks=0,
    succeeded=0,
    failed=0,
    detail="",
    taken=[],
    refused=[],
    mine=[],
    running=0,
    next_ms=-1,
)
T = TypeVar("T")


class ApiAgentDoor:
    """The door of one worker's agent through API servers (`AgentDoor`), with the `token` that its operator has given.

    `comply` is that of the token (`WorkerToken`). Executors that run are handed the tokens of their grants again when
    the worker's own is another.
    """

    def __init__(
        self,
        urls: str,
        worker: str,
        token: str,
        files: RunDir,
        comply: Callable[[Terms], door.Registering | None] = lambda _: None,
    ) -> None:
        self._urls = urls
        self._files, folder = files, files.path
        at_home = all(url.startswith(UNIX) for url in urls.split(","))
        self._token = WorkerToken(worker, folder, token, at_home=at_home, comply=comply)
        self._path = f"/v1/workers/{quote(worker, safe='')}"
        self._calls, self._news = (Servers(urls, lambda: self._token.present) for _ in range(2))
        self._settled = False
        self._polling: HTTPConnection | None = None
        self._answer_by_s = 0.0
        self._bell = Bell(folder)
        self._held: Held | None = None
        """What a server has just told without being asked."""
        self._known = Held(False, {}, [], 0, None, {})  # noqa: FBT003 - a tuple
        self._tag, self._beat_ms = "", 0
        self._handed: dict[str, str] = {}
        """Executor -> the token that it was given last."""
        self._calls_made = self._calls_before = 0
        """Calls so far, and before the server was asked for news: news that may be older than a call is not used."""
        self._stopped = False
        if any(url.startswith("https:") for url in urls.split(",")):
            trusted()  # loaded before executors are forked

    def look(self) -> Held:
        """As `AgentDoor.look`."""
        held, self._held = self._held, None
        if held is not None:
            return held
        self._calls_made += 1
        return self._take(self._calls.call("GET", self._grants(0), door.Holding))

    def listen(self, answer: Callable[[], None]) -> None:
        """As `AgentDoor.listen`, by asking a server for what is new and waiting for the bell meanwhile."""
        self._hang_up()
        at_once = True
        while not self._stopped:
            try:
                if not self._settled:
                    self._token.settle(self._calls)
                    self._settled = True
                if not at_once:
                    self._wait()
                answer()
                at_once = self._token.renew(self._calls, is_over=not self._known.revoked)
                if at_once:
                    self._hang_up()
            except NotAuthenticated:
                if not (self._settled and self._token.present):
                    raise
                self._settled = False

    def stop(self) -> None:
        """As `AgentDoor.stop`."""
        self._stopped = True
        self._bell.ring()

    def wake(self) -> None:
        """As `AgentDoor.wake`."""
        self._bell.ring()

    def _wait(self) -> None:
        """Wait for news of a server, a ring, or the next tick. Raises: ApiAway."""
        known = self._known
        try:
            if self._polling is None:
                wait_s = max(WAIT_S, self._beat_ms / 1000) if known.alive else WAIT_S
                self._polling = self._news.begin("GET", self._grants(wait_s))
                self._calls_before = self._calls_made
                self._answer_by_s = time.monotonic() + wait_s + ANSWER_S
            left_s = max(0.0, self._answer_by_s - time.monotonic())
            busy = known.granted or known.revoked
            ready, _, _ = select.select(
                [self._polling.sock, self._bell], [], [], min(WAIT_S, left_s) if busy else left_s
            )
            if self._bell in ready:
                self._bell.hush()
            told = self._polling.sock in ready and has_answer(self._polling)
            if not told and self._bell not in ready:
                if time.monotonic() >= self._answer_by_s:
                    raise TimeoutError("it does not answer")
                if self._calls_before == self._calls_made:
                    self._held = known  # the server would have told of anything else
            elif told:
                line, self._polling = self._polling, None
                status, content = self._news.finish(line)
                if status >= 400:
                    raise error_of(status, content)
                if self._calls_before == self._calls_made:
                    self._held = self._take(msgspec.json.decode(content, type=door.Holding))
        except (OSError, HTTPException, ApiAway) as error:
            self._hang_up()
            self._news.next()
            raise error if isinstance(error, ApiAway) else ApiAway(f"no news from the API: {error}") from error

    def _hang_up(self) -> None:
        if self._polling is not None:
            self._polling.close()
            self._polling = None
        self._held = None

    def _grants(self, wait_s: float) -> str:
        return f"{self._path}/grants?after={self._tag}&wait={round(1000 * wait_s)}"

    def _take(self, said: door.Holding) -> Held:
        if said.grants is not None:
            grants = [(Grant.model_validate_json(bytes(each.grant)), each.token) for each in said.grants]
            granted = {grant.executor: grant for grant, _ in grants}
            tokens = {grant.executor: token for grant, token in grants}
            self._known = self._known._replace(granted=granted, revoked=said.revoked, tokens=tokens)
        self._tag, self._beat_ms = said.tag, said.beat_ms
        always = {name: getattr(said, name) for name in ("alive", "settled", "registrant", "visited")}
        self._known = self._known._replace(**always)
        self._hand_tokens()
        return self._known

    def _hand_tokens(self) -> None:
        """Give executors the tokens that they do not have; on a full disk, with a later answer."""
        self._handed = {name: token for name, token in self._handed.items() if name in self._known.tokens}
        for executor, token in self._known.tokens.items() - self._handed.items():
            with suppress(OSError):
                self._files.hand_token(executor, token)
                self._handed[executor] = token

    def register(self, offer: RegisterWorker, registrant: Registrant) -> None:
        """As `AgentDoor.register`."""
        self._held = None
        self._calls_made += 1
        self._calls.call("POST", f"{self._path}/register", Raw, registering(offer, registrant), within_s=MASTER_S)

    def drain(self) -> None:
        """As `AgentDoor.drain`."""
        self._calls.call("POST", f"{self._path}/drain", Raw, {}, within_s=MASTER_S)

    def health(self, unwell: str) -> None:
        """As `AgentDoor.health`."""
        said = ("drain", {"reason": unwell, "unwell": True}) if unwell else ("undrain", {"unwell": True})
        self._calls.call("POST", f"{self._path}/{said[0]}", Raw, said[1], within_s=MASTER_S)

    def leave(self) -> None:
        """As `AgentDoor.leave`."""
        self._calls.call("POST", f"{self._path}/leave", Raw, {}, within_s=MASTER_S)

    def was_removed(self) -> str:
        """As `AgentDoor.was_removed`."""
        return self._calls.call("GET", f"{self._path}/removal", door.Removal).reason

    def started(self, executors: Sequence[str]) -> None:
        """As `AgentDoor.started`."""
        self._calls.call("POST", f"{self._path}/reports", Raw, door.Reports(started=list(executors)))

    def ended(self, end: Ended) -> None:
        """As `AgentDoor.ended`."""
        self._calls.call("POST", f"{self._path}/reports", Raw, door.Reports(ended=[end]))

    def spec_of(self, executor: str) -> Mapping[str, Any]:
        """As `AgentDoor.spec_of`."""
        return {"api": self._urls, "token": self._known.tokens.get(executor, "")}

    def close(self) -> None:
        """As `AgentDoor.close`."""
        self._hang_up()
        self._calls.close()
        self._news.close()
        self._bell.close()


class ApiExecutorDoor:
    """The door of one executor or driver through API servers (`ExecutorDoor`), by the token of its grant."""

    def __init__(self, urls: str, worker: str, executor: str, token: str, files: RunDir) -> None:
        self._executor, self._files = executor, files
        self._token = files.handed_token(executor) or token
        self._servers = Servers(urls, lambda: self._token)
        self._path = f"/v1/workers/{quote(worker, safe='')}/executors/{quote(executor, safe='')}"
        self._turns = StepNumbers()
        self._secrets: door.Begun | None = None

    def fill(self) -> bool:
        """As `ExecutorDoor.fill`; the answer has the secrets as well."""
        begun = self._ask("begin", door.Begun, {}, door.Begun(granted=False))
        self._secrets = begun
        return begun.granted

    def secrets(self) -> Mapping[str, str]:
        """As `ExecutorDoor.secrets`; the mailbox is where the worker finds the server, which a proxy may hide."""
        if self._secrets is None:
            self.fill()
        known = self._secrets or door.Begun(granted=False)
        if known.unreadable:
            raise UnreadableSecrets(known.unreadable)
        found = {of_bytes(name): of_bytes(value) for name, value in known.secrets}
        if MAILBOX_VARIABLE in found and not self._servers.url.startswith(UNIX):
            found[MAILBOX_VARIABLE] = self._servers.url
        return found

    def step(self, completions: Sequence[Completion], *, want: int) -> Step:
        """As `ExecutorDoor.step`; many completions go in several requests, of which the last takes tasks."""
        *before, last = _parts(completions) or [[]]
        for part in before:
            self._ask("step", Raw, door.StepRequest(turn="", want=0, completions=part), Raw())
        asked = door.StepRequest(turn=self._turns.present, want=want, completions=last)
        step = self._ask("step", Step, asked, _NOT_GRANTED)
        self._turns.answered()
        return step

    def finish(self, *, put_back: bool) -> None:
        """As `ExecutorDoor.finish`."""
        self._ask("finish", Raw, door.Finish(put_back=put_back), Raw())

    def keep_output(self, said: door.OutputTails) -> bool:
        """As `ExecutorDoor.keep_output`."""
        granted = True
        for part in _tail_parts(said.tails):
            said = replace(said, tails=part)
            granted = self._ask("output", door.Kept, said, door.Kept(granted=False)).granted
            said = replace(said, unwritten=0)
        return granted

    def backlog(self, said: door.Backlog) -> None:
        """As `ExecutorDoor.backlog`."""
        self._ask("backlog", Raw, said, Raw())

    def end_app(self, reason: Literal["finished", "failed"], detail: str) -> None:
        """As `ExecutorDoor.end_app`."""
        self._ask("end-app", Raw, door.AppEnd(reason=reason, detail=detail), Raw())

    def show_life(self) -> None:
        """As `ExecutorDoor.show_life`."""
        self._ask("alive", Raw, {}, Raw())

    def visits(self) -> list[Visit]:
        """As `ExecutorDoor.visits`."""
        return self._ask("visits", door.Visited, {}, door.Visited([])).visits

    def attend(self, report: Report) -> Orders:
        """As `ExecutorDoor.attend`."""
        return self._ask("attend", Orders, report, Orders(there=False))

    def ring(self) -> None:
        """As `ExecutorDoor.ring`."""
        self._servers.close()
        ring(self._files.path)

    def _ask(self, what: str, gives: type[T], asked: object, refused: T) -> T:
        """What a server answers, or `refused` if the executor is not granted any more."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._servers.call("POST", f"{self._path}/{what}", gives, asked)
            except NotAllowed:
                return refused
            except NotAuthenticated:
                handed = self._files.handed_token(self._executor) or self._token
                if handed == self._token and time.monotonic() >= deadline_s:
                    return refused
            if handed == self._token:
                time.sleep(0.2)
            self._token = handed


def _parts(completions: Sequence[Completion]) -> list[list[Completion]]:
    """The completions in parts that a request can hold."""
    sizes = [len(each.output) * 4 // 3 + 6 * len(each.message) + 100 for each in completions]
    return [list(completions[start:end]) for start, end in _cuts(sizes)]


def _tail_parts(tails: list[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    cuts = _cuts([len(tail) * 4 // 3 + 20 for _, tail in tails]) or [(0, 0)]
    return (tails[start:end] for start, end in cuts)


def _cuts(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Where to cut items of these sizes so that no part is larger than `MOST_BYTES`."""
    cuts, start, size = [], 0, 0
    for number, each in enumerate(sizes):
        if number > start and size + each > MOST_BYTES:
            cuts.append((start, number))
            start, size = number, 0
        size += each
    return [*cuts, (start, len(sizes))] if sizes else cuts
