"""An app that this process owns: submitted, scaled and ended through the API, with a lease (semantics G4)."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, cast

from fairlog.api.addresses import of_app
from fairlog.api.client import ApiClient
from fairlog.client import Client, of_account, stated
from fairlog.errors import Refused
from scheduler.model.commands import Command, FinishApp, ScaleApp, SubmitApp
from scheduler.model.errors import AppEnded, CommandRejected, FairlogError, NoMaster, UnknownApp
from scheduler.service.folders import is_personal, working_folder

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Literal

LEASE_S = 30
"""For how long an owner may be silent until its app fails."""
SENTENCE_S = 15.0
"""How often an owner that waits is told why."""
LOOPBACK = "127.0.0.1"
_AGAIN_S = 0.5
_CLOSE_S = 10.0
Event = dict[str, Any]
"""An event of the app, as `fairlog log --json` prints it."""


class NeedsApi(FairlogError):
    """The cluster was named by its store."""


def api_client(api: str | None = None, token: str | None = None) -> ApiClient:
    """The API of `api`, or of the environment, as `fairlog.Client`. Raises: NeedsApi, NoCluster."""
    client = Client(api, token=token).through
    if isinstance(client, ApiClient):
        return client
    raise NeedsApi(
        "engines reach the cluster through its API; give its URL, or set FAIRLOG_API and unset FAIRLOG_STORE"
    )


def whose(company: str | None, user: str | None, api: str | None, token: str | None) -> tuple[str, str]:
    """The company and the user of an app: those given, those of the environment, or those of the account.

    Raises: InvalidCommand if it has none; as `api_client`.
    """
    company, user = stated(company, user)
    if company is not None and user is not None:
        return company, user
    with closing(api_client(api, token)) as client:
        return of_account(client.account(), company, user)


def own_host(api: str | None) -> str:
    """The address at which executors reach this process: the loopback for a local API, else this machine's name."""
    named = api or os.environ.get("FAIRLOG_API", "")
    if not named or named.startswith("http+unix:") or "//127.0.0.1" in named or "//localhost" in named:
        return LOOPBACK
    return os.environ.get("FAIRLOG_HOST") or socket.getfqdn()


def own_folder() -> str | None:
    """The folder of this process, which executors in cells then see; they begin in a folder of their own.

    None, and a sentence that says so, for a home folder, which cells refuse: executors need no folder of their user's.
    Raises: FolderGone.
    """
    folder = working_folder()
    if not is_personal(folder):
        return str(folder)
    say(f"executors in cells do not see {folder}, a home folder; start in a folder below it if they need files of it")
    return None


def why_ended(event: Mapping[str, Any]) -> str:
    """Why the app of an `AppRemoved` ended: in the words of whoever ended it, or what is public; "" = unsaid."""
    return str((event.get("private") or {}).get("said") or event["data"]["detail"])


def say(sentence: str) -> None:
    """Print a sentence for people to stderr."""
    sys.stderr.write(f"fairlog: {sentence}\n")
    sys.stderr.flush()


