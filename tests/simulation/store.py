"""The store of a simulated cluster: fakeredis behind a network with faults, in virtual time.

A fault strikes a request: its sender dies before or after it, or is paused there; the answer is lost; the request
arrives late. The store may restart, or fail over to a replica that lacks a tail. The network replaces redis-py's
connections; fakeredis executes the commands.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import chain
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import fakeredis
import hiredis
from fakeredis._commands import Key
from fakeredis._core import CommandItem
from fakeredis._helpers import SimpleError
from fakeredis._msgs import FLAG_DO_NOT_CREATE, FLAG_LEAVE_EMPTY_VAL, FLAG_SKIP_CONVERT_TO_RESP2, WRONGTYPE_MSG
from fakeredis._socket import FakeSocket
from fakeredis._socket._resp import convert_to_resp2, extract_command
from fakeredis.commands_mixins import scripting_mixin
from fakeredis.commands_mixins.sortedset_mixin import ScoreTest
from fakeredis.model import Hash, XStream, ZSet
from fakeredis.model._stream import StreamEntryKey
from redis import Redis
from redis._parsers import Encoder
from redis.backoff import NoBackoff
from redis.client import Pipeline
from redis.exceptions import ConnectionError as StoreConnectionError
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as StoreTimeoutError
from redis.retry import Retry

from scheduler.store import eventlog
from scheduler.store.keys import Keys

if TYPE_CHECKING:
    import pytest

    from tests.simulation.loom import Actor, Loom

Fault = Literal["die before", "die after", "refuse", "lose the answer", "come late", "stop before", "stop after"]
FAULTS: tuple[Fault, ...] = (
    "die before",
    "die after",
    "refuse",
    "lose the answer",
    "come late",
    "stop before",
    "stop after",
)
KEYS = Keys("simulated")
EPOCH_MS = 1_700_000_000_000
ANSWER_WITHIN_MS = 5_000
"""The timeout of a request without an answer."""
_READS = {"xrange", "xrevrange", "xread", "xlen", "get", "exists", "hget", "hgetall", "hkeys", "hvals", "hlen", "hmget"}
_READS |= {"lrange", "llen", "smembers", "zrange", "zrangebyscore", "zcount", "zscore", "time", "scan", "xinfo stream"}
_CLOCKS = ("_socket._base", "commands_mixins.server_mixin", "model._stream", "_helpers", "_core._server")


class Plan(NamedTuple):
    """A fault that strikes an actor after this many of its calls to the store, or of its commits."""

    fault: Fault
    left: int
    at_commit: bool = False


class _Engine(FakeSocket):
    """fakeredis' commands without its sockets, and with scripts that are compiled once."""

    def obey(self, fields: list[bytes], now_ms: int) -> Any:
        """The answer to one command."""
        self._db.time = now_ms / 1000
        try:
            if fields[0] in _SCRIPTS:
                run = self.eval if fields[0] == b"EVAL" else self.evalsha
                return self._decode_result(run(fields[1], int(fields[2]), *fields[3:]))
            known = _commands.get(fields[0])
            if known is not None:
                arguments = fields[1:]
            else:
                name, arguments = extract_command(fields)
                _, known = self._name_to_func(name)
                if len(arguments) == len(fields) - 1:
                    _commands[fields[0]] = known
        except SimpleError as error:
            return self._decode_result(error)
        done = self._run(known, arguments)
        return done if type(done) in _PLAIN else self._decode_result(done)

    def _run(self, signature: Any, arguments: list[Any]) -> Any:
        """`_run_command` of fakeredis, without what only other kinds of servers and other clients need."""
        result: Any = self._at_once(signature.func_name, arguments)
        if result is not _SLOW:
            return result
        items: list[Any] | None = []
        try:
            items = self._apply(signature, arguments)
            if items is None:
                return signature.apply(arguments, self._db, self.version)[0]
            result = getattr(self, signature.func_name)(*arguments)
            if type(result) not in _PLAIN and FLAG_SKIP_CONVERT_TO_RESP2 not in signature.flags:
                result = convert_to_resp2(result)
        except SimpleError as error:
            result = error
        for item in items or ():
            if item._modified or item._expireat_modified:
                item.writeback(remove_empty_val=FLAG_LEAVE_EMPTY_VAL not in signature.flags)
        return result

    def _at_once(self, name: str, arguments: Sequence[bytes]) -> Any:
        """The answer to a frequent command, by fakeredis' name; `_SLOW` if fakeredis is to answer."""
        if (quick := _QUICK.get(name)) is not None:
            kind, none, answer = quick
            item = self._found(arguments[0])
            if item is None:
                return none
            return answer(item.value, *arguments[1:]) if type(item.value) is kind else _SLOW
        if name == "time":
            return self.time()
        if name == "type_cmd":
            return self._key_value_type(CommandItem(arguments[0], self._db, self._found(arguments[0])))
        return _SLOW

    def _apply(self, signature: Any, arguments: list[Any]) -> list[CommandItem] | None:
        """`Signature.apply`, in place, its types worked out once; None if it answers without the command."""
        keys, others = _shape(signature, len(arguments))
        db = self._db
        items = []
        for index, kind in keys:
            if kind.missing_return is not Key.UNSPECIFIED and self._found(arguments[index]) is None:
                return None
        for index, kind in others:
            arguments[index] = kind.decode(arguments[index])
        for index, kind in keys:
            name = arguments[index]
            found = self._found(name)
            type_ = kind.type_
            default = None
            if type_ is not None and found is not None and type(found.value) is not type_:
                raise SimpleError(WRONGTYPE_MSG)
            if type_ not in {None, bytes} and found is None and FLAG_DO_NOT_CREATE not in signature.flags:
                default = type_()
            arguments[index] = CommandItem(name, db, found, default=default)
            items.append(arguments[index])
        return items

    def xread(self, *arguments: bytes) -> Any:
        """What streams have after these entries; None if that is nothing, as is mostly so."""
        place = arguments.index(b"STREAMS")
        options, asked = arguments[:place], arguments[place + 1 :]
        count = options[options.index(b"COUNT") :][:2] if b"COUNT" in options else ()
        half = len(asked) // 2
        found = []
        for name, after in zip(asked[:half], asked[half:], strict=True):
            item = self._found(name)
            if item is not None and item.value.last_id > StreamEntryKey.parse_str(after):
                entries = _entries(item.value, b"(" + after, b"+", *count)
                if entries is _SLOW:
                    return super().xread(*arguments)
                if entries:
                    found.append([name, entries])
        return found or None

    def _found(self, name: bytes) -> Any:
        """What is at the key and has not expired."""
        item = self._db._dict.get(name)
        if item is None or item.expireat is None or not self._db.expired(item):
            return item
        del self._db._dict[name]
        return None

    def eval(self, script: bytes, numkeys: int, *rest: bytes) -> Any:
        """Run a script, as fakeredis does but for what it does anew each time."""
        server: Any = self._server
        server.script_cache[hashlib.sha1(script).hexdigest().encode()] = script  # noqa: S324 - Redis' own
        runtime = self._get_server_runtime(server)
        server._lua_current_socket[0] = self
        self._script_resp = 2
        server._lua_set_keys_argv(runtime.table_from(rest[:numkeys]), runtime.table_from(rest[numkeys:]))
        try:
            result = server.compiled(script)()
        except scripting_mixin.LUA_MODULE.LuaError as error:
            raise SimpleError(str(error)) from error
        finally:
            self._script_resp = None
        return self._convert_lua_result(result, nested=False)

    def _blocking(self, timeout: float | None, ask: Any, shape: Any = None) -> Any:  # noqa: ARG002 - likewise
        """The current answer; the caller does the waiting."""
        found = ask(True)  # noqa: FBT003 - likewise
        return found if shape is None else shape(found)

    def call(self, runtime: Any, op: bytes, arguments: tuple[Any, ...]) -> Any:
        """What `redis.call` answers to a script."""
        known = _commands.get(op)
        if known is None:
            _, known = self._name_to_func(op.decode().lower())
            _commands[op] = known
        done = self._run(known, [value if type(value) is bytes else _text(value) for value in arguments])
        if type(done) in _PLAIN:
            return False if done is None else done
        return _table(runtime, done) if type(done) is list else self._convert_redis_result(runtime, done)


