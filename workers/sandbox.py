"""The sandbox of a cell: what tasks find in it, as a command line of bubblewrap.

Everything that is not named here is absent: homes, other folders of the machine, `/run` with its sockets, and devices.
`/tmp` and the executor's scratch folder are the cell's own. The app's folder can be written; fairlog's own code and
Python cannot, even inside that folder, because the agent runs them too.
"""

from __future__ import annotations

import functools
import importlib.util
import marshal
import os
import re
import shutil
import site
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import platformdirs
from pydantic import BaseModel, ConfigDict

from scheduler.model.errors import FairlogError
from scheduler.model.grants import Grant
from scheduler.model.outputs import NOWHERE, folder_of
from scheduler.service.folders import is_personal
from workers import seccomp, task_init
from workers.descriptors import FOLDER_NOFOLLOW
from workers.gpus import device_files, gpus_of
from workers.images import MACHINE, python_command, python_folders, shown
from workers.private_files import PrivateFiles, unreadable

INIT_INSIDE = "/run/fairlog/init.pyc"
SCRATCH_INSIDE = "/run/fairlog/scratch"
TOLD_INSIDE = "/run/fairlog/told"
SHARED_MEMORY_MB = 64
"""Size of `/dev/shm` where no memory limit of the kernel counts what is in it."""
_SHOWN = ("/usr", "/opt", "/nix", "/sys")
_MAY_BE_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYSTEM = tuple(map(Path, (*_SHOWN, *_MAY_BE_LINKS, "/etc")))
_NEVER = tuple(map(Path, ("/boot", "/dev", "/proc", "/run", "/sys")))
_UNNAMED = tuple(map(Path, ("/proc", "/sys", "/dev")))
"""An app's folder is not named through these: what is behind them depends on who looks."""
_TEMPORARY = tuple(map(Path, ("/", "/tmp", "/var/tmp")))  # noqa: S108 - the cell has its own
_ROOMS = ("fairlog", "recovery", "scheduler", "witness", "workers")
_KERNEL = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/proc/mtrr")
_SECRET = (
    *("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/kmsg", "/proc/sched_debug", "/proc/scsi", "/proc/timer_list"),
    *("/sys/firmware", "/sys/fs/bpf", "/sys/fs/pstore", "/sys/kernel/debug", "/sys/kernel/tracing"),
)
_NAMES = "etc/resolv.conf"
_GROUPS = Path("/sys/fs/cgroup")
_INTERFACES, _VIRTUAL = Path("/sys/class/net"), Path("/sys/devices/virtual/net")
_NAMESPACES = ("--unshare-user", "--disable-userns", "--unshare-pid", "--unshare-ipc", "--unshare-uts")
_TO_BECOME = ("--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
_PROBE_S = 20
Keep = Callable[[int], int]
"""Takes an opened descriptor that the sandbox needs, and returns it."""


class CellSettings(BaseModel):
    """What tasks find in a cell besides the system and fairlog's Python, as the worker's operator sets it.

    - `share`: paths that they can read, or write if `:rw` follows.
    - `folders`: where apps may have their folders, such as `/srv/{company}`; empty = anywhere but at home.
    - `images`: root folders by name, which apps may find in the place of the machine's system.
    - `hidden`: paths that they never find.
    - `guest`: the app is of another company than the first of the worker, and no `folders` tell them apart.
    """

    model_config = ConfigDict(frozen=True)

    share: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    images: dict[str, Path] = {}
    hidden: tuple[Path, ...] = ()
    guest: bool = False


class NoCell(FairlogError):
    """A cell cannot be started; the sentence says why."""


class _Bind(NamedTuple):
    source: Path
    """What the descriptor stands for, by its name without links."""
    inside: Path
    writable: bool
    descriptor: int | None = None
    """The opened source, so that it is what was checked; None for what is the system's or fairlog's own."""


class Identity(NamedTuple):
    """A user, as root becomes one: uid, gid and further groups."""

    uid: int
    gid: int
    groups: tuple[int, ...]


class ForOthers(NamedTuple):
    """What root goes by when it starts a cell for somebody: the tasks' account, the caller, and what is permitted.

    The app's folder is opened with the rights of `account`, what is shared with those of `caller`. `share` are real
    paths at or below which something may be shared, and whether it may be written.
    """

    account: Identity
    caller: Identity
    share: Mapping[Path, bool]


def sandbox_command(
    grant: Grant,
    settings: CellSettings,
    *,
    scratch: int,
    told: int | None,
    shared_memory_mb: int = SHARED_MEMORY_MB,
    group: Path | None = None,
    info: int | None = None,
    others: ForOthers | None = None,
) -> tuple[list[str], list[int]]:
    """The command line up to the program to run, and the descriptors that it needs, to be closed afterwards.

    `scratch` is the executor's own folder with `scratch` and `tmp`, `told` the one in which its tasks find what they
    are told; `group` is its control group. With `others`, root starts it, and its first process becomes the account.
    Raises: NoCell.
    """
    with ExitStack() as unless_used:
        kept: list[int] = []

        def keep(descriptor: int) -> int:
            kept.append(descriptor)
            unless_used.callback(os.close, descriptor)
            return descriptor

        command = _command(grant, settings, keep, scratch, told, shared_memory_mb, group, info, others)
        unless_used.pop_all()
    return command, kept


def _command(  # noqa: PLR0913, PLR0917 - those of `sandbox_command`
    grant: Grant,
    settings: CellSettings,
    keep: Keep,
    scratch: int,
    told: int | None,
    shared_memory_mb: int,
    group: Path | None,
    info: int | None,
    others: ForOthers | None,
) -> list[str]:
    """As `sandbox_command`; `keep` is told of each descriptor that is opened for it."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise NoCell("bubblewrap is not installed (apt install bubblewrap)")
    folders = _app_folders(grant, settings, keep, others)
    namespaces, kept = (_NAMESPACES, []) if others is None else (_NAMESPACES[2:], [*_TO_BECOME])
    alone = ["--unshare-net"] if grant.network == "none" else []
    command = [
        bwrap,
        *namespaces,
        *alone,
        "--as-pid-1",
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
        *kept,
    ]
    command += [*_filtered(keep), *([] if info is None else ["--info-fd", str(info)])]
    binds = _binds(grant, settings, keep, folders, others)
    if grant.image:
        command += [*_shown_image(grant, settings, keep, [bind.inside for bind in binds], others)]
    else:
        command += _system()
    command += [*_processes(), *_groups(group), *_interfaces(grant), "--dev", "/dev"]
    command += ["--perms", "1777", "--size", str(shared_memory_mb << 20), "--tmpfs", "/dev/shm"]  # noqa: S108 - its own
    command += _devices(grant)
    for path in ("/tmp", "/var/tmp"):  # noqa: S108
        command += ["--bind-fd", str(keep(_opened("tmp", scratch))), path]
    own = keep(_opened("scratch", scratch))
    command += [*_ways_to([Path(SCRATCH_INSIDE)]), "--bind-fd", str(own), SCRATCH_INSIDE]
    command += [] if told is None else ["--ro-bind-fd", str(told), TOLD_INSIDE]
    command += _ways_to([bind.inside for bind in binds])
    hidden = {*_hidden(settings, others), *(path.resolve() for path in _credentials())}
    for bind in binds:
        command += _mounted(bind, (*own_code(), *hidden), keep)
    system = () if grant.image else (*_SHOWN, "/etc")
    visible = [*binds, *(_Bind(Path(path).resolve(), Path(path), writable=False) for path in system)]
    for outermost in sorted(each for each in hidden if hidden.isdisjoint(each.parents)):
        command += _masks(dict.fromkeys(_seen_at(outermost, visible)))
    command += ["--perms", "0644", "--ro-bind-data", str(keep(_compiled_init())), INIT_INSIDE]
    return [*command, "--remount-ro", "/dev", "--remount-ro", "/"]


def _binds(
    grant: Grant, settings: CellSettings, keep: Keep, folders: Sequence[_Bind], others: ForOthers | None
) -> list[_Bind]:
    """What is shown besides the system: what the operator shares, the app's folders, and code that nobody may write."""
    shared = list(_shared(settings.share, keep, others))
    binds = [*shared, *(folder for folder in folders if not _is_shared(folder, shared, others))]
    for code in own_code():
        own = () if grant.image else (code,)
        binds += [_Bind(code, inside, writable=False) for inside in {*own, *_seen_at(code, binds)}]
    if grant.image:
        binds += [_Bind(path, Path(f"{MACHINE}{path}"), writable=False) for path in python_folders()]
    return binds


def _shown_image(
    grant: Grant, settings: CellSettings, keep: Keep, places: Sequence[Path], others: ForOthers | None
) -> Iterator[str]:
    """Arguments that show the app's image in the place of the system. Raises: NoCell."""
    folder = settings.images.get(grant.image)
    if folder is None:
        raise NoCell(f"this worker has no image {grant.image!r}; its operator starts it with --image")
    try:
        with acting_as(others and others.caller):
            descriptor = keep(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        raise NoCell(f"the folder of image {grant.image!r} cannot be opened: {error.strerror}") from None
    if others is not None:
        _check_permitted(_real(descriptor), str(folder), others, writable=False)
    opened = Path(f"/proc/self/fd/{descriptor}")
    names = _name_servers()
    made = [] if names is None or (opened / _NAMES).is_file() else [Path("/", _NAMES)]

    def check(part: Path) -> None:
        if others is not None and _is_written_by_others(part.stat()):
            raise NoCell(f"others than root can change image {grant.image!r} on this worker; give its folders to root")

    yield from shown(opened, [*places, *made], check)
    yield from ("--ro-bind-try", "/sys", "/sys")
    if names is not None:
        yield from ("--ro-bind", names, f"/{_NAMES}")


def _filtered(keep: Keep) -> list[str]:
    """Arguments that keep its processes from system calls that few need and attacks use."""
    file = seccomp.filter_file()
    return [] if file is None else ["--seccomp", str(keep(file))]


def _opened(name: str, within: int) -> int:
    """The descriptor of a folder in a folder, which is no link. Raises: NoCell."""
    try:
        return os.open(name, FOLDER_NOFOLLOW | os.O_PATH, dir_fd=within)
    except OSError as error:
        raise NoCell(f"the folder {name!r} was put out of its place while the cell was started: {error}") from None


def _compiled_init() -> int:
    """A file with the first process's code: to compile it takes a cell as long as all else of its start."""
    code = SourceFileLoader(task_init.__name__, str(task_init.__file__)).get_code(task_init.__name__)
    file = os.memfd_create("init")
    os.write(file, importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code))
    os.lseek(file, 0, os.SEEK_SET)
    return file


def _system() -> list[str]:
    """Arguments that show the system's folders."""
    command = []
    for path in _SHOWN:
        command += ["--ro-bind-try", path, path]
    for path in _MAY_BE_LINKS:
        target = _link(path)
        command += ["--ro-bind-try", path, path] if target is None else ["--symlink", target, path]
    return [*command, "--ro-bind", "/etc", "/etc", *_masks(_private_settings()), *_name_service()]


def _processes() -> list[str]:
    """Arguments that show the cell's own processes, and settings of the kernel that nobody can write there.

    Without capabilities, root may still write them.
    """
    command = ["--proc", "/proc"]
    for path in _KERNEL:
        command += ["--ro-bind-try", path, path]
    return [*command, *_masks(Path(path) for path in _SECRET if _tells(path))]


def _tells(path: str) -> bool:
    """Whether there is anything that this process can read."""
    return os.access(path, os.R_OK) and (not os.path.isdir(path) or bool(os.listdir(path)))  # noqa: PTH112, PTH208 - fast


def _groups(group: Path | None) -> list[str]:
    """Arguments that show the cell's control group in the place of all: their names tell what others run.

    Where there are controllers of version 1, the cell stays in our namespace of groups: Java 17 does not start its
    executors (NullPointerException) if it finds them mounted from above its own root.
    """
    if not _GROUPS.exists():
        return []
    shown = _masks([_GROUPS]) if group is None else ["--ro-bind", str(group), str(_GROUPS)]
    return [*(["--unshare-cgroup-try"] if (_GROUPS / "cgroup.controllers").exists() else []), *shown]


def _interfaces(grant: Grant) -> list[str]:
    """Arguments that hide the machine's network interfaces where the cell has a network of its own: files tell them."""
    if grant.network == "host":
        return []
    listed = [*_INTERFACES.iterdir()] if _INTERFACES.is_dir() else []
    at = dict.fromkeys([_INTERFACES, _VIRTUAL, *(each.resolve().parent for each in listed if each.is_symlink())])
    return _masks([path for path in at if path.is_dir()], permissions="0555")


def _devices(grant: Grant) -> list[str]:
    """Arguments that show the devices of the graphics processors that were granted, and of no other."""
    devices = list(map(str, device_files(gpus_of(grant.addresses))))
    return [argument for device in devices for argument in ("--dev-bind", device, device)]


def python_inside(grant: Grant, descriptor: int, become: Identity | None = None) -> list[str]:
    """The end of the command line: the first process in the cell, with the descriptor of its socket."""
    user = [] if become is None else list(map(str, (become.uid, become.gid, *become.groups)))
    python = python_command() if grant.image else [os.path.realpath(sys.executable)]
    return ["--", *python, "-I", "-S", INIT_INSIDE, str(descriptor), *user]


@functools.cache
def why_no_cell() -> str:
    """Why no cell can be started here, as a probe found; "" if one could."""
    return probe_cell(_PROBE_S)


def probe_cell(within_s: float) -> str:
    """Why no cell can be started now, as trying it shows, which takes `within_s` seconds at most; "" if one was."""
    if sys.platform != "linux":
        return "cells need Linux"
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return "bubblewrap is not installed"
    kept = [os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]

    def keep(descriptor: int) -> int:
        kept.append(descriptor)
        return descriptor

    probe = [bwrap, *_NAMESPACES, "--cap-drop", "ALL", *_filtered(keep), "--ro-bind-fd", str(kept[0]), "/"]
    probe += ["--proc", "/proc", "--dev", "/dev"]
    try:
        ran = subprocess.run(  # noqa: S603 - bubblewrap and our own Python
            [*probe, "--", os.path.realpath(sys.executable), "-I", "-S", "-c", "import os; os._exit(7)"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            pass_fds=kept,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap cannot be run: {error}"
    finally:
        for descriptor in kept:
            os.close(descriptor)
    if ran.returncode == 7:
        return ""
    said = ran.stderr.strip().splitlines()
    return said[-1] if said else f"bubblewrap ended with exit code {ran.returncode}"


@functools.cache
def own_code() -> tuple[Path, ...]:
    """The folders of fairlog's Python and of its code, which tasks can read."""
    found = _all_code()
    lasting = [path for path in found if not any(path.is_relative_to(folder) for folder in _SYSTEM) and path.is_dir()]
    return tuple(sorted(path for path in lasting if not any(other in path.parents for other in lasting)))


def _all_code() -> set[Path]:
    """As `own_code`, and what of it cells show as the system's."""
    prefixes = {Path(path).resolve() for path in (sys.prefix, sys.base_prefix, *site.getsitepackages())}
    here = Path(__file__).parents[1]
    return prefixes | {(here / room).resolve() for room in _ROOMS}


def private_files(share: Iterable[str]) -> PrivateFiles:
    """What cells hide of the system's folders, unless the operator shares it or fairlog's Python and code need it."""
    shared = {Path(entry.removesuffix(":rw")).expanduser().resolve() for entry in share}
    return PrivateFiles(shared | _all_code())


def socket_folder(url: str) -> list[Path]:
    """The folder of the Unix socket that the address names, which cells hide."""
    parts = urlsplit(url)
    return [Path(parts.path).parent] if "unix" in parts.scheme else []


def _folders(grant: Grant) -> Iterator[str]:
    """The folders that the app has named: the one to run in, and those of its output, unless they are below it.

    Raises: NoCell for a folder of output that ends with the cell.
    """
    if grant.cwd is not None:
        yield grant.cwd
    above = Path(grant.cwd or "/")
    told = grant.outputs
    for pattern in {} if told is None else dict.fromkeys((told.output, told.error)):
        folder = Path(os.path.normpath(folder_of(pattern)))
        if pattern in {"", NOWHERE} or (above not in _TEMPORARY and folder.is_relative_to(above)):
            continue
        if folder in _TEMPORARY:
            raise NoCell(
                f"the output {pattern!r} would end with the cell, which has a {folder} of its own; name a file in the "
                "app's folder or another one"
            )
        yield str(folder)


def _app_folders(grant: Grant, settings: CellSettings, keep: Keep, others: ForOthers | None) -> list[_Bind]:
    """The app's folders that are to be mounted, none of them within another: there the app could lay a link meanwhile.

    Raises: NoCell if one may not be the app's.
    """
    found = [_folder(named, grant, settings, keep, others) for named in _folders(grant)]
    each = list({folder.inside: folder for folder in found if folder is not None}.values())
    return [folder for folder in each if not any(_is_shown_by(other, folder) for other in each)]


def _is_shared(folder: _Bind, shared: Sequence[_Bind], others: ForOthers | None) -> bool:
    """Whether what is shared shows the folder such that it can be written.

    Where it does not, bubblewrap mounts the folder by its name. Raises: NoCell if somebody could put a link in the
    place of a folder above it meanwhile, which would lay it over something else.
    """
    above = [share for share in shared if folder.inside.is_relative_to(share.inside)]
    if any(share.writable and _is_shown_by(share, folder) for share in above):
        return True
    tasks = os.geteuid() if others is None else others.account.uid
    for share in above:
        way = folder.inside.relative_to(share.inside).parents
        if any(_is_swapped(share.inside / part, tasks) for part in way):
            raise NoCell(
                f"folder {str(folder.inside)!r} cannot be an app's: above it, below the shared {share.inside}, others "
                "than root may put a link in the place of a folder; share that with :rw"
            )
    return False


def _is_swapped(folder: Path, tasks: int) -> bool:
    """Whether others than root, or the user of tasks, may put something else in the place of what is in the folder."""
    about = folder.lstat()
    return _is_written_by_others(about) or about.st_uid == tasks or not stat.S_ISDIR(about.st_mode)


def _is_written_by_others(about: os.stat_result) -> bool:
    """Whether others than root may put something in the folder."""
    return bool(about.st_uid or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _is_shown_by(other: _Bind, folder: _Bind) -> bool:
    """Whether the folder lies within the other one. Raises: NoCell if it does so by its name only."""
    if folder is other or not folder.inside.is_relative_to(other.inside):
        return False
    if folder.source != other.source / folder.inside.relative_to(other.inside):
        raise NoCell(
            f"folder {str(folder.inside)!r} cannot be an app's: a link on the way to it leads elsewhere; name it by "
            "its own path"
        )
    return True


def _folder(named: str, grant: Grant, settings: CellSettings, keep: Keep, others: ForOthers | None) -> _Bind | None:
    """An app's folder; None if the cell shows it anyway, or has its own. Raises: NoCell if it may not be one."""
    if ".." in Path(named).parts or any(Path(named).is_relative_to(path) for path in _UNNAMED):
        raise NoCell(
            f"folder {named!r} cannot be an app's: behind '..', or in /proc, /sys or /dev, a cell may find something "
            "else; name it by its own path"
        )
    try:
        with acting_as(others and others.account):
            descriptor = keep(os.open(named, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except (OSError, ValueError):
        return None  # entering it fails with the reason
    real = _real(descriptor)
    if real in _TEMPORARY or any(real.is_relative_to(folder) for folder in (*_SYSTEM, *own_code())):
        if any(real.is_relative_to(path) for path in _hidden(settings, others)):
            raise NoCell(
                f"folder {named!r} cannot be an app's: it is fairlog's, or only the worker's user may read it; give "
                "every user of the machine the right to, or name it to the worker with --share"
            )
        return None
    why = _why_not(real, grant, settings, others)
    if why:
        raise NoCell(f"folder {named!r} cannot be an app's: {why}")
    return _Bind(real, Path(named), writable=True, descriptor=descriptor)


def _real(descriptor: int) -> Path:
    """What the descriptor stands for, by its name without links."""
    return Path(os.readlink(f"/proc/self/fd/{descriptor}"))  # noqa: PTH115 - no link of a file system


@contextmanager
def acting_as(user: Identity | None) -> Iterator[None]:
    """Have only the user's permissions, as root."""
    if user is None:
        yield
        return
    own = os.getgroups()
    os.setgroups(user.groups)
    os.setegid(user.gid)
    os.seteuid(user.uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(own)


def _hidden(settings: CellSettings, others: ForOthers | None) -> list[Path]:
    """What the settings hide, by their names without links."""
    with acting_as(others and others.caller):
        return [path.resolve() for path in settings.hidden]


def _why_not(real: Path, grant: Grant, settings: CellSettings, others: ForOthers | None) -> str:
    if any(real.is_relative_to(path) for path in (*_NEVER, *_hidden(settings, others))):
        return "it belongs to the system or to fairlog"
    if settings.folders:
        values = {"company": grant.company, "user": grant.user}
        with acting_as(others and others.caller):
            allowed = [Path(_filled(pattern, values)).resolve() for pattern in settings.folders]
        if not any(real.is_relative_to(path) for path in allowed):
            return f"this worker takes folders below {', '.join(map(str, allowed))} (--folders)"
        return ""
    if is_personal(real):
        return "it holds files of the worker's user; use a folder below it, or name it to the worker with --folders"
    if settings.guest and others is None and not _is_everybodys(real):
        return (
            "apps of another company ran on this worker first, and what its user may write is theirs; start it with "
            "--folders '/srv/{company}' to say where apps of each company may have theirs"
        )
    return ""


def _is_everybodys(folder: Path) -> bool:
    """Whether every user of the machine may read and write there, so that the worker's user gives nothing away."""
    above = [each.stat().st_mode & stat.S_IXOTH for each in folder.parents]
    return all(above) and folder.stat().st_mode & stat.S_IRWXO == stat.S_IRWXO


def _filled(pattern: str, values: Mapping[str, str]) -> str:
    """The pattern with its names replaced; a value never leads to another folder."""
    return re.sub(r"\{(company|user)\}", lambda name: values[name[1]].replace("/", "%2F").strip(".") or "-", pattern)


def _shared(share: Iterable[str], keep: Keep, others: ForOthers | None) -> Iterator[_Bind]:
    """What the operator shares, as far as it is there. Raises: NoCell for what root may not share."""
    for entry in share:
        path, writable = Path(entry.removesuffix(":rw")).expanduser().absolute(), entry.endswith(":rw")
        try:
            with acting_as(others and others.caller):
                descriptor = keep(os.open(path, os.O_PATH | os.O_CLOEXEC))
        except OSError:
            continue
        real = _real(descriptor)
        if others is not None:
            _check_permitted(real, entry, others, writable=writable)
        yield _Bind(real, path, writable=writable, descriptor=descriptor)


def _check_permitted(real: Path, named: str, others: ForOthers, *, writable: bool) -> None:
    """Raises: NoCell if root may not show it."""
    permitted = [write for listed, write in others.share.items() if real.is_relative_to(listed)]
    if not permitted or (writable and not any(permitted)):
        raise NoCell(
            f"fairlog-launch may not share {named}; its operator adds it to `share` of [cells] in its map, and "
            "starts it again"
        )


def _mounted(bind: _Bind, kept: Iterable[Path], keep: Keep) -> list[str]:
    """Arguments that show a path, such that tasks cannot put anything else in the place of the paths `kept` below it.

    They could rename a folder above one, but not a folder that is mounted.
    """
    if bind.descriptor is None:
        return ["--bind" if bind.writable else "--ro-bind", str(bind.source), str(bind.inside)]
    command = ["--bind-fd" if bind.writable else "--ro-bind-fd", str(bind.descriptor), str(bind.inside)]
    if bind.writable:
        below = [path.relative_to(bind.source) for path in kept if path.is_relative_to(bind.source) and path.exists()]
        opened = {Path(): bind.descriptor}
        for folder in sorted({folder for path in below for folder in path.parents if folder.name}):
            opened[folder] = keep(_opened(folder.name, opened[folder.parent]))
            command += ["--bind-fd", str(opened[folder]), str(bind.inside / folder)]
    return command


def _seen_at(path: Path, binds: Sequence[_Bind]) -> list[Path]:
    """Where the cell shows the path, if it exists."""
    sources = [(bind.source, bind.inside) for bind in binds] if path.exists() else []
    return [inside / path.relative_to(source) for source, inside in sources if path.is_relative_to(source)]


def _ways_to(paths: Iterable[Path]) -> list[str]:
    """Arguments that create the folders above the paths; bubblewrap would create them for root alone."""
    above = dict.fromkeys(folder for path in paths for folder in reversed(path.parents) if folder.name)
    return [argument for folder in above for argument in ("--perms", "0755", "--dir", str(folder))]


def _masks(paths: Iterable[Path], *, permissions: str = "0000") -> list[str]:
    """Arguments that put nothing in the place of each path; a folder then has these permissions."""
    return [
        argument
        for path in paths
        for argument in (
            ("--perms", permissions, "--tmpfs", str(path), "--remount-ro", str(path))
            if path.is_dir()
            else ("--ro-bind", os.devnull, str(path))
        )
    ]


def _link(path: str) -> str | None:
    """Where a link of the file system's root leads; None if it is none."""
    try:
        return os.readlink(path)  # noqa: PTH115 - as text
    except OSError:
        return None


def _name_service() -> list[str]:
    """Arguments that show the file with the name servers, where it is a link out of `/etc`, often into `/run`."""
    real = _name_servers()
    return [] if real is None or real.startswith("/etc/") else ["--ro-bind", real, real]


def _name_servers() -> str | None:
    """The file with the machine's name servers, by its name without links."""
    real = os.path.realpath(f"/{_NAMES}")
    return real if os.path.isfile(real) else None  # noqa: PTH113


@functools.cache
def _private_settings() -> tuple[Path, ...]:
    """What this process can read in `/etc` and others cannot."""
    return unreadable(Path("/etc"))


def _credentials() -> Iterator[Path]:
    """Files and folders of fairlog's that its tasks must not read, wherever they are."""
    directories = (platformdirs.user_config_path, platformdirs.user_data_path, platformdirs.user_state_path)
    yield from (directory("fairlog") for directory in directories)
    for name, value in os.environ.items():
        if name.startswith("FAIRLOG_") and name.endswith(("_KEYS", "_FILE", "_SOCKET")) and value.startswith("/"):
            yield Path(value)
