"""The users of the store: what each needs is allowed, and nothing else, on every server that this machine has."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from fairlog.api.addresses import UNIX
from fairlog.api.client import ApiClient
from fairlog.cli.main import main
from fairlog.local.store import bundled_server
from fairlog.watch.surroundings import audited_to, backed_up
from recovery.failover.master import run_master
from scheduler.model.commands import KillApp
from scheduler.model.errors import UnsuitableStore
from scheduler.store.acl import DEFAULT_OFF, ROLES, Role, acl_file, hash_of, new_password
from scheduler.store.connection import PASSWORD_FILE, connect
from scheduler.store.durability import check_store
from scheduler.store.eventlog import COMMIT_LUA, EventLog
from scheduler.store.keys import Keys
from scheduler.store.transient import NotDurable, in_words, passes
from tests.conftest import REDIS_SERVER
from tests.integration.cli_rig import Shell
from tests.integration.forked import Forked
from tests.integration.servers import DURABLE, replication, until
from tests.property.given import submission
from tests.unit.recorded import chain_of, put
from tests.waiting import HOPELESS_S, wait_until

CLUSTER = "prod.a_1"
KEYS = Keys(CLUSTER)
PASSWORDS = {role.user: new_password() for role in ROLES}
ADMIN = "user admin on nopass ~* &* +@all\n"


class Guarded:
    """A store with the ACL file, and a user of the test's own who may do everything."""

    def __init__(self, program: Path, folder: Path, *settings: str) -> None:
        self.folder = folder
        folder.mkdir()
        hashes = {user: hash_of(password) for user, password in PASSWORDS.items()}
        (folder / "users.acl").write_text(acl_file(CLUSTER, hashes) + ADMIN)
        self._socket = Path(f"/tmp/fl-{os.getpid()}-{os.urandom(3).hex()}.sock")  # noqa: S108 - a short path
        options = ("--port", "0", "--unixsocket", str(self._socket), "--dir", str(folder), *DURABLE, *settings)
        self._command = [str(program), *options, "--aclfile", str(folder / "users.acl")]
        self.admin = Redis.from_url(f"unix://admin:any@{self._socket}")
        self._start()

    def _start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log)
        until(self.admin.ping)

    def restart(self) -> None:
        """Stop the server as a service manager does, and start it again."""
        self._process.terminate()
        self._process.wait()
        self._start()

    def url(self, user: str) -> str:
        return f"unix://{user}:{PASSWORDS[user]}@{self._socket}"

    def refused(self) -> list[tuple[str, str]]:
        """What was refused so far, and to whom."""
        return [(str(entry["username"]), str(entry["object"])) for entry in self.admin.acl_log()]

    def close(self) -> None:
        self.admin.close()
        self._process.kill()
        self._process.wait()
        self._socket.unlink(missing_ok=True)


@pytest.fixture(params=["embedded", "redis-server"])
def program(request: pytest.FixtureRequest) -> Path:
    if request.param == "redis-server" and REDIS_SERVER is None:
        pytest.skip("no redis-server on the PATH")
    return bundled_server() if request.param == "embedded" else Path(str(REDIS_SERVER))


@pytest.fixture
def guarded(program: Path, tmp_path: Path) -> Iterator[Guarded]:
    with contextlib.closing(Guarded(program, tmp_path / "guarded")) as made:
        yield made