@cache
def _shape(signature: Any, count: int) -> tuple[list[tuple[int, Any]], list[tuple[int, Any]]]:
    """Which arguments of a command are keys, and which must be parsed."""
    signature.check_arity([b""] * count, (8,))
    kinds = [*signature.fixed]
    kinds += [signature.repeat[number % len(signature.repeat)] for number in range(count - len(kinds))]
    numbered = [*enumerate(kinds)]
    keys = [(index, kind) for index, kind in numbered if isinstance(kind, Key)]
    return keys, [(index, kind) for index, kind in numbered if not isinstance(kind, Key) and kind is not bytes]


def _table(runtime: Any, answers: list[Any]) -> Any:
    """The table that a script is given for an answer of several parts."""
    parts = (_table(runtime, part) if type(part) is list else False if part is None else part for part in answers)
    return runtime.table_from([*parts])


def _text(value: Any) -> bytes:
    return value if type(value) is bytes else scripting_mixin._convert_redis_arg(value)


def _bytes(value: Any) -> bytes:
    return value if type(value) is bytes else str(value).encode()


@cache
def _lua() -> dict[str, Any]:
    """One Lua runtime for all runs of this process."""
    server: Any = fakeredis.FakeServer()
    runtime = _Engine(server, 0, client_class=fakeredis.FakeRedis)._get_server_runtime(server)
    engine = server._lua_current_socket
    redis_call = runtime.eval("function(call) redis.call = call end")
    redis_call(lambda op, *arguments: engine[0].call(runtime, op, arguments))
    loaded = runtime.eval("function(text) return assert(loadstring(text)) end")
    found = {name: value for name, value in vars(server).items() if name.startswith("_lua")}
    return {**found, "compiled": cache(loaded)}


