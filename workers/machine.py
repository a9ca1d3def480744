"""What this machine can do for tasks: which launchers work, which limits the kernel keeps, and what is missing."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from scheduler.model.errors import FairlogError
from workers.cgroups import controllers_of_version_1, limits_in_force, limits_to_be_had
from workers.sandbox import why_no_cell
from workers.seccomp import is_known_machine

Verdict = Literal["ok", "missing", "off"]
_USER_NAMESPACES = {
    "/proc/sys/kernel/unprivileged_userns_clone": "1",
    "/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "0",
}
_SYSTEMD = Path("/run/systemd/system")
"""Exists where systemd runs as the first process."""
_BUBBLEWRAP = "install bubblewrap 0.10 or later, or the distribution's 0.8 or 0.9 with its security updates (--bind-fd)"
_MOST_NAMESPACES = "/proc/sys/user/max_user_namespaces"


def helper_socket() -> Path:
    """Where the helper of the launcher `account` listens."""
    return Path(os.environ.get("FAIRLOG_LAUNCH_SOCKET", "/run/fairlog-launch/socket"))


class LauncherRefused(FairlogError):
    """The launcher asked for does not work here, or is not permitted."""


class Finding(NamedTuple):
    """What was found about one subject; `mend` is what to type where something is missing."""

    subject: str
    verdict: Verdict
    detail: str
    mend: str = ""


def choose_launcher(asked: str | None, *, unsafe_plain: bool) -> str:
    """The launcher to use: the one asked for, otherwise `cell` where it works and `plain` where that is permitted.

    Raises: Refused.
    """
    why_not = why_no_cell() if asked in {None, "cell"} else ""
    if asked == "cell" and why_not:
        raise LauncherRefused(
            f"--launcher cell does not work here: {why_not}; `fairlog worker --check` says how to mend that"
        )
    if asked == "account" and not helper_socket().exists():
        raise LauncherRefused(
            f"--launcher account needs fairlog-launch, which does not listen at {helper_socket()}; start it with "
            f"`{_account().mend}`"
        )
    chosen = asked or ("plain" if why_not else "cell")
    if chosen == "plain" and not os.geteuid() and not unsafe_plain:
        because = f"cells do not work here ({why_not}) and " if why_not else ""
        raise LauncherRefused(
            f"{because}tasks without a cell would run as root; run the worker as another user, see "
            "`fairlog worker --check` for what cells need, or permit it with --unsafe-plain"
        )
    return chosen


def plain_note() -> str:
    """What to say where a cluster for one person runs tasks without cells, because those do not work; "" elsewhere."""
    why = why_no_cell()
    if not why:
        return ""
    return f"note: tasks run without cells, and reach what you reach: {why}; see `fairlog worker --check`"


def isolation(launcher: str) -> dict[str, str]:
    """By what each limit of tasks is in force under the launcher, by name."""
    kept = limits_in_force()
    inside = launcher != "plain"
    counted = "rlimit" if inside and os.geteuid() else "none"
    return {
        "launcher": launcher,
        "memory": "cgroup" if "memory" in kept else "watched",
        "cpu": "cgroup" if "cpu" in kept else "none",
        "processes": "cgroup" if "pids" in kept else counted,
        "end": "cgroup" if "kill" in kept else ("namespace" if inside else "watched"),
    }


def check() -> list[Finding]:
    """What was found about this machine, in the order in which it matters."""
    return [_bubblewrap(), _cells(), _calls(), *_groups(), _user(), _account()]


def _bubblewrap() -> Finding:
    found = shutil.which("bwrap")
    if found is None:
        return Finding("bubblewrap", "missing", "not installed", "apt install bubblewrap")
    return Finding("bubblewrap", "ok", found)


def _cells() -> Finding:
    why = why_no_cell()
    if not why:
        return Finding("launcher cell", "ok", "a sandbox was started")
    return Finding("launcher cell", "missing", why, _mend_cells(why))


def _calls() -> Finding:
    if is_known_machine():
        return Finding("system calls", "ok", "a filter withholds those that attacks use")
    return Finding("system calls", "off", f"there is no filter for {platform.machine()}; cells may make them all")


def _mend_cells(why: str) -> str:
    if shutil.which("bwrap") is None:
        return "apt install bubblewrap"
    if "nknown option" in why:
        return _BUBBLEWRAP
    for path, wanted in _USER_NAMESPACES.items():
        file = Path(path)
        if file.exists() and file.read_text().strip() != wanted:
            return f"sysctl -w {'.'.join(file.parts[3:])}={wanted}"
    most = Path(_MOST_NAMESPACES)
    if most.exists() and most.read_text().strip() == "0":
        return "sysctl -w user.max_user_namespaces=15000"
    return "in a container: allow user namespaces (docker run --security-opt seccomp=unconfined …)"


def _groups() -> Iterator[Finding]:
    delegate = _typed(
        "systemctl edit fairlog-worker, with Delegate=yes below [Service]",
        "start the worker in a control group (version 2) that its user may write",
    )
    option = _typed("systemd.unified_cgroup_hierarchy=1", "cgroup_no_v1=all")
    version_2 = f"{option} on the kernel's command line, and restart the machine"
    kept = limits_to_be_had()
    elsewhere = controllers_of_version_1()
    processes = "only a limit of the user's counts processes" if os.geteuid() else "nothing limits those of root"
    for name, subject, otherwise in (
        ("memory", "memory limit", "the memory of tasks is added up twice a second instead"),
        ("cpu", "cpu limit", "tasks can use more than their cores"),
        ("pids", "process limit", processes),
        ("kill", "end by control group", "what runs is found by its cell instead"),
    ):
        if name in kept:
            yield Finding(subject, "ok", "kept by a control group")
        elif name in elsewhere:
            yield Finding(subject, "off", f"the machine has control groups of version 1 for it; {otherwise}", version_2)
        else:
            yield Finding(
                subject, "off", f"this process has no control group (version 2) for it; {otherwise}", delegate
            )


def _user() -> Finding:
    if os.geteuid():
        return Finding("user", "ok", f"uid {os.geteuid()}")
    mend = _typed("systemctl edit fairlog-worker, with User=fairlog", "start the worker as another user")
    return Finding("user", "off", "root; an agent needs no privileges", mend)


def _account() -> Finding:
    path = helper_socket()
    if path.exists():
        return Finding("launcher account", "ok", f"fairlog-launch listens at {path}")
    why = f"fairlog-launch does not listen at {path}"
    mend = _typed("systemctl enable --now fairlog-launch", "sudo fairlog-launch --map FILE --allow USER")
    return Finding("launcher account", "off", why, mend)


def _typed(with_systemd: str, otherwise: str) -> str:
    return with_systemd if _SYSTEMD.is_dir() else otherwise