class OwnedApp:
    """An app of executor programs and its owner's threads: signs of life, the newest demand, the app's events.

    `hear` is called with each event of the app, in the order of the log, in a thread of its own. While executors are
    asked for and none runs, the sentence of `explain` is printed every `SENTENCE_S`, unless `quiet`.
    """

    def __init__(
        self,
        submission: SubmitApp,
        secrets: Mapping[str, str],
        *,
        api: str | None = None,
        token: str | None = None,
        hear: Callable[[Event], None] = lambda _: None,
        quiet: bool = False,
    ) -> None:
        self.app = submission.app
        self.lease_s = submission.owner_timeout_s or LEASE_S
        self.executors: dict[str, str] = {}
        """The executors that run or start -> their worker."""
        self.ended: str | None = None
        """How the app ended, and why; None while it goes on."""
        self._where = api, token
        self._client, self._hear, self._quiet = api_client(api, token), hear, quiet
        self._news = threading.Condition()
        self._demand = submission.executor_limit or 0
        self._due: ScaleApp | None = None
        self._closed = False
        self._waits_since_s = time.monotonic()
        with ExitStack() as unless_submitted:
            unless_submitted.callback(self._client.close)
            receipt = self._client.submit(submission, secrets)
            unless_submitted.pop_all()
        self._threads = [
            threading.Thread(target=self._keep, name=f"{self.app} owner", daemon=True),
            threading.Thread(target=self._follow, args=(receipt.seq - 1,), name=f"events of {self.app}", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def scale(
        self,
        executors: int,
        stop: Sequence[str] = (),
        *,
        prefer: Mapping[str, int] | None = None,
        preferring_tasks: int | None = None,
    ) -> None:
        """State the demand; the newest is sent, soon and again until it is taken, with all executors to stop."""
        with self._news:
            earlier = () if self._due is None else self._due.stop
            self._due = ScaleApp(
                app=self.app,
                executors=executors,
                prefer=dict(prefer or {}),
                preferring_tasks=preferring_tasks if prefer else None,
                stop=(*earlier, *stop),
            )
            self._demand = executors
            self._news.notify_all()

    def publish(self, name: str, text: str) -> None:
        """Leave a message in the app's mailbox; one that cannot be left is told of."""
        try:
            self._client.publish(self.app, name, text)
        except (FairlogError, OSError) as error:
            say(f"the message {name} could not be left: {error}")

    def finish(self, outcome: Literal["finished", "failed"] = "finished", detail: str = "") -> None:
        """End the app and stop the threads; repeated while no master answers, at most `_CLOSE_S`."""
        with self._news:
            if self._closed:
                return
            self._closed = True
            self._news.notify_all()
        deadline_s = time.monotonic() + _CLOSE_S
        while self.ended is None:
            try:
                self._client.send(FinishApp(app=self.app, outcome=outcome, detail=detail))
                break
            except (AppEnded, UnknownApp):
                break
            except (FairlogError, OSError) as error:
                if time.monotonic() >= deadline_s:
                    say(f"app {self.app} could not be ended and fails with its lease, {self.lease_s} s: {error}")
                    break
                time.sleep(_AGAIN_S)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_CLOSE_S)
        self._client.close()

    def _keep(self) -> None:
        """Give signs of life, state the newest demand, and say why nothing runs, until the app ends."""
        beat_s = said_s = time.monotonic()
        while True:
            with self._news:
                if not self._closed and self._due is None:
                    self._news.wait(timeout=max(0.0, min(beat_s - time.monotonic(), 1.0)))
                if self._closed:
                    return
                due, self._due = self._due, None
            if due is not None and not self._send(due):
                self._put_back(due)
                time.sleep(_AGAIN_S)
            now_s = time.monotonic()
            if now_s >= beat_s:
                beat_s = now_s + self.lease_s / 4
                try:
                    self._client.beat(self.app)
                except (FairlogError, OSError):
                    beat_s = now_s + _AGAIN_S
            if self.executors or not self._demand:
                self._waits_since_s = said_s = now_s
            elif not self._quiet and now_s >= said_s + SENTENCE_S:
                said_s = now_s
                self._explain()

    def _send(self, command: Command) -> bool:
        """Send the command; whether it need not be sent again."""
        try:
            self._client.send(command)
        except CommandRejected as refusal:
            if self.ended is None:
                say(str(refusal))
        except (NoMaster, Refused, OSError):
            return False
        return True

    def _put_back(self, command: ScaleApp) -> None:
        """A demand that was not taken is due again, unless a newer one is; its stops are in any case."""
        with self._news:
            newer = self._due or command
            self._due = ScaleApp(
                app=self.app,
                executors=newer.executors,
                prefer=newer.prefer,
                preferring_tasks=newer.preferring_tasks,
                stop=command.stop if newer is command else (*command.stop, *newer.stop),
            )

    def _explain(self) -> None:
        try:
            found = self._client.read(f"{of_app(self.app)}/explain")
        except (FairlogError, OSError):
            return
        if found["waitsFor"]:
            waited_s = round(time.monotonic() - self._waits_since_s)
            say(f"app {self.app} waits for executors since {waited_s} s: {found['waitsFor']['text']}")

    def _follow(self, after: int) -> None:
        """Pass on the app's events. After an error the log is followed again from the last one."""
        client = api_client(*self._where)
        path = f"{of_app(self.app)}/events"
        while not self._is_over():
            try:
                events = client.follow(path, after)
                with closing(cast("Generator[Event]", events)):
                    for event in events:
                        after = event["seq"]
                        self._note(event)
                        self._hear(event)
                        if self._is_over():
                            break
            except (FairlogError, OSError):
                time.sleep(_AGAIN_S)
        client.close()

    def _is_over(self) -> bool:
        return self._closed or self.ended is not None

    def _note(self, event: Event) -> None:
        data = event["data"]
        match event["type"]:
            case "ExecutorAllocated":
                self.executors[data["executor"]] = data["worker"]
            case "ExecutorRemoved":
                self.executors.pop(data["executor"], None)
            case "AppRemoved":
                why = why_ended(event)
                self.ended = f"{data['reason']}{': ' * bool(why)}{why}"
            case _:
                pass