class Link:
    """A connection: the requests without an answer."""

    retry = Retry(NoBackoff(), 0)
    db = 0
    encoder = Encoder("utf-8", "strict", False)  # type: ignore[no-untyped-call]  # noqa: FBT003 - as redis-py has it

    def __init__(self, store: Store) -> None:
        self._store = store
        self.owner = store.loom.current
        self.epoch = store.epoch
        self.answers: list[Any] = []
        self.flying: list[list[bytes]] = []
        self.lost = False
        self._block: tuple[list[bytes], int] | None = None

    def pack_commands(self, commands: Sequence[Sequence[Any]]) -> list[list[bytes]]:
        """The commands as they are sent."""
        return [[*map(_bytes, command)] for command in commands]

    def send_command(self, *command: Any, **_: Any) -> None:
        """Ask for one thing."""
        self._send([[*map(_bytes, command)]])

    def send_packed_command(self, packed: Any, **_: Any) -> None:
        """Ask for what `pack_commands` or hiredis made."""
        batch = []
        for part in packed:
            if isinstance(part, bytes):
                reader = hiredis.Reader()
                reader.feed(part)
                while (command := reader.gets()) is not False:
                    batch.append(command)
            else:
                batch.append(part)
        if batch:
            self._send(batch)

    def read_response(self, **_: Any) -> Any:
        """Wait for the next answer."""
        store, loom = self._store, self._store.loom
        if loom.current.doomed:
            loom.kill(loom.current)
        if store.switches():
            loom.pause()
        if self._block is not None:
            self._await()
        if self.flying:
            loom.wait(ANSWER_WITHIN_MS, lambda: not self.flying or self.epoch != store.epoch)
        if self.lost or self.flying or (not self.answers and self.epoch != store.epoch):
            self.answers.clear()
            self.lost = True
            raise (StoreTimeoutError if loom.random.random() < 0.3 else StoreConnectionError)("the answer never came")
        answer = self.answers.pop(0)
        if isinstance(answer, RedisError):
            raise answer
        return answer

    def disconnect(self, *_: Any, **__: Any) -> None:
        """Drop the connection; its requests may still arrive."""
        self.lost = True

    def should_reconnect(self) -> bool:
        """Never: each use has a connection of its own."""
        return False

    def _send(self, batch: list[list[bytes]]) -> None:  # noqa: C901, PLR0912 - a fault after the other
        store, loom = self._store, self._store.loom
        actor = self.owner = loom.current
        if actor.doomed:
            loom.kill(actor)
        if store.switches():
            loom.pause()
        fault = store.fault(actor, batch)
        if fault == "stop before":
            loom.stop(actor, store.stop_ms())
            loom.pause()
        if self.epoch != store.epoch or store.is_away(actor):
            self.lost = True
            raise StoreConnectionError("the store is away")
        match fault:
            case "die before" | "refuse":
                if len(batch) > 1 and batch[0] != [b"MULTI"]:
                    self._arrive(batch[: loom.random.randrange(len(batch))])
                self.lost = True
                if fault == "refuse":
                    raise StoreConnectionError("the connection was lost")
                loom.kill(actor)
            case "come late":
                self.flying = batch
                store.fly(self)
                return
            case _:
                pass
        block = store.blocks_ms(batch)
        if block is not None:
            self._block = batch[0], loom.now_ms + block
        else:
            self._arrive(batch)
        match fault:
            case "die after":
                loom.kill(actor)
            case "lose the answer":
                self.lost = True
            case "stop after":
                loom.stop(actor, store.stop_ms())
                loom.pause()
            case _:
                pass

    def land(self) -> None:
        """Have the delayed requests arrive."""
        batch, self.flying = self.flying, []
        if self.epoch == self._store.epoch and self._store.blocks_ms(batch) is None:
            self._arrive(batch)
        else:
            self.lost = True

    def _arrive(self, batch: Sequence[list[bytes]]) -> None:
        queued: list[list[bytes]] | None = None
        for fields in batch:
            name = fields[0].upper()
            if name == b"MULTI":
                queued = []
                self.answers.append(b"OK")
            elif name == b"EXEC" and queued is not None:
                self.answers.append([self._store.obey(each, self.owner) for each in queued])
                queued = None
            elif queued is not None:
                queued.append(fields)
                self.answers.append(b"QUEUED")
            else:
                self.answers.append(self._store.obey(fields, self.owner))

    def _await(self) -> None:
        assert self._block is not None
        (fields, until_ms), self._block = self._block, None
        store, loom = self._store, self._store.loom

        has_news, epoch = store.news(fields), self.epoch

        def ready() -> bool:
            return has_news() or epoch != store.epoch

        while loom.now_ms < until_ms or ready():
            loom.wait(until_ms - loom.now_ms, ready)
            if self.epoch != store.epoch or store.is_away(self.owner):
                self.lost = True
                return
            if has_news():
                answer = store.obey(fields, self.owner)
                if answer is not None:
                    self.answers.append(answer)
                    return
        self.answers.append([1, 0] if fields[0] == b"WAITAOF" else None)


