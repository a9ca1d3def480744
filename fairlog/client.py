"""The clients of a cluster: `Client`, and `AsyncClient`, its asyncio twin.

They speak to the cluster's API, or, for those who hold the store's credentials, to its store. What they do is written
once, as generators of calls; a client only carries the calls out.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import time
from collections.abc import AsyncIterator, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar, get_args
from uuid import uuid4

from msgspec import convert
from msgspec.structs import replace

from fairlog.api.addresses import UNIX
from fairlog.api.client import ApiClient
from fairlog.credentials import named, two_places
from fairlog.efficiency import Level, efficiency
from fairlog.errors import JobFailed, NoCluster
from fairlog.local.running import find_running, keyring_for
from fairlog.models import App, AppDetails, Efficiency, Event, Explanation, Submitted, Task
from recovery.archive.archive import open_log
from recovery.failover.follower import Reader
from scheduler.model.arrays import indexes
from scheduler.model.commands import CancelTask, Command, KillApp, RequeueApp, SignalApp, SubmitApp, needs_all
from scheduler.model.errors import AppEnded, CommandRejected, InvalidCommand, UnknownCompany
from scheduler.model.sender import By
from scheduler.model.staged import SCRIPT, digest_of, script_of_value, script_value
from scheduler.model.states import AppState
from scheduler.rules.view.views import named as named_app
from scheduler.service import client as service
from scheduler.service.folders import working_folder
from scheduler.service.receipts import Receipt
from scheduler.store.codec import lines_of
from scheduler.store.eventlog import EventLog, Position
from scheduler.store.tails import STREAMS, Stream
from scheduler.store.task_queue import Worklist

if TYPE_CHECKING:
    from fairlog.api.async_client import AsyncApiClient

_CORE_MB = 512
_OVER = frozenset({"succeeded", "failed", "cancelled", "stopped"})
"""The states of a task that has ended."""
LOOK_S = (0.05, 1.0)
"""The first and the longest pause between two looks at an app."""
T = TypeVar("T")
Named = str | int | Submitted | App
"""An app: its id, its number (the log position of its submission), or what has it."""


class StoreClient(service.CommandClient):
    """A client that also reads: it folds the log as a standby does, and asks no master."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self.store.close()

    @cached_property
    def _log(self) -> EventLog:
        return open_log(self.store, self.keys)

    @cached_property
    def reader(self) -> Reader:
        """The views; the first one folds the whole log."""
        return Reader(self._log)

    @cached_property
    def _work(self) -> Worklist:
        return Worklist(self.store, self.keys.cluster)

    def view(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 - JSON values
        """The view `name` (`scheduler.rules.view.views`) of the state at the end of the log.

        Raises: CommandRejected if the view or its subject is unknown; UnreadableRecord if the log cannot be read.
        """
        return self.reader.view(name, **arguments)

    def send(self, command: Command, *, command_id: str | None = None, by: By | None = None) -> Receipt:
        """As `scheduler.service.client.CommandClient.send`; an app may be named by its number."""
        return super().send(self._with_id(command), command_id=command_id, by=by)

    def send_many(self, commands: Sequence[Command], *, by: By | None = None) -> list[Receipt | CommandRejected]:
        """As `scheduler.service.client.CommandClient.send_many`; apps may be named by their numbers."""
        return super().send_many([self._with_id(command) for command in commands], by=by)

    def _with_id(self, command: Command) -> Command:
        app = getattr(command, "app", None)
        if app is None or isinstance(command, SubmitApp) or (found := self._named(app)) == app:
            return command
        return replace(command, app=found)

    def _named(self, app: str) -> str:
        return named_app(self.reader.state(), app) if app.isdecimal() else app

    def account(self) -> By:
        """Who sends the commands."""
        return self.by

    def states(self, app: str) -> list[dict[str, Any]]:
        """The states of the app's tasks, by index; empty before its first executor."""
        return [task._asdict() for task in self._work.states(self._named(app))]

    def output(self, app: str, task: int | None, *, stream: Stream | None = None, reason: str = "") -> bytes:  # noqa: ARG002 (the API's)
        """The last 64 KiB of the output of a task, or of the driver (None), or of one stream."""
        return self._work.output(self._named(app), task, stream)

    def explain(self, app: str) -> dict[str, Any]:
        """Why the app waits, or was admitted and placed as it was, from the log. Raises: UnknownApp."""
        from witness.explain import explain  # noqa: PLC0415 (slow to import)

        return explain(self._log.facts(), app)

    def log(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """The events of the log after position `after`, as `fairlog log --json` prints them."""
        yield from self._events(self._log.before(after), after)

    def follow(self, after: int = 0) -> Iterator[dict[str, Any]]:
        """As `log`, and further ones as they are committed, without end."""
        place = self._log.before(after)
        while True:
            for record in self._log.read(place):
                yield from (line.as_json() for line in lines_of(record) if line.seq > after)
                place = Position(record.last, record.digest)
            time.sleep(LOOK_S[1] / 4)

    def _events(self, place: Position, after: int) -> Iterator[dict[str, Any]]:
        for record in self._log.read(place):
            yield from (line.as_json() for line in lines_of(record) if line.seq > after)


class _Invocation(NamedTuple):
    """A step: call the method of what the client speaks through, and give back what it returns."""

    method: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = {}


class _Delay(NamedTuple):
    """A step: wait."""

    seconds: float


_Steps = Generator[_Invocation | _Delay, Any, T]


def _submit(
    command: str | Sequence[str] | SubmitApp,
    whose: tuple[str | None, str | None],
    env: Mapping[str, str] | None,
    script: str | bytes | None,
    fields: Mapping[str, Any],
) -> _Steps[Submitted]:
    """`whose`: the company and the user, as far as they are given."""
    values = _values(env, script)
    if isinstance(command, SubmitApp):
        request = command
    else:
        about = _fields(command, fields, values)
        company, user = stated(*whose)
        if company is None or user is None:
            company, user = of_account((yield _Invocation("account")), company, user)
        request = SubmitApp(**{**about, "company": company, "user": user})
    receipt: Receipt = yield _Invocation("submit", (request, values))
    return Submitted(app=request.app, seq=receipt.seq, command_id=receipt.command_id)


def stated(company: str | None, user: str | None) -> tuple[str | None, str | None]:
    """The company and the user that are given, else those that FAIRLOG_COMPANY and FAIRLOG_USER name."""
    return company or os.environ.get("FAIRLOG_COMPANY") or None, user or os.environ.get("FAIRLOG_USER") or None


def of_account(by: By, company: str | None, user: str | None) -> tuple[str, str]:
    """The company and the user, those of the account unless they are stated. Raises: InvalidCommand if it has none."""
    if by.role not in ("user", "admin"):
        raise InvalidCommand(
            f"name the company and the user of the app, or set FAIRLOG_COMPANY and FAIRLOG_USER: {by.account} belongs "
            "to no company"
        )
    of, _, name = by.account.partition("/")
    return company or of, user or name


def _wait(app: str, timeout_s: float | None) -> _Steps[AppDetails]:
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s, longest_s = LOOK_S
    while True:
        found = yield _Invocation("view", ("app",), {"app": app})
        if found["endedAt"] is not None:
            return convert(found, AppDetails)
        if deadline is not None and time.monotonic() + pause_s > deadline:
            raise TimeoutError(f"app {app!r} is {found['state']} and has not ended within {timeout_s:g} s")
        yield _Delay(pause_s)
        pause_s = min(longest_s, pause_s * 1.5)


def _within(timeout: float | None, timeout_s: float | None) -> float | None:
    """The one of both that is given. Raises: TypeError for both."""
    if timeout is not None and timeout_s is not None:
        raise TypeError("timeout and timeout_s are one and the same; give one of them")
    return timeout if timeout_s is None else timeout_s


def _logs(app: str, task: int | None, *, driver: bool, stream: Stream | None, reason: str) -> _Steps[str]:
    if stream not in {None, *STREAMS}:
        raise InvalidCommand(f'there is no stream {stream!r}; a stream is "stdout" or "stderr", and None is both')
    found = yield _Invocation("view", ("app",), {"app": app})
    chosen: list[int | None] = [None]
    if not driver:
        if task is not None and not 0 <= task < found["tasks"]:
            raise InvalidCommand(f"app {app!r} has no task {task}; its tasks are 0 to {found['tasks'] - 1}")
        chosen = list(range(found["tasks"])) if task is None else [task]
    output = b""
    for each in chosen:
        output += yield _Invocation("output", (app, each), {"stream": stream, "reason": reason})
    return output.decode(errors="replace")


def _tasks(app: str) -> _Steps[list[Task]]:
    return convert((yield _Invocation("states", (app,))), list[Task])


def _app(app: str) -> _Steps[AppDetails]:
    return convert((yield _Invocation("view", ("app",), {"app": app})), AppDetails)


def _apps(wanted: Mapping[str, str | None], *, everything: bool) -> _Steps[list[App]]:
    if (state := wanted["state"]) not in (None, *get_args(AppState)):
        raise InvalidCommand(f"no app is {str(state)[:40]!r}; the states are {', '.join(get_args(AppState))}")
    listed = convert((yield _Invocation("view", ("apps",), {"everything": everything})), list[App])
    found = [app for app in listed if all(each in (None, getattr(app, name)) for name, each in wanted.items())]
    if not found:
        yield from _check_company(wanted["company"])
    return found


def _efficiency(by: Level, wanted: Mapping[str, str | None]) -> _Steps[list[Efficiency]]:
    apps = yield _Invocation("view", ("apps",), {"everything": True})
    meant = [app for app in apps if all(each in (None, app[name]) for name, each in wanted.items())]
    if not meant:
        yield from _check_company(wanted["company"])
    return convert(efficiency(meant, by), list[Efficiency])


def _check_company(company: str | None) -> _Steps[None]:
    """Raises: UnknownCompany if a company is named and is none."""
    if company is not None:
        known = [each["company"] for each in (yield _Invocation("view", ("companies",)))]
        if company not in known:
            raise UnknownCompany(company, known)


def _explain(app: str) -> _Steps[Explanation]:
    return convert((yield _Invocation("explain", (app,))), Explanation)


def _ended(app: str, task: int | None) -> _Steps[tuple[str, str] | None]:
    """How the app, or its task, has ended: its state, and why; None while it goes on."""
    found = yield _Invocation("view", ("app",), {"app": app})
    if task is not None:
        states = yield _Invocation("states", (app,))
        if task < len(states) and states[task]["state"] in _OVER:
            return states[task]["state"], states[task]["message"]
    return None if found["endedAt"] is None else (found["state"], found["detail"])


def _over(app: str, task: int | None, timeout_s: float | None) -> _Steps[tuple[str, str]]:
    """As `_ended`, once it has. Raises: TimeoutError."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    pause_s, longest_s = LOOK_S
    while (ended := (yield from _ended(app, task))) is None:
        if deadline is not None and time.monotonic() + pause_s > deadline:
            raise TimeoutError(f"{_job_id(app, task)} has not ended within {timeout_s:g} s")
        yield _Delay(pause_s)
        pause_s = min(longest_s, pause_s * 1.5)
    return ended


def _written(app: str, task: int | None, stream: Stream) -> _Steps[str]:
    """What the app, its driver or its task has written to the stream."""
    found = yield _Invocation("view", ("app",), {"app": app})
    return (yield from _logs(app, task, driver=not found["tasks"], stream=stream, reason=""))


def _failure(app: str, task: int | None, timeout_s: float | None) -> _Steps[JobFailed | None]:
    state, why = yield from _over(app, task, timeout_s)
    if state in ("finished", "succeeded"):
        return None
    return JobFailed(_job_id(app, task), state, why, (yield from _written(app, task, "stderr")))


def _result(app: str, task: int | None, timeout_s: float | None) -> _Steps[str]:
    failure = yield from _failure(app, task, timeout_s)
    if failure is not None:
        raise failure
    return (yield from _written(app, task, "stdout"))


def _state(app: str, task: int | None) -> _Steps[str]:
    if task is not None:
        states = yield _Invocation("states", (app,))
        if task < len(states):
            return str(states[task]["state"])
    found = yield _Invocation("view", ("app",), {"app": app})
    return str(found["state"])


def _job_id(app: str, task: int | None) -> str:
    return app if task is None else f"{app}_{task}"


def _mapped(
    command: str | Sequence[str], values: Sequence[Iterable[object]], at_once: int | None, fields: dict[str, Any]
) -> tuple[list[str], str, dict[str, Any]]:
    """The command, the script and the fields of an app with a task for each of the values. Raises: InvalidCommand."""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    items = list(zip(*values, strict=False))
    if not words or not items:
        raise InvalidCommand("map_array needs a command and at least one value for it")
    cases = [f"{place}) set -- {shlex.join([*words, *map(str, item)])} ;;" for place, item in enumerate(items)]
    script = "\n".join(("#!/bin/sh", 'case "$FAIRLOG_TASK_INDEX" in', *cases, "esac", 'exec "$@"', ""))
    about = {"array": f"0-{len(items) - 1}", "keep_going": True, "name": Path(words[0]).name, **fields}
    if at_once is not None:
        cores = about.get("cores_per_task") or 1
        memory_mb = about.get("memory_per_task_mb") or _CORE_MB * cores
        about |= {"sizing": "fixed", "executor_cores": cores, "executor_memory_mb": memory_mb}
        about |= {"executor_limit": at_once, "cores": at_once * cores}
    return ["map_array.sh"], script, about


def _id(app: Named) -> str:
    return str(app) if isinstance(app, str | int) else app.app


_ELSEWHERE = {
    **dict.fromkeys(("executors", "max_executors", "num_executors"), "executor_limit"),
    **dict.fromkeys(("cpu", "cpus", "num_cpus", "num_cores"), "cores"),
    **dict.fromkeys(("mem", "memory", "memory_mb", "ram"), "memory_per_task_mb"),
    **dict.fromkeys(("gpu", "gpus", "num_gpus", "resources"), "task_resources"),
    **dict.fromkeys(("runtime", "timeout", "walltime"), "max_runtime_s"),
    **dict.fromkeys(("queue", "tenant"), "company"),
    **dict.fromkeys(("folder", "workdir"), "cwd"),
    **dict.fromkeys(("count", "num_tasks"), "tasks"),
    "labels": "require",
    "max_retries": "retries",
}
"""What fields are called elsewhere."""


def _fields(command: str | Sequence[str], fields: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """The fields of a submission: a new id, the present folder, one task unless there is a driver.

    Raises: InvalidCommand for a name that is no field, and for a gang whose executors run no program.
    """
    _check_fields(fields)
    words = tuple(shlex.split(command)) if isinstance(command, str) else tuple(command)
    asked = {"app": f"app-{uuid4().hex[:12]}", "env": tuple(sorted(env)), **fields}
    if SCRIPT in env:
        asked["script"] = digest_of(script_of_value(env[SCRIPT]))
    if "cwd" not in asked:
        asked["cwd"] = str(working_folder())
    for name in ("output", "error"):
        if asked.get(name):
            asked[name] = os.path.join(asked["cwd"] or "/", asked[name])  # noqa: PTH118 (as it was written)
    if asked.get("array"):
        asked["tasks"] = len(indexes(asked["array"]))
    if not asked.get("driver") and not asked.get("executor_program"):
        asked.setdefault("tasks", 1)
    if asked.get("tasks") == 1:
        asked.setdefault("small", True)
    if needs_all(asked):
        asked.setdefault("all_at_once", True)
    if words:
        asked.setdefault("name", Path(words[0]).name)
    return {**asked, "command": words}


def _check_fields(fields: Mapping[str, Any]) -> None:
    """Raises: InvalidCommand for a name that is no field, and for a gang whose executors run no program."""
    known = SubmitApp.__struct_fields__
    for name in fields:
        if name not in known:
            near = [_ELSEWHERE[name]] if name in _ELSEWHERE else get_close_matches(name, known, 1)
            hint = f"give {near[0]}" if near else "help(fairlog.SubmitApp) lists the fields"
            raise InvalidCommand(f"an app has no field {name!r}; {hint}")
    if fields.get("gang") and not fields.get("executor_program"):
        raise InvalidCommand(
            "a gang is executors that run a program; give executor_program=True, and executor_limit=N for how many"
        )


def _values(env: Mapping[str, str] | None, script: str | bytes | None) -> dict[str, str]:
    """The values that the store keeps for the app, the script among them.

    Raises: InvalidCommand if it is too large, or `env` is not texts by the names of their variables.
    """
    values: Any = env or {}
    texts = (*values, *values.values()) if isinstance(values, Mapping) else (None,)
    if not all(isinstance(each, str) for each in texts):
        raise InvalidCommand("env gives each variable a text by its name: env={'A': '1'}; write numbers as texts")
    if script is None:
        return dict(values)
    content = script.encode() if isinstance(script, str) else script
    return {**values, SCRIPT: script_value(content, "of the app")}


def _place(url: str | None, token: str | None) -> tuple[str, str | None]:
    """The URL and the token that are given, or those that the verbs of the command line use. Raises: NoCluster."""
    if url:
        return url, token
    if why := two_places():
        raise NoCluster(f"{why}, or give a URL")
    url, data = os.environ.get("FAIRLOG_STORE"), os.environ.get("FAIRLOG_DATA")
    if url:
        return url, token
    found = named(Path(data) if data else None)
    if found is not None:
        return found.api, token or found.token
    running = find_running(Path(data) if data else None)
    if running is None:
        raise NoCluster("no cluster found: give a URL, run `fairlog login`, or start one with `fairlog up`")
    return f"{UNIX}{running.socket}", token


def _is_store(url: str) -> bool:
    return not url.startswith(("http://", "https://", UNIX))


def _store_client(url: str, cluster: str | None, timeout_s: float) -> StoreClient:
    name = cluster or os.environ.get("FAIRLOG_CLUSTER") or "default"
    return StoreClient(url, name, keyring=keyring_for(url), timeout_s=timeout_s)


class Job(Submitted, frozen=True, kw_only=True, dict=True):
    """An app that a `Client` has submitted, or with `task` one of its tasks, as users of submitit know a job.

    It is good while its client is open. Whatever takes an app takes its job.
    """

    task: int | None = None

    def _do(self, steps: _Steps[T]) -> T:
        client: Client = self.__dict__["client"]
        return client._do(steps)  # noqa: SLF001 (its other half)

    @property
    def job_id(self) -> str:
        """The id of the app, and `_` and the number of the task."""
        return _job_id(self.app, self.task)

    @property
    def state(self) -> str:
        """The state of the app, or of the task."""
        return self._do(_state(self.app, self.task))

    def done(self) -> bool:
        """Whether it has ended."""
        return self._do(_ended(self.app, self.task)) is not None

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it has ended. Raises: TimeoutError if it has not after so many seconds."""
        self._do(_over(self.app, self.task, timeout))

    def result(self, timeout: float | None = None) -> str:
        """What the command wrote to stdout, once it has ended well. Raises: JobFailed if it has not; TimeoutError."""
        return self._do(_result(self.app, self.task, timeout))

    def exception(self, timeout: float | None = None) -> JobFailed | None:
        """What `result` raises, once it has ended; None if it has ended well. Raises: TimeoutError."""
        return self._do(_failure(self.app, self.task, timeout))

    def stdout(self) -> str:
        """What it has written to stdout until now."""
        return self._do(_written(self.app, self.task, "stdout"))

    def stderr(self) -> str:
        """What it has written to stderr until now."""
        return self._do(_written(self.app, self.task, "stderr"))

    def cancel(self) -> None:
        """Kill the app, or cancel the task; nothing becomes of one that has ended."""
        with suppress(AppEnded):
            self._do(_kill(self.app, self.task, ""))


class AsyncJob(Submitted, frozen=True, kw_only=True, dict=True):
    """As `Job`, of an `AsyncClient`."""

    task: int | None = None

    async def _do(self, steps: _Steps[T]) -> T:
        client: AsyncClient = self.__dict__["client"]
        return await client._do(steps)  # noqa: SLF001 (its other half)

    @property
    def job_id(self) -> str:
        """As `Job.job_id`."""
        return _job_id(self.app, self.task)

    async def state(self) -> str:
        """As `Job.state`."""
        return await self._do(_state(self.app, self.task))

    async def done(self) -> bool:
        """As `Job.done`."""
        return await self._do(_ended(self.app, self.task)) is not None

    async def wait(self, timeout: float | None = None) -> None:
        """As `Job.wait`."""
        await self._do(_over(self.app, self.task, timeout))

    async def result(self, timeout: float | None = None) -> str:
        """As `Job.result`."""
        return await self._do(_result(self.app, self.task, timeout))

    async def exception(self, timeout: float | None = None) -> JobFailed | None:
        """As `Job.exception`."""
        return await self._do(_failure(self.app, self.task, timeout))

    async def stdout(self) -> str:
        """As `Job.stdout`."""
        return await self._do(_written(self.app, self.task, "stdout"))

    async def stderr(self) -> str:
        """As `Job.stderr`."""
        return await self._do(_written(self.app, self.task, "stderr"))

    async def cancel(self) -> None:
        """As `Job.cancel`."""
        with suppress(AppEnded):
            await self._do(_kill(self.app, self.task, ""))


def _job(client: Client, app: Submitted, task: int | None = None) -> Job:
    job = Job(app=app.app, seq=app.seq, command_id=app.command_id, task=task)
    job.__dict__["client"] = client  # which is no part of what the job is
    return job


class Client:
    """A client of the cluster that the verbs of the command line would use; a context manager.

    `url` is that of an API (https://HOST, http+unix:PATH), or, for operators, of a store (redis://…, unix://PATH), in
    which `cluster` names the cluster. Without it: the store that FAIRLOG_STORE names; else the API that FAIRLOG_API
    names or `fairlog login` was given, with its token; else the `up` running here. A store's masters take only what is
    signed by the keys in FAIRLOG_KEYS if they have keys.

    Every method raises CommandRejected for what the rules refuse, and NoMaster without an answer within `timeout_s`.
    A command is then carried out or not; sending it again is safe only under the same id.

    >>> with fairlog.Client() as client:
    ...     app = client.submit("echo hello", company="acme", user="ann")
    ...     client.wait(app).state
    'finished'

    Raises: NoCluster if there is none, BadCredentials.
    """

    def __init__(
        self,
        url: str | None = None,
        cluster: str | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 30,
    ) -> None:
        found, token = _place(url, token)
        self.through: ApiClient | StoreClient
        """What it speaks through."""
        if _is_store(found):
            self.through = _store_client(found, cluster, timeout_s)
        else:
            self.through = ApiClient(found, token=token, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections.

        >>> client = fairlog.Client()
        >>> client.close()
        """
        self.through.close()

    def submit(
        self,
        command: str | Sequence[str] | SubmitApp,
        *,
        company: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        script: str | bytes | None = None,
        **fields: Any,  # noqa: ANN401 (fields of `SubmitApp`)
    ) -> Job:
        r"""Submit an app that runs `command`, under a new id; returns once it is in the log, which no crash loses.

        `company` and `user` are those of FAIRLOG_COMPANY and FAIRLOG_USER, or of the account, unless given, and the
        folder is the present one. The values of `env` are not written to the log. Further `fields` are those of
        `SubmitApp`, such as `tasks` and `cores`.

        >>> app = client.submit(["sh", "-c", "echo $WORD"], company="acme", user="ann", env={"WORD": "hello"}, cores=2)
        >>> client.wait(app).requested_cores, client.logs(app)
        (2, 'hello\n')

        The text of a `script` is stored with the app, and is what the first word of the command runs:

        >>> text = "#!/bin/sh\necho $1 in $(basename $0)"
        >>> app = client.submit(["job.sh", "a"], company="acme", user="ann", script=text)
        >>> client.wait(app) and client.logs(app)
        'a in job.sh\n'

        A submission that was made elsewhere is sent as it is:

        >>> client.submit(fairlog.SubmitApp(app="mine", company="acme", user="ann", tasks=1, command=("true",))).app
        'mine'

        The app is a job as users of submitit know it:

        >>> job = client.submit("echo hello", company="acme", user="ann")
        >>> job.result(timeout=60), job.done(), job.stderr()
        ('hello\n', True, '')
        """
        return _job(self, self._do(_submit(command, (company, user), env, script, fields)))

    def map_array(
        self,
        command: str | Sequence[str],
        *values: Iterable[object],
        at_once: int | None = None,
        company: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        **fields: Any,  # noqa: ANN401 (fields of `SubmitApp`)
    ) -> list[Job]:
        r"""Submit an app with a task for each of the values, which are the last arguments of its command, as of `map`.

        No more than `at_once` run at once. A task that fails leaves the others to run. The rest is as for `submit`.

        >>> jobs = client.map_array("echo task", range(3), "abc", company="acme", user="ann")
        >>> [job.result(timeout=60) for job in jobs]
        ['task 0 a\n', 'task 1 b\n', 'task 2 c\n']
        """
        words, script, about = _mapped(command, values, at_once, fields)
        app = self.submit(words, company=company, user=user, env=env, script=script, **about)
        return [_job(self, app, task) for task in range(len(indexes(about["array"])))]

    def wait(self, app: Named, timeout: float | None = None, *, timeout_s: float | None = None) -> AppDetails:
        """The app once it has ended. Raises: TimeoutError if it has not after so many seconds, UnknownApp.

        `timeout`, as the waits of the standard library call it, and `timeout_s` are one; TypeError if both are given.

        >>> app = client.submit("sh -c 'exit 3'", company="acme", user="ann")
        >>> ended = client.wait(app, timeout=60)
        >>> ended.state, ended.detail
        ('failed', 'task 0 ended with exit code 3')
        """
        return self._do(_wait(_id(app), _within(timeout, timeout_s)))

    def kill(self, app: Named, *, task: int | None = None, reason: str = "") -> Receipt:
        """End an app, or one of its tasks, counted from 0; an operator states the `reason` where there are accounts.

        >>> app = client.submit("sleep 600", company="acme", user="ann")
        >>> receipt = client.kill(app)
        >>> client.wait(app).state
        'killed'
        >>> app = client.submit("sh -c 'sleep $FAIRLOG_TASK_INDEX'", company="acme", user="ann", array="0,600")
        >>> receipt = client.kill(app, task=1)
        >>> client.wait(app).detail
        'task 1 was cancelled'
        """
        return self._do(_kill(_id(app), task, reason))

    def signal(
        self, app: Named, signal: str, *, task: int | None = None, whole: bool = False, reason: str = ""
    ) -> Receipt:
        """Send a signal, such as "USR1", to the tasks of an app that run, or to one of them, counted from 0.

        It goes to the process of each, or `whole` to all that come from it; an operator states the `reason` where there
        are accounts.

        >>> import time
        >>> app = client.submit("sleep 600", company="acme", user="ann")
        >>> while not client.tasks(app): time.sleep(0.1)
        >>> receipt = client.signal(app, "TERM")
        >>> client.wait(app).detail
        'task 0 was ended by SIGTERM'
        """
        return self._do(_signal(_id(app), signal, task, whole=whole, reason=reason))

    def requeue(self, app: Named, *, task: int | None = None, reason: str = "") -> Receipt:
        """Put an app back into its queue under its own id; an operator states the `reason` where there are accounts.

        What runs of it is stopped and runs again; tasks that have succeeded do not. With `task`, its index from 0, that
        one alone is stopped, and begins again.

        >>> import time
        >>> app = client.submit("sh -c 'test $FAIRLOG_ATTEMPT = 2 || sleep 600'", company="acme", user="ann")
        >>> while not client.tasks(app): time.sleep(0.1)
        >>> receipt = client.requeue(app)
        >>> client.wait(app).state, client.view("app", app=app.app)["restarts"]
        ('finished', 1)
        """
        return self._do(_requeue(_id(app), task, reason))

    def logs(
        self,
        app: Named,
        *,
        task: int | None = None,
        driver: bool = False,
        stream: Stream | None = None,
        reason: str = "",
    ) -> str:
        r"""The end of the output of the task, counted from 0, or of the driver; by default of all tasks in their order.

        If it is not the whole, its first line says so.

        >>> app = client.submit("sh -c 'echo task $FAIRLOG_TASK_INDEX'", company="acme", user="ann", tasks=2)
        >>> print(client.wait(app) and client.logs(app), end="")
        task 0
        task 1
        >>> client.logs(app, task=1), client.logs(app, stream="stderr")
        ('task 1\n', '')
        """
        return self._do(_logs(_id(app), task, driver=driver, stream=stream, reason=reason))

    def tasks(self, app: Named) -> list[Task]:
        """The states of the app's tasks, by index; empty before its first executor.

        >>> app = client.submit("true", company="acme", user="ann", tasks=2)
        >>> _ = client.wait(app)
        >>> [(task.task, task.state, task.exit_code) for task in client.tasks(app)]
        [(0, 'succeeded', 0), (1, 'succeeded', 0)]
        """
        return self._do(_tasks(_id(app)))

    def app(self, app: Named) -> AppDetails:
        """The app. Raises: UnknownApp.

        >>> app = client.submit("true", company="acme", user="ann", hold=True)
        >>> found = client.app(app)
        >>> found.state, found.ready, found.command
        ('pending', False, ['true'])
        """
        return self._do(_app(_id(app)))

    def apps(
        self,
        *,
        everything: bool = False,
        company: str | None = None,
        user: str | None = None,
        name: str | None = None,
        state: str | None = None,
    ) -> list[App]:
        """The apps that have not ended, or `everything` that is known, in order of submission; those that are meant.

        >>> app = client.submit("true", company="acme", user="ann", name="nightly", hold=True)
        >>> [found.app == app.app for found in client.apps(name="nightly", state="pending")]
        [True]
        """
        wanted = {"company": company, "user": user, "name": name, "state": state}
        return self._do(_apps(wanted, everything=everything))

    def efficiency(
        self, by: Level = "user", *, company: str | None = None, user: str | None = None
    ) -> list[Efficiency]:
        """What apps used of what they were granted, as their workers say: the one that wasted most first.

        >>> app = client.submit("true", company="acme", user="ann")
        >>> _ = client.wait(app)
        >>> [row.company for row in client.efficiency("company")]
        ['acme']
        """
        return self._do(_efficiency(by, {"company": company, "user": user}))

    def explain(self, app: Named) -> Explanation:
        """Why the app waits, or was admitted and placed as it was, from the log.

        >>> app = client.submit("true", company="acme", user="ann", hold=True)
        >>> why = client.explain(app).waits_for
        >>> why.cause, why.rule
        ('hold', 'J3')
        """
        return self._do(_explain(_id(app)))

    def log(self, after: int = 0, *, follow: bool = False) -> Iterator[Event]:
        """The events of the log after position `after`; with `follow` also those to come, without end.

        >>> events = list(client.log())
        >>> [event.seq for event in events] == list(range(1, len(events) + 1))
        True
        >>> following = client.log(events[-1].seq, follow=True)
        >>> app = client.submit("true", company="acme", user="ann", hold=True)
        >>> next(event.type for event in following if event.data.get("app") == app.app)
        'AppRegistered'
        """
        events = self.through.follow(after=after) if follow else self.through.log(after)
        return (convert(event, Event) for event in events)

    def send(self, command: Command) -> Receipt:
        """Carry out a command; returns once it is on disk.

        >>> client.send(fairlog.RegisterCompany(company="globex")).seq > 0
        True
        """
        return self.through.send(command)

    def send_many(self, commands: Sequence[Command]) -> list[Receipt | CommandRejected]:
        """Carry out commands in order, in batches; the result of a refused one is its refusal.

        >>> answers = client.send_many([fairlog.KillApp(app="nobody"), fairlog.RegisterCompany(company="initech")])
        >>> isinstance(answers[0], fairlog.errors.UnknownApp), answers[1].seq > 0
        (True, True)
        """
        return self.through.send_many(commands)

    def view(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 (JSON)
        """A view as JSON values: apps, app, workers, resources, companies, shares, limits, settings, cluster ….

        >>> client.view("settings")["placement"]
        'spread'
        """
        return self.through.view(name, **arguments)

    def _do(self, steps: _Steps[T]) -> T:
        got: Any = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, _Delay):
                time.sleep(step.seconds)
                got = None
            else:
                got = getattr(self.through, step.method)(*step.arguments, **step.named)


def _kill(app: str, task: int | None, reason: str) -> _Steps[Receipt]:
    command = KillApp(app=app, reason=reason) if task is None else CancelTask(app=app, task=task, reason=reason)
    receipt: Receipt = yield _Invocation("send", (command,))
    return receipt


def _requeue(app: str, task: int | None, reason: str) -> _Steps[Receipt]:
    executor = "" if task is None else _executor_of((yield from _tasks(app)), task)
    command = RequeueApp(app=app, reason=reason, task=task, executor=executor)
    receipt: Receipt = yield _Invocation("send", (command,))
    return receipt


def _executor_of(tasks: list[Task], task: int) -> str:
    """The executor that runs the task, "" if none does."""
    return next((found.executor or "" for found in tasks if found.task == task and found.state == "running"), "")


def _signal(app: str, signal: str, task: int | None, *, whole: bool, reason: str) -> _Steps[Receipt]:
    command = SignalApp(app=app, signal=signal.upper().removeprefix("SIG"), task=task, whole=whole, reason=reason)
    receipt: Receipt = yield _Invocation("send", (command,))
    return receipt


def _async_job(client: AsyncClient, app: Submitted, task: int | None = None) -> AsyncJob:
    job = AsyncJob(app=app.app, seq=app.seq, command_id=app.command_id, task=task)
    job.__dict__["client"] = client  # which is no part of what the job is
    return job


class AsyncClient:
    """As `Client`, for asyncio; an asynchronous context manager.

    >>> async def main():
    ...     async with fairlog.AsyncClient() as client:
    ...         app = await client.submit("echo hello", company="acme", user="ann")
    ...         return (await client.wait(app)).state
    >>> asyncio.run(main())
    'finished'

    Raises: NoCluster if there is none, BadCredentials.
    """

    def __init__(
        self,
        url: str | None = None,
        cluster: str | None = None,
        *,
        token: str | None = None,
        timeout_s: float = 30,
    ) -> None:
        found, token = _place(url, token)
        self.through: AsyncApiClient | StoreClient
        """What it speaks through; a store in threads."""
        if _is_store(found):
            self.through = _store_client(found, cluster, timeout_s)
        else:
            from fairlog.api.async_client import AsyncApiClient  # noqa: PLC0415 (its library takes long to load)

            self.through = AsyncApiClient(found, token=token, timeout_s=timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections.

        >>> async def main():
        ...     await fairlog.AsyncClient().close()
        >>> asyncio.run(main())
        """
        if isinstance(self.through, StoreClient):
            self.through.close()
        else:
            await self.through.close()

    async def submit(
        self,
        command: str | Sequence[str] | SubmitApp,
        *,
        company: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        script: str | bytes | None = None,
        **fields: Any,  # noqa: ANN401 (fields of `SubmitApp`)
    ) -> AsyncJob:
        """As `Client.submit`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         app = await client.submit(["true"], company="acme", user="ann", hold=True)
        ...         return app.seq > 0
        >>> asyncio.run(main())
        True
        """
        return _async_job(self, await self._do(_submit(command, (company, user), env, script, fields)))

    async def map_array(
        self,
        command: str | Sequence[str],
        *values: Iterable[object],
        at_once: int | None = None,
        company: str | None = None,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        **fields: Any,  # noqa: ANN401 (fields of `SubmitApp`)
    ) -> list[AsyncJob]:
        r"""As `Client.map_array`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         jobs = await client.map_array("echo", [1, 2], company="acme", user="ann")
        ...         return await asyncio.gather(*(job.result() for job in jobs))
        >>> asyncio.run(main())
        ['1\n', '2\n']
        """
        words, script, about = _mapped(command, values, at_once, fields)
        app = await self.submit(words, company=company, user=user, env=env, script=script, **about)
        return [_async_job(self, app, task) for task in range(len(indexes(about["array"])))]

    async def wait(self, app: Named, timeout: float | None = None, *, timeout_s: float | None = None) -> AppDetails:
        """As `Client.wait`; other coroutines run meanwhile.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         apps = [await client.submit("true", company="acme", user="ann") for _ in range(2)]
        ...         return [app.state for app in await asyncio.gather(*(client.wait(app) for app in apps))]
        >>> asyncio.run(main())
        ['finished', 'finished']
        """
        return await self._do(_wait(_id(app), _within(timeout, timeout_s)))

    async def kill(self, app: Named, *, task: int | None = None, reason: str = "") -> Receipt:
        """As `Client.kill`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         app = await client.submit("sleep 600", company="acme", user="ann")
        ...         await client.kill(app)
        ...         return (await client.wait(app)).state
        >>> asyncio.run(main())
        'killed'
        """
        return await self._do(_kill(_id(app), task, reason))

    async def signal(
        self, app: Named, signal: str, *, task: int | None = None, whole: bool = False, reason: str = ""
    ) -> Receipt:
        """As `Client.signal`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         app = await client.submit(["true"], company="acme", user="ann", hold=True)
        ...         await client.signal(app, "USR1")
        >>> asyncio.run(main())  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        fairlog.errors.InvalidCommand: app is pending: nothing of it runs that could get a signal
        """
        return await self._do(_signal(_id(app), signal, task, whole=whole, reason=reason))

    async def requeue(self, app: Named, *, task: int | None = None, reason: str = "") -> Receipt:
        """As `Client.requeue`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         app = await client.submit(["true"], company="acme", user="ann", hold=True)
        ...         await client.requeue(app)
        >>> asyncio.run(main())  # doctest: +IGNORE_EXCEPTION_DETAIL
        Traceback (most recent call last):
        fairlog.errors.NotAdmitted: app is pending already; only an app that waits for executors or runs can be put back
        """
        return await self._do(_requeue(_id(app), task, reason))

    async def logs(
        self,
        app: Named,
        *,
        task: int | None = None,
        driver: bool = False,
        stream: Stream | None = None,
        reason: str = "",
    ) -> str:
        r"""As `Client.logs`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         app = await client.submit("echo hello", company="acme", user="ann")
        ...         await client.wait(app)
        ...         return await client.logs(app)
        >>> asyncio.run(main())
        'hello\n'
        """
        return await self._do(_logs(_id(app), task, driver=driver, stream=stream, reason=reason))

    async def tasks(self, app: Named) -> list[Task]:
        """As `Client.tasks`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         app = await client.submit("true", company="acme", user="ann")
        ...         await client.wait(app)
        ...         return [task.state for task in await client.tasks(app)]
        >>> asyncio.run(main())
        ['succeeded']
        """
        return await self._do(_tasks(_id(app)))

    async def app(self, app: Named) -> AppDetails:
        """As `Client.app`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         app = await client.submit("true", company="acme", user="ann", hold=True)
        ...         return (await client.app(app)).on_hold
        >>> asyncio.run(main())
        True
        """
        return await self._do(_app(_id(app)))

    async def apps(
        self,
        *,
        everything: bool = False,
        company: str | None = None,
        user: str | None = None,
        name: str | None = None,
        state: str | None = None,
    ) -> list[App]:
        """As `Client.apps`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         await client.submit("true", company="acme", user="ann", name="weekly", hold=True)
        ...         return [app.reason for app in await client.apps(name="weekly")]
        >>> asyncio.run(main())
        ['hold']
        """
        wanted = {"company": company, "user": user, "name": name, "state": state}
        return await self._do(_apps(wanted, everything=everything))

    async def efficiency(
        self, by: Level = "user", *, company: str | None = None, user: str | None = None
    ) -> list[Efficiency]:
        """As `Client.efficiency`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         return [row.company for row in await client.efficiency("company")]
        >>> asyncio.run(main())
        ['acme']
        """
        return await self._do(_efficiency(by, {"company": company, "user": user}))

    async def explain(self, app: Named) -> Explanation:
        """As `Client.explain`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         app = await client.submit("true", company="acme", user="ann", hold=True)
        ...         return (await client.explain(app)).waits_for.rule
        >>> asyncio.run(main())
        'J3'
        """
        return await self._do(_explain(_id(app)))

    async def log(self, after: int = 0, *, follow: bool = False) -> AsyncIterator[Event]:
        """As `Client.log`, an asynchronous iterator.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         return [event.seq async for event in client.log()][:3]
        >>> asyncio.run(main())
        [1, 2, 3]
        """
        if isinstance(self.through, StoreClient):
            events = self.through.follow(after) if follow else self.through.log(after)
            while (found := await asyncio.to_thread(lambda: next(events, None))) is not None:
                yield convert(found, Event)
            return
        async for event in self.through.follow(after=after) if follow else self.through.log(after):
            yield convert(event, Event)

    async def send(self, command: Command) -> Receipt:
        """As `Client.send`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         return (await client.send(fairlog.RegisterCompany(company="hooli"))).seq > 0
        >>> asyncio.run(main())
        True
        """
        receipt: Receipt = await self._call(_Invocation("send", (command,)))
        return receipt

    async def send_many(self, commands: Sequence[Command]) -> list[Receipt | CommandRejected]:
        """As `Client.send_many`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         return len(await client.send_many([fairlog.KillApp(app="nobody")] * 2))
        >>> asyncio.run(main())
        2
        """
        answers: list[Receipt | CommandRejected] = await self._call(_Invocation("send_many", (commands,)))
        return answers

    async def view(self, name: str, **arguments: Any) -> Any:  # noqa: ANN401 (JSON)
        """As `Client.view`.

        >>> async def main():
        ...     async with fairlog.AsyncClient() as client:
        ...         return (await client.view("cluster"))["cores"]
        >>> asyncio.run(main())
        8
        """
        return await self._call(_Invocation("view", (name,), arguments))

    async def _call(self, step: _Invocation) -> Any:  # noqa: ANN401 (as the method)
        if isinstance(self.through, StoreClient):
            return await asyncio.to_thread(getattr(self.through, step.method), *step.arguments, **step.named)
        return await self.through.call(step.method, *step.arguments, **step.named)

    async def _do(self, steps: _Steps[T]) -> T:
        got: Any = None
        while True:
            try:
                step = steps.send(got)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, _Delay):
                await asyncio.sleep(step.seconds)
                got = None
            else:
                got = await self._call(step)
