# ruff: noqa: T201 - calls print
"""A cluster whose API the tests of engines use from their own process, and the library of calls they make."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from tests.integration.cli_rig import Shell
from tests.waiting import wait_until


class Site:
    """An `up` of two workers of 4 cores, for ann of acme."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        found = json.loads((shell.home / ".local/share/fairlog/up/up.json").read_text())
        self.api = f"http+unix:{found['socket']}"
        self.store: str = found["url"]
        self.asks: dict[str, Any] = {"company": "acme", "user": "ann", "api": self.api}

    def app(self, name: str) -> dict[str, Any]:
        """What the cluster says of an app."""
        return self.shell.app(name)

    def apps(self) -> list[dict[str, Any]]:
        """All apps, ended ones too."""
        found: list[dict[str, Any]] = json.loads(self.shell.ok("apps", "--all", "--json"))
        return found

    def wait_for_end(self, name: str) -> dict[str, Any]:
        """The app once it has ended and nothing of it runs."""
        wait_until(lambda: self.app(name)["endedAt"] and not self.app(name)["executors"], f"the end of {name}")
        return self.app(name)

    def processes_of(self, app: str) -> list[int]:
        """The processes of the app's executors' programs."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("FAIRLOG_APP_ID") == app and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except psutil.Error:
                continue
        return found

    def kill_master(self) -> None:
        """Kill the active master; a standby takes over."""
        master = wait_until(lambda: self.shell.status()["master"], "a master")
        os.kill(master["pid"], signal.SIGKILL)

    def kill_api(self) -> None:
        """Kill the API server; `up` starts another one."""
        socket = self.api.removeprefix("http+unix:")
        for process in psutil.process_iter(["cmdline"]):
            if "api" in (process.info["cmdline"] or ()) and socket in process.info["cmdline"]:
                process.kill()

    def audit(self) -> str:
        """What an audit of the log says; it must find nothing."""
        return self.shell.ok("audit")


@contextmanager
def site(folder: Path, *options: str, cells: bool = False, share: Sequence[str] = ()) -> Iterator[Site]:
    """A cluster that is stopped afterwards; `cells` show `share` besides the tests' folders."""
    shell = Shell(folder / "home")
    shell.env |= {"FAIRLOG_LEASE": "1.5", "FAIRLOG_LAUNCHER": "cell" if cells else "plain", "FAIRLOG_UNSAFE_PLAIN": "1"}
    packages = {str(Path(path).resolve()) for path in sys.path if "site-packages" in path}
    shell.env["FAIRLOG_SHARE"] = " ".join([os.environ.get("FAIRLOG_SHARE", ""), *sorted(packages), *share])
    shell.ok("up", "--detach", "--cores", "4", "--memory", "4G", "--masters", "2", *options)
    try:
        shell.ok("company", "add", "acme")
        yield Site(shell)
    finally:
        shell.run("down")


def where(_: object = None) -> int:
    """The process of the worker."""
    return os.getpid()


def nap(number: int, seconds: float = 0.02) -> int:
    """Return the number, after a while."""
    time.sleep(seconds)
    return number


def note(folder: str, number: int) -> int:
    """Write down that the call was made."""
    (Path(folder) / f"{number}.{time.monotonic_ns()}").touch()
    time.sleep(0.05)
    return number


def hold(folder: str, number: int) -> int:
    """Write down that the call was made, and wait until told to go on."""
    (Path(folder) / str(number)).touch()
    wait_until((Path(folder) / "go").exists, "the word to go on")
    return number


def span(cores: int) -> tuple[int, int, int]:
    """Take some time; when that was, in ns of this machine's clock, and the cores that the call was given."""
    began_ns = time.monotonic_ns()
    wait_until(lambda: time.monotonic_ns() - began_ns > 30_000_000, "its end")
    return began_ns, time.monotonic_ns(), cores


def complain(text: str) -> None:
    """Write to stdout without ending the line."""
    sys.stdout.write(text)


class _Circle:
    """What prints when it is collected, in whatever thread that happens."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        print("collected")


def print_anywhere(lines: int) -> str:
    """Print, while a signal's handler and what is collected print as well, and one handler leaves by an exception."""

    def late(*_: object) -> None:
        print("late")
        raise TimeoutError

    with suppress(TimeoutError):
        signal.signal(signal.SIGALRM, late)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        while True:
            print("x" * 40_000)
    signal.signal(signal.SIGALRM, lambda *_: print("still working"))
    signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
    for number in range(lines):
        _Circle()
        print("line", number)
    signal.setitimer(signal.ITIMER_REAL, 0)
    return "printed"


def print_afterwards(folder: str) -> None:
    """Print from a thread, once the call is over: its worker is told to go on by a file."""

    def print_then() -> None:
        wait_until((Path(folder) / "over").exists, "the end of the call")
        print("afterwards")
        (Path(folder) / "printed").touch()

    threading.Thread(target=print_then).start()


def burn(folder: str, number: int) -> None:
    """Wait for a process that goes on."""
    (Path(folder) / str(number)).touch()
    subprocess.run([sys.executable, "-c", "import time; time.sleep(600)"], check=False)


def die(_: object = None) -> None:
    """End the worker as a crash does."""
    os.kill(os.getpid(), signal.SIGKILL)


def divide(a: int, b: int) -> float:
    """Raise an exception of the caller's making."""
    return a / b


def eat(megabytes: int) -> int:
    """Use so much memory for a while."""
    held = bytearray(megabytes << 20)
    for start in range(0, len(held), 4096):
        held[start] = 1
    time.sleep(30)
    return len(held)


STATE: list[str] = []


def set_state(value: str) -> None:
    """Initialize a worker."""
    STATE.append(value)


def get_state() -> list[str]:
    """What the initializer has left in the worker."""
    return STATE