class Pool:
    """Connections to the store; each use gets a new one."""

    cache = None
    connection_kwargs: dict[str, Any] = {"protocol": 2, "socket_timeout": 500}  # noqa: RUF012 - as redis-py has it

    def __init__(self, store: Store) -> None:
        self._store = store

    def get_connection(self, *_: Any, **__: Any) -> Link:
        """A connection, if the store can be reached.

        Raises: redis-py's ConnectionError.
        """
        store, actor = self._store, self._store.loom.current
        if not actor.doomed and store.is_away(actor):
            store.loom.wait(1)
            if store.is_away(actor):
                raise StoreConnectionError("the store cannot be reached")
        return Link(store)

    def release(self, link: Link) -> None:
        """Nothing: it is used once."""

    def get_encoder(self) -> Encoder:
        """How text becomes bytes."""
        return Link.encoder

    def get_protocol(self) -> int:
        """The version of RESP."""
        return 2


class Client(Redis):
    """A client of the simulated store, without redis-py's metrics and reconnections around each command."""

    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        link = self.connection_pool.get_connection()
        link.send_command(*arguments)  # type: ignore[no-untyped-call]
        return self.parse_response(link, arguments[0], **options)  # type: ignore[no-untyped-call]


class Store:
    """The server, its clock, its replicas, and the network in front of it."""

    def __init__(self, loom: Loom, *, switching: float) -> None:
        self.loom = loom
        self.log_key = KEYS.log.encode()
        self.skew_ms = 0
        self.epoch = 0
        self.away_until_ms = 0
        self.cut_off: dict[Actor, int] = {}
        self.plans: dict[Actor, Plan] = {}
        self.longest_stop_ms = 4_000
        self.struck: dict[str, int] = {}
        self.history: list[tuple[int, list[bytes]]] = []
        self.replicated = 0
        """How much of the history the replicas have."""
        self.replicas_away_until_ms = 0
        self.on_commit: Callable[[str], None] = lambda _: None
        commit = eventlog.COMMIT_LUA.encode()
        self._commits = (commit, hashlib.sha1(commit).hexdigest().encode())  # noqa: S324 - Redis' own
        self._switching = switching
        self._in_air: list[tuple[int, Link]] = []
        self._engine = self._new_engine()
        self.client = Client(connection_pool=Pool(self))  # type: ignore[arg-type]
        loom.on_pick = self._deliver

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Give fakeredis the time of the run."""
        clock = SimpleNamespace(time=lambda: self.ms / 1000)
        for module in _CLOCKS:
            patch.setattr(f"fakeredis.{module}.time", clock)
        patch.setattr(scripting_mixin, "_check_for_lua_globals", lambda *_: None)
        patch.setattr(Pipeline, "__del__", lambda _: None)  # else whoever is current sends for one that was killed

    @property
    def ms(self) -> int:
        """The store's clock."""
        return EPOCH_MS + self.loom.now_ms + self.skew_ms

    def value(self, key: str) -> Any:
        """The value of a key, without the network; None if there is none."""
        item = self._engine._db._dict.get(key.encode())
        return None if item is None else item.value

    def ask(self, *command: str | int | bytes) -> Any:
        """The answer to a command, without the network."""
        return self.obey([*map(_bytes, command)], self.loom.main)

    def switches(self) -> bool:
        """Whether the actor yields here."""
        return self.loom.random.random() < self._switching

    def stop_ms(self) -> int:
        """The duration of a pause."""
        return self.loom.random.randrange(50, self.longest_stop_ms)

    def is_away(self, actor: Actor) -> bool:
        """Whether the store is unreachable for the actor now."""
        now_ms = self.loom.now_ms
        return self.away_until_ms > now_ms or self.cut_off.get(actor, 0) > now_ms

    def fault(self, actor: Actor, batch: Sequence[list[bytes]]) -> Fault | None:
        """The fault of this call of the actor, if any."""
        plan = self.plans.get(actor)
        if plan is None or (plan.at_commit and not self._is_commit(batch[0])):
            return None
        if plan.left:
            self.plans[actor] = plan._replace(left=plan.left - 1)
            return None
        del self.plans[actor]
        self.struck[plan.fault] = self.struck.get(plan.fault, 0) + 1
        return plan.fault

    def _is_commit(self, fields: list[bytes]) -> bool:
        return fields[0] in _SCRIPTS and fields[1] in self._commits

    def fly(self, link: Link) -> None:
        """Have a request arrive later."""
        self._in_air.append((self.loom.now_ms + self.loom.random.randrange(1, 6_000), link))

    def obey(self, fields: list[bytes], actor: Actor) -> Any:
        """Execute a command that has arrived."""
        name = fields[0].lower()
        if name == b"waitaof":
            self.replicated = len(self.history)
            return [1, int(fields[2])]
        if name == b"info":
            return b"role:master\r\nmaster_replid:a\r\nmaster_replid2:b\r\n"
        answer = self._engine.obey(fields, self.ms)
        if name not in _READ_BYTES and not isinstance(answer, NoScriptError):  # else it would do something later
            self.history.append((self.ms, fields))
        if name in _SCRIPTS and self._is_commit(fields) and isinstance(answer, list) and answer[0] == 1:
            self.on_commit(actor.name)
        return answer

    def restart(self, for_ms: int) -> None:
        """Restart the server with all acknowledged data and without scripts."""
        self.epoch += 1
        self.away_until_ms = self.loom.now_ms + for_ms
        self._engine._server.script_cache.clear()

    def fail_over(self, for_ms: int, *, lag: int) -> None:
        """Fail over to a server that lacks up to `lag` commands, none of which an answer has promised."""
        self.restart(for_ms)
        kept = max(self.replicated, len(self.history) - lag)
        history, self.history = self.history[:kept], []
        skew_ms, now_ms = self.skew_ms, self.loom.now_ms
        self._engine = self._new_engine()
        for at_ms, fields in history:
            self.skew_ms = at_ms - EPOCH_MS - now_ms
            self._engine.obey(fields, at_ms)
        self.skew_ms = skew_ms
        self.history = history
        self._engine._server.script_cache.clear()

    def blocks_ms(self, batch: Sequence[list[bytes]]) -> int | None:
        """The longest time that a command blocks; None if it does not block."""
        fields = batch[0]
        match fields[0].upper():
            case b"BLPOP":
                return int(float(fields[-1]) * 1000)
            case b"BLMPOP":
                return int(float(fields[1]) * 1000)
            case b"WAITAOF":
                return int(fields[3])
            case b"XREAD" if b"BLOCK" in fields:
                return int(fields[fields.index(b"BLOCK") + 1])
            case _:
                return None

    def news(self, fields: list[bytes]) -> Callable[[], bool]:
        """A function that tells whether a blocking command has an answer."""
        found = self._engine._db._dict
        match fields[0].upper():
            case b"BLPOP":
                names = fields[1:-1]
                return lambda: any(name in found for name in names)
            case b"BLMPOP":
                return lambda: (item := found.get(fields[3])) is not None and bool(item.value)
            case b"WAITAOF":
                return lambda: self.replicas_away_until_ms <= self.loom.now_ms
            case _:
                log, seq = fields[-2], int(fields[-1].partition(b"-")[0])
                return lambda: (item := found.get(log)) is not None and item.value.last_id.ts > seq

    def _deliver(self) -> None:
        if self._in_air:
            now_ms = self.loom.now_ms
            for entry in [entry for entry in self._in_air if entry[0] <= now_ms]:
                self._in_air.remove(entry)
                entry[1].land()

    def _new_engine(self) -> _Engine:
        server: Any = fakeredis.FakeServer()
        vars(server).update(_lua())
        engine = _Engine(server, 0, client_class=fakeredis.FakeRedis)
        vars(engine._db)["notify_watch"] = lambda _: None  # nobody waits inside
        return engine