@pytest.mark.slow
def test_each_user_may_do_what_it_has_to(guarded: Guarded, tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    shell.env |= {"FAIRLOG_CLUSTER": CLUSTER, "FAIRLOG_STORE": guarded.url("fairlog-api"), "FAIRLOG_STANDBYS": "0"}
    archive = (tmp_path / "archive").as_uri()
    runs = {
        "fairlog-master": ("master", "--archive-allow", archive),
        "fairlog-auditor": ("audit", "--follow", "--checkpoints", str(tmp_path / "audit")),
    }
    with contextlib.ExitStack() as stack:
        for user, verb in runs.items():
            words = (*verb, "--store", guarded.url(user), "--cluster", CLUSTER)
            process = Forked(main, *words, environment=shell.env, log=tmp_path / f"{user}.log")
            stack.callback(process.wait, HOPELESS_S)
            stack.callback(process.terminate)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fl"))
        words = ("api", "--socket", f"{folder}/s", "--store", guarded.url("fairlog-api"), "--cluster", CLUSTER)
        process = Forked(main, *words, environment=shell.env, log=tmp_path / "api.log")
        stack.callback(process.wait, HOPELESS_S)
        stack.callback(process.terminate)
        offer = ("--id", "w1", "--cores", "8", "--memory", "8G", "--run-dir", str(tmp_path / "run"))
        words = ("worker", *offer, "--folders", "/", "--api", f"{UNIX}{folder}/s")
        process = Forked(main, *words, environment=shell.env, log=tmp_path / "worker.log")
        stack.callback(process.wait, HOPELESS_S)
        stack.callback(process.terminate)
        shell.ok("company", "add", "acme")
        app = shell.submit("--tasks", "3", "--env", "TOKEN=hush", "--", "sh", "-c", "echo $TOKEN")
        wait_until(lambda: guarded.refused() or shell.app(app)["state"] == "finished", "the app's end")
        assert guarded.refused() == []
        assert "hush" in shell.ok("logs", app)
        driven = shell.submit("--driver", "--wait", "--env", "TOKEN=hush", "--", "sh", "-c", "echo $TOKEN").split()[0]
        held = shell.submit("--tasks", "2", "--", "sleep", "600").split()[0]
        wait_until(lambda: shell.run("exec", held, "--", "echo", "there").out == "there\n", "its tasks")
        assert "hush" in shell.ok("logs", driven, "--driver")
        for verb in (
            *(("status",), ("apps", "--all"), ("app", app), ("shares",), ("workers",), ("explain", held)),
            *(("kill", held), ("settings",), ("log",), ("audit",), ("checkpoint",), ("status", "--ready")),
            ("settings", "set", f"archive_url={archive}", "archive_after_events=5", "archive_retain_events=1"),
        ):
            shell.ok(*verb)
        until(lambda: guarded.admin.llen(KEYS.archive))
        with ApiClient(f"{UNIX}{folder}/s", timeout_s=HOPELESS_S) as api:
            assert api.submit(submission("over-http"), {"TOKEN": "hush"}).seq
            assert {each["app"] for each in api.view("apps")} >= {"over-http"}
            assert api.send(KillApp(app="over-http")).seq
            assert b"hush" in api.output(app, 0)
            assert len(list(api.log())) > 10
        shell.env["FAIRLOG_STORE"] = guarded.url("fairlog-auditor")
        for verb in (("log",), ("audit",), ("checkpoint",), ("fairness",), ("archive", "--check"), ("backup", "b.gz")):
            shell.ok(*verb)
        for verb in (("status",), ("alerts", "--once")):
            shell.ok(*verb)
        until(lambda: (found := audited_to(guarded.admin, KEYS)) is not None and found.seq > 10)
        assert backed_up(guarded.admin, KEYS) is not None
        shell.env["FAIRLOG_STORE"] = guarded.url("fairlog-master")
        for verb in (("archive", "--retain", "1"), ("backup", "c.gz"), ("status",), ("drain", "w1")):
            shell.ok(*verb)
    assert guarded.refused() == []


FAMILIES = sorted(
    {
        *(value.removeprefix(KEYS.prefix) for value in vars(KEYS).values() if value.startswith(KEYS.prefix)),
        *(
            f"{name}:x"
            for name in [
                "grants",
                "snapshot",
                "reply",
                "sent",
                "secrets",
                "unclaimed",
                "tasks",
                "begun",
                "later",
                "output",
                "driver-output",
                "visit",
                "visited",
            ]
        ),
        *("inbox:acme", "reads", "rate:acme", "draft:1"),
    }
    - {""}
)
FOREIGN = ("fairlog:{other}:log", "fairlog:{prod.a_1", "other", "rq:queue:other", "rq:job:other__a__0", "rq:queues2")
NEVER = (
    *("flushall", "flushdb", "keys *", "scan 0", "randomkey", "dbsize", "config set dir /", "config rewrite", "save"),
    *("bgsave", "bgrewriteaof", "shutdown", "replicaof no one", "failover", "cluster info", "monitor", "debug sleep 0"),
    *("client kill id 1", "client list", "client pause 1", "module list", "module load x", "function list", "sync"),
    *(
        "function load x",
        "fcall f 0",
        "script flush",
        "script kill",
        "acl list",
        "acl setuser default on",
        "acl whoami",
    ),
    *("copy k k2", "migrate h 1 k 0 1", "restore k 0 x", "dump k", "sort k", "move k 1", "swapdb 0 1", "object help"),
    *("subscribe c", "psubscribe *", "publish c m", "latency reset", "slowlog get", "getdel k", "append k v"),
    *("memory doctor", "eval_ro x 0", "slaveof h 1", "lmove k k2 left left", "sunionstore k k2", "xgroup create k g 0"),
)


def _said(guarded: Guarded, *words: str) -> Any:
    return guarded.admin.execute_command(*words)  # type: ignore[no-untyped-call]


def _dry(guarded: Guarded, role: Role, *words: str) -> bool:
    """Whether the user may run the command. It is not run."""
    try:
        said = _said(guarded, "ACL", "DRYRUN", role.user, *words)
    except ResponseError:  # this server has no such command
        return False
    return bool(said == b"OK")


def _is_in(key: str, patterns: str) -> bool:
    return any(key == each or (each.endswith("*") and key.startswith(each[:-1])) for each in patterns.split())


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.user)
def test_each_user_reaches_the_keys_of_its_row_and_no_others(guarded: Guarded, role: Role) -> None:
    commands = role.commands.split()
    for family in FAMILIES:
        key = KEYS.prefix + family
        may_write, may_read = _is_in(family, role.write), _is_in(family, f"{role.write} {role.read}")
        assert _dry(guarded, role, "GET", key) == ("get" in commands and may_read), family
        assert _dry(guarded, role, "DEL", key) == ("del" in commands and may_write), family
        assert _dry(guarded, role, "EVAL", "x", "1", key) == ("eval" in commands and may_write), family
    for key in FOREIGN:
        for words in (("GET", key), ("DEL", key), ("EVAL", "x", "1", key)):
            assert not _dry(guarded, role, *words), key


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.user)
def test_no_user_may_run_what_no_part_of_fairlog_runs(guarded: Guarded, role: Role) -> None:
    key = f"{KEYS.prefix}inbox"
    for line in NEVER:
        words = [key if word in {"k", "k2"} else word for word in line.split()]
        if words[0] not in role.commands.split():
            assert not _dry(guarded, role, *words), line


