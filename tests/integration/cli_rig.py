"""`fairlog` as a process of its own, with a home folder of its own; and services as systemd starts them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import psutil
from prometheus_client.parser import text_string_to_metric_families

from fairlog.cli.main import main
from scheduler.service.keyring import KEYS_FILE, Keyring
from tests.integration.forked import Forked
from tests.waiting import HOPELESS_S

ROOT = Path(__file__).parents[2]


class Answer(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """What it printed, as JSON."""
        return json.loads(self.out)


class Shell:
    """Runs `fairlog` with `home` as its user's home, without the tester's environment.

    A lease lasts longer than any pause of a busy machine, so that a master serves until a test ends it.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self.env = {
            "HOME": str(home),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "LANG": "C.UTF-8",
            "TZ": "UTC",
            "FAIRLOG_LEASE": "60",
        }
        self.program: Callable[[], None] = main
        """What `run` runs."""
        home.mkdir(parents=True, exist_ok=True)

    def run(self, *arguments: str, text: str = "", folder: Path | None = None) -> Answer:
        """Run one `fairlog` command to its end, in a process forked from one that has loaded it; at home by default."""
        begun = folder or self.home
        with tempfile.TemporaryDirectory() as kept:
            given, out, err = (Path(kept) / name for name in ("in", "out", "err"))
            given.write_text(text, encoding="utf-8")
            streams = {"log": out, "errors": err, "given": given}
            process = Forked(self.program, *arguments, environment=self.env, folder=begun, **streams)
            try:
                code = process.wait(HOPELESS_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
            return _checked(Answer(code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8")))

    def ok(self, *arguments: str, **options: Any) -> str:
        """What a command that must succeed prints."""
        answer = self.run(*arguments, **options)
        assert answer.code == 0, answer
        return answer.out

    def submit(self, *arguments: str) -> str:
        """The id of an app that ann of acme submits."""
        return self.ok("submit", "--company", "acme", "--user", "ann", *arguments).splitlines()[0]

    def app(self, name: str) -> dict[str, Any]:
        """What `app --json` says of it."""
        found: dict[str, Any] = json.loads(self.ok("app", name, "--json"))
        return found

    def installed(self, *arguments: str) -> Answer:
        """As `run`, but started as the installed command is, without modules from the working folder."""
        return self._finish([sys.executable, "-P", "-m", "fairlog", *arguments])

    def sh(self, script: str) -> Answer:
        """A script in a real shell in which `fairlog` is a command."""
        return self._finish(["bash", "-c", f'fairlog() {{ "{sys.executable}" -m fairlog "$@"; }}\n{script}'])

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """A `fairlog` command that goes on."""
        return subprocess.Popen(
            [sys.executable, "-m", "fairlog", *arguments],
            env=self.env,
            cwd=self.home,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def status(self) -> Any:
        """What `status --json` prints, whether a master serves or not."""
        return self.run("status", "--json").json()

    def keyring(self) -> Keyring:
        """The keys of the `up` in this home."""
        return Keyring.load(next(self.home.rglob(KEYS_FILE)))

    def head(self) -> int:
        """The log's last position."""
        return int(self.status()["head"])

    def _finish(self, command: list[str]) -> Answer:
        done = subprocess.run(
            command,
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=HOPELESS_S,
            check=False,
        )
        return _checked(Answer(done.returncode, done.stdout, done.stderr))


def _checked(answer: Answer) -> Answer:
    assert "Traceback" not in answer.err, answer.err
    return answer


class Service:
    """A `fairlog` process that is told where systemd listens: what it says is heard, what it logs is kept.

    A context manager that leaves nothing of it.
    """

    def __init__(self, shell: Shell, *arguments: str, name: str = "", forked: bool = True) -> None:
        name = name or arguments[0]
        self.log = shell.home / f"{name}.log"
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._line.bind(str(shell.home / f"{name}.socket"))
        self._line.settimeout(HOPELESS_S)
        told = {"NOTIFY_SOCKET": str(shell.home / f"{name}.socket"), "FAIRLOG_LOG_FORMAT": "json"}
        env = {**shell.env, **told}
        self.process: subprocess.Popen[bytes] | Forked
        if forked:
            self.process = Forked(main, *arguments, environment=env, log=self.log)
            return
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "fairlog", *arguments]
            self.process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def hear(self, what: str) -> None:
        """Return once it has said `what`; fails with its log once it has ended, or after a hopeless time."""
        hopeless = time.monotonic() + HOPELESS_S
        self._line.settimeout(1)
        said = ""
        while said != what:
            with suppress(TimeoutError):
                said = self._line.recv(100).decode()
                continue
            code = self.process.poll()
            last = "".join(self.log.read_text().splitlines(keepends=True)[-20:])
            assert code is None, f"it ended with {code} before it said {what}:\n{last}"
            assert time.monotonic() < hopeless, f"it does not say {what}:\n{last}"

    def entries(self) -> list[dict[str, object]]:
        """What it has logged so far."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    def end(self) -> None:
        """Have nothing of it left."""
        self.process.kill()
        self.process.wait()
        self._line.close()


def tree_of(pid: int) -> list[psutil.Process]:
    """The process and everything that it started, directly or not."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def is_gone(process: psutil.Process) -> bool:
    """Whether the process has ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def scraped(port: int) -> dict[str, float]:
    """The metrics without labels that are served at this port; {} while nothing listens there."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=HOPELESS_S) as answer:
            families = list(text_string_to_metric_families(answer.read().decode()))
    except OSError:
        return {}
    return {sample.name: sample.value for family in families for sample in family.samples if not sample.labels}
