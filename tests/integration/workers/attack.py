"""A task that tries to reach what is not its own. It prints as JSON what it got; everything in it is a finding.

Arguments: a number that marks the processes that it leaves behind, and the paths that it should not reach.
"""

import ctypes
import errno
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time

LOOK_S = 1.0
"""In this time the executor has looked at all processes."""
PROGRAMS = {"/proc", "/sys", "/usr", sys.prefix, sys.base_prefix}
mark, *forbidden = sys.argv[1:]
got: dict[str, object] = {}


def attempt(name: str, try_it: object) -> None:
    """Note what the attempt returned, unless it failed or returned nothing."""
    try:
        found = try_it()  # type: ignore[operator]
    except (OSError, ValueError, subprocess.SubprocessError):
        return
    if found:
        got[name] = found if isinstance(found, (str, list)) else True


def sockets() -> list[str]:
    found = []
    for folder, folders, files in os.walk("/"):
        folders[:] = [name for name in folders if os.path.join(folder, name) not in PROGRAMS]
        for name in files:
            path = os.path.join(folder, name)
            try:
                if not stat.S_ISSOCK(os.lstat(path).st_mode):
                    continue
                with socket.socket(socket.AF_UNIX) as line:
                    line.connect(path)
            except OSError:
                continue
            found.append(path)
    return found


def descriptors() -> list[str]:
    """What was left open for this process besides its standard streams: a folder of the machine leads out of a cell."""
    found = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
    return [f"{each} of {os.readlink(each)}" for each in found if os.path.exists(each)]


def others() -> list[int]:
    """Processes that this one can see, other than itself, its children and the first process of its cell."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal() and int(name) not in {1, os.getpid()}]


def environments() -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal() and int(name) != os.getpid():
            try:
                found.append(open(f"/proc/{name}/environ").read())
            except OSError:
                continue
    return [text for text in found if text]


def write(path: str) -> str:
    with open(path, "a") as file:
        file.write("x")
    return path


def read(path: str) -> str:
    if os.path.isdir(path):
        return ", ".join(os.listdir(path))
    with open(path, errors="replace") as file:
        return file.read(100)


def calls(name: str, *arguments: object) -> bool:
    return bool(ctypes.CDLL(None, use_errno=True)[name](*arguments) == 0)


CALLS = {
    "x86_64": {"clone": 56, "userfaultfd": 323, "bpf": 321, "add_key": 248, "keyctl": 250},
    "aarch64": {"clone": 220, "userfaultfd": 282, "bpf": 280, "add_key": 217, "keyctl": 219},
}[os.uname().machine]


def reaches(number: int, *arguments: object) -> bool:
    """Whether the kernel carries out the call, or would with better arguments."""
    library = ctypes.CDLL(None, use_errno=True)
    result = library.syscall(number, *arguments)
    if result == 0 and number == CALLS["clone"]:
        os._exit(0)
    return bool(result >= 0 or ctypes.get_errno() not in {errno.EPERM, errno.ENOSYS})


def kill_parent() -> bool:
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(0.1)
    return False


def groups() -> list[str]:
    """Control groups of others, whose names tell what they run."""
    return [os.path.join(folder, name) for folder, names, _ in os.walk("/sys/fs/cgroup") for name in names]


def leave_behind() -> None:
    """A daemon with an empty environment and a session of its own, forked twice; it runs on return.

    Its name is no text.
    """
    program = os.path.join(os.environ["FAIRLOG_SCRATCH"], "\udcff\udcfe")
    shutil.copy("/bin/sleep", program)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execve(program, ["sleep", mark], {})
        os._exit(0)
    os.close(writer)
    os.read(reader, 1)  # until the daemon has the environment that is its own
    os.wait()
    time.sleep(LOOK_S)


attempt("descriptors", descriptors)
leave_behind()
attempt("sockets", sockets)
attempt("environments", environments)
attempt("groups", groups)
attempt("signals", kill_parent)
attempt("tracing", lambda: calls("ptrace", 16, 1, None, None))
attempt("first process", lambda: open("/proc/1/mem", "rb").read(1) or os.listdir("/proc/1/fd"))
attempt("mounts", lambda: calls("mount", b"/", b"/tmp", None, 4096, None))
attempt("namespaces", lambda: calls("unshare", 0x10000000))
attempt("a child in a namespace of its own", lambda: reaches(CALLS["clone"], 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0))
attempt("clone3", lambda: reaches(435, 0, 0))
attempt("io_uring", lambda: reaches(425, 1, 0))
attempt("userfaultfd", lambda: reaches(CALLS["userfaultfd"], 1))
attempt("bpf", lambda: reaches(CALLS["bpf"], 0, 0, 0))
attempt("keys", lambda: reaches(CALLS["keyctl"], 0, -3, 0) or reaches(CALLS["add_key"], b"user", b"x", b"x", 1, -3))
for setting in ("sys/kernel/core_pattern", "sys/vm/drop_caches", "sysrq-trigger", "sys/kernel/modprobe"):
    attempt(f"setting {setting}", lambda: os.open(f"/proc/{setting}", os.O_WRONLY) > 0)
attempt("memory of the machine", lambda: open("/proc/kcore", "rb").read(1))
for place in ("/etc/ld.so.preload", "/etc/passwd", "/usr/bin/x", "/x", "/dev/x", os.environ["FAIRLOG_STOP_AT_FILE"]):
    attempt(f"write {place}", lambda: write(place))
for place in filter(None, sys.path):
    attempt(f"write into {place}", lambda: write(os.path.join(place, "x")))
for place in (*forbidden, "/root/.bashrc", "/home", "/etc/shadow"):
    attempt(f"read {place}", lambda: read(place))
    attempt(f"list {place}", lambda: os.listdir(place))
os.symlink("/etc/passwd", os.path.join(os.environ["FAIRLOG_SCRATCH"], "link"))
print("\x1b]0;title\x07" + json.dumps(got), flush=True)