def test_the_verb_prints_the_file_and_keeps_passwords(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    folder, given = tmp_path / "deep" / "passwords", "0" * 64
    words = ("store", "acl", "--cluster", CLUSTER, "--passwords", str(folder), "--hash", f"fairlog-replica={given}")
    first = shell.run(*words)
    assert first.out == shell.ok(*words), "passwords that are there are used again"
    named = {path.name: path.read_text().strip() for path in folder.iterdir()}
    hashes = {user: hash_of(password) for user, password in named.items()} | {"fairlog-replica": given}
    assert first.out == acl_file(CLUSTER, hashes)
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    assert not any(password in first.out + first.err for password in named.values())
    printed = shell.run("store", "acl")
    for role in ROLES:
        password = printed.err.partition(f"{role.user} ({role.purpose}): password ")[2].split()[0]
        assert f"user {role.user} on #{hash_of(password)} " in printed.out
    assert "write USER=SHA256" in shell.run("store", "acl", "--hash", "nobody=00").err
    assert "a cluster's name has" in shell.run("store", "acl", "--cluster", "a*").err


def test_without_a_user_nothing_is_answered(guarded: Guarded) -> None:
    url = "unix://" + guarded.url("fairlog-api").partition("@")[2]
    for forged in (url, url.replace("//", "//default@"), url.replace("//", "//fairlog-api:wrong@")):
        with connect(forged) as store, pytest.raises(RedisError):
            store.get(KEYS.log)


def test_a_changed_password_needs_no_restart(guarded: Guarded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masters and all others take it from the file when they connect again, and wait while it is wrong."""
    file, fresh = tmp_path / "password", new_password()
    file.write_text(PASSWORDS["fairlog-master"])
    monkeypatch.setenv(PASSWORD_FILE, str(file))
    url = guarded.url("fairlog-master").replace(f":{PASSWORDS['fairlog-master']}@", "@")
    with connect(url) as store:
        assert store.get(KEYS.log) is None
        _said(guarded, "ACL", "SETUSER", "fairlog-master", "resetpass", f">{fresh}")
        _said(guarded, "CLIENT", "KILL", "USER", "fairlog-master")
        wrong = "".join(_refusal(store) for _ in range(2))
        assert "the store does not accept the user or its password" in wrong
        file.unlink()
        assert f"{PASSWORD_FILE} names {file}, which cannot be read" in _refusal(store)
        file.write_text(f"{fresh}\n")
        assert store.get(KEYS.log) is None


def _refusal(store: Redis) -> str:
    """Why the store does not answer, which is waited out."""
    with pytest.raises(RedisError) as refused:
        store.get(KEYS.log)
    assert passes(refused.value)
    return in_words(refused.value)


def test_a_client_cannot_forge_what_only_masters_write(guarded: Guarded) -> None:
    for user in ("fairlog-api", "fairlog-auditor"):
        with connect(guarded.url(user)) as store:
            attacks = {
                "XADD": (KEYS.log, "1-0", "first", "1"),
                "SET": (KEYS.lease, "me"),
                "RPUSH": (KEYS.archive, "{}"),
                "EVAL": (COMMIT_LUA, 4, KEYS.log, KEYS.inbox, KEYS.heartbeats, KEYS.agents, "0-0", "", "", "", ""),
            }
            for command, words in attacks.items():
                with pytest.raises(RedisError, match="permission"):
                    store.execute_command(command, *words)
            with pytest.raises(RedisError, match=r"permission|can't access|can't run"):
                store.eval(f"return redis.call('SET', '{KEYS.lease}', 'me')", 0)
    assert guarded.admin.dbsize() == 0


def _entries(guarded: Guarded) -> int:
    """The number of the log's turns, of which one user reads all."""
    with connect(guarded.url("fairlog-auditor")) as store:
        return len(list(EventLog(store, KEYS).read()))


def test_a_restart_keeps_what_was_acknowledged_before_and_after_a_rewrite(guarded: Guarded) -> None:
    with connect(guarded.url("fairlog-master")) as store:
        log = EventLog(store, KEYS, durable=True)
        for turn, record in enumerate(chain_of(30), start=1):
            put(log, [record])
            if turn in {10, 20}:
                assert guarded.admin.bgrewriteaof()
                until(lambda: not guarded.admin.info("persistence")["aof_rewrite_in_progress"])
            if turn % 5 == 0:
                guarded.restart()
                assert _entries(guarded) == turn
    assert guarded.refused() == []


@pytest.mark.parametrize(
    "line", ["off resetpass resetchannels resetkeys -@all", "off resetpass ~* &* +@all -xadd", "off ~fairlog:* +@all"]
)
def test_a_store_that_would_come_back_empty_is_refused_with_the_line_that_it_needs(guarded: Guarded, line: str) -> None:
    _said(guarded, "ACL", "SETUSER", "default", "reset", *line.split())
    with pytest.raises(UnsuitableStore, match=re.escape(f"the line `{DEFAULT_OFF}`")):
        run_master(guarded.url("fairlog-master"), CLUSTER)
    with connect(guarded.url("fairlog-master")) as store:
        with pytest.raises(NotDurable, match=r"would come back from a restart without the log"):
            put(EventLog(store, KEYS, durable=True), chain_of(1))
        _said(guarded, "ACL", "SETUSER", *DEFAULT_OFF.removeprefix("user ").split())
        check_store(store)


@pytest.mark.parametrize("setting", ["", "appendonly no"])
def test_status_says_why_no_master_serves_from_a_store_that_may_lose_the_log(
    guarded: Guarded, tmp_path: Path, setting: str
) -> None:
    with connect(guarded.url("fairlog-master")) as store:
        put(EventLog(store, KEYS, durable=True), chain_of(1))
    shell = Shell(tmp_path / "home")
    shell.env |= {"FAIRLOG_CLUSTER": CLUSTER, "FAIRLOG_STORE": guarded.url("fairlog-master"), "FAIRLOG_STANDBYS": "0"}
    wrong = ["CONFIG", "SET", *setting.split()] if setting else ["ACL", "SETUSER", "default", "-@all"]
    _said(guarded, *wrong)
    [found] = shell.status()["health"]["conditions"]
    assert found["condition"] == "durability", "another master would not serve either"
    [line] = re.findall("run `((?:CONFIG SET|ACL SETUSER) [^`]+)`", found["do"])
    _said(guarded, *line.split())
    assert [each["condition"] for each in shell.status()["health"]["conditions"]] == ["no_master"]
    assert guarded.refused() == []


def test_a_log_that_a_restart_has_left_out_comes_back_by_the_right_line(guarded: Guarded) -> None:
    wrong = DEFAULT_OFF.replace("~* &* +@all", "resetchannels resetkeys -@all")
    with connect(guarded.url("fairlog-master")) as store:
        put(EventLog(store, KEYS), chain_of(5))
    users = guarded.folder / "users.acl"
    for line, other in ((DEFAULT_OFF, wrong), (wrong, DEFAULT_OFF)):
        users.write_text(users.read_text().replace(line, other))
        guarded.restart()
    assert _entries(guarded) == 5


def test_who_may_not_ask_what_the_default_user_may_is_told_to_print_the_users_again(guarded: Guarded) -> None:
    _said(guarded, "ACL", "SETUSER", "fairlog-master", "-acl|getuser")
    with pytest.raises(UnsuitableStore, match=r"refuses ACL GETUSER .* `fairlog store acl`"):
        run_master(guarded.url("fairlog-master"), CLUSTER)
    with connect(guarded.url("fairlog-master")) as store:
        check_store(store, serving=False)


def test_a_replica_follows_by_its_own_user(program: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.closing(Guarded(program, tmp_path / "first", "--port", port)))
        account = ("--masteruser", "fairlog-replica", "--masterauth", PASSWORDS["fairlog-replica"])
        follow = ("--replicaof", "127.0.0.1", port, "--repl-diskless-sync-delay", "0")
        second = stack.enter_context(contextlib.closing(Guarded(program, tmp_path / "second", *account, *follow)))
        until(lambda: replication(second.admin)["master_link_status"] == "up")
        assert first.refused() == []