def _pushed(values: list[bytes], *more: bytes) -> int:
    values += more
    return len(values)


def _written(fields: Hash, *pairs: bytes) -> int:
    before = len(fields._values)
    fields._values.update(zip(pairs[::2], pairs[1::2], strict=True))
    return len(fields._values) - before


def _dropped(fields: Hash, *names: bytes) -> Any:
    if len(fields._values) <= len(names):
        return _SLOW  # the key may go too
    return sum(fields._values.pop(name, None) is not None for name in names)


def _raised(fields: Hash, name: bytes, by: bytes) -> Any:
    before = fields._values.get(name, b"0")
    if not (before.isdigit() and by.isdigit()):
        return _SLOW
    total = int(before) + int(by)
    fields._values[name] = b"%d" % total
    return total


def _ranked(members: ZSet, score: bytes, name: bytes, *more: bytes) -> Any:
    if more or not score.isdigit():
        return _SLOW
    known = name in members
    members.add(name, float(score))
    return int(not known)


def _all_ranked(members: ZSet, *asked: bytes) -> Any:
    return [name for _, name in members._byscore] if asked == (b"0", b"-1") else _SLOW


def _counted(members: ZSet, least: bytes, most: bytes) -> Any:
    find = members._byscore.bisect_left
    return max(0, find(ScoreTest.decode(most).upper_bound) - find(ScoreTest.decode(least).lower_bound))


def _entries(stream: XStream, start: bytes, end: bytes, *count: bytes) -> Any:
    """XRANGE with bounds as `-`, `+`, `7-0` and `(7-0`."""
    first, last = _place(stream, start, first=True), _place(stream, end, first=False)
    if first is None or last is None or (count and count[0] != b"COUNT"):
        return _SLOW
    if count:
        last = min(last, first + int(count[1]))
    values = stream._values_dict
    return [[b"%d-%d" % key, [*values[key]]] for key in stream._ids[first:last]]


def _place(stream: XStream, bound: bytes, *, first: bool) -> int | None:
    """Where in the stream's entries a range with this bound begins, or ends; None if the bound is of another form."""
    if bound in {b"-", b"+"}:
        return 0 if bound == b"-" else len(stream._ids)
    excluded = bound.startswith(b"(")
    milliseconds, dash, number = bound[excluded:].partition(b"-")
    if not (dash and milliseconds.isdigit() and number.isdigit()):
        return None
    find = bisect_right if excluded is first else bisect_left
    return find(stream._ids, (int(milliseconds), int(number)))


def _last_entry(stream: XStream, *asked: bytes) -> Any:
    """XREVRANGE, if it asks for the last entry only."""
    if asked != (b"+", b"-", b"COUNT", b"1"):
        return _SLOW
    return [[b"%d-%d" % key, [*stream._values_dict[key]]] for key in stream._ids[-1:]]


_SLOW = object()
_QUICK: dict[str, tuple[type, Any, Callable[..., Any]]] = {
    "get": (bytes, None, lambda value: value),
    "hexists": (Hash, 0, lambda fields, name: int(name in fields._values)),
    "hdel": (Hash, 0, _dropped),
    "hget": (Hash, None, lambda fields, name: fields._values.get(name)),
    "hgetall": (Hash, [], lambda fields: [*chain.from_iterable(fields._values.items())]),
    "hincrby": (Hash, _SLOW, _raised),
    "hlen": (Hash, 0, lambda fields: len(fields._values)),
    "hmget": (Hash, _SLOW, lambda fields, *names: [fields._values.get(name) for name in names]),
    "hset": (Hash, _SLOW, _written),
    "llen": (list, 0, len),
    "rpush": (list, _SLOW, _pushed),
    "xlen": (XStream, 0, len),
    "xrange": (XStream, [], _entries),
    "xrevrange": (XStream, [], _last_entry),
    "zadd": (ZSet, _SLOW, _ranked),
    "zcount": (ZSet, 0, _counted),
    "zrange": (ZSet, [], _all_ranked),
}
"""Frequent commands by fakeredis' names: type at the key, answer without a key, answer; `_SLOW`: ask fakeredis.

What fakeredis does for every command takes ten times as long. Fields of hashes do not expire here.
"""
_PLAIN = (bytes, int, type(None))
_READ_BYTES = {name.encode() for name in _READS}
_SCRIPTS = {b"eval", b"evalsha", b"EVAL", b"EVALSHA"}
_commands: dict[bytes, Any] = {}
"""The signatures of commands by their names, as they were sent."""
