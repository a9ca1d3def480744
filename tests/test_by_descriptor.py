"""What runs as root opens, changes and deletes by descriptor: names may be links by then. What it names is listed here.

fairlog-launch runs `workers/launch_helper.py` as root, and with it the code of the other two. It also runs
`workers/cgroups.py` and `workers/gpus.py`, whose names are of groups and devices, which only root makes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OF_OS = (
    " access chdir chmod chown chroot execv execve getxattr lchown link listdir listxattr lstat makedirs mkdir mkfifo "
    "mknod open pathconf readlink remove removedirs removexattr rename renames replace rmdir scandir setxattr stat "
    "statvfs symlink truncate unlink utime walk "
)
OF_PATHS = (
    " bind chmod connect exists expanduser glob group hardlink_to is_dir is_fifo is_file is_mount is_socket is_symlink "
    "iterdir lchmod lstat mkdir open owner read_bytes read_text readlink rename resolve rglob rmdir samefile stat "
    "symlink_to touch unlink walk write_bytes write_text "
)
OTHERS = {"open", "read_private", "private_file", "private_folder", "write_private", "drafted", "remove_tree"}
LIBRARIES = ("glob.", "os.path.", "shutil.", "tempfile.")
DESCRIPTORS = {"dir_fd", "src_dir_fd"}
FOLLOW = {"os.chmod", "os.chown", "os.stat", "os.access", "os.utime"}
"""They follow a link also in a folder that is given by its descriptor, unless they are told not to."""
NAMED = {
    "workers/descriptors.py": {
        "_permit: os.chmod(f'/proc/self/fd/{place}', FOLDER)": "the descriptor itself",
        "empty: os.listdir(top)": "a descriptor",
        "empty: os.listdir(inner)": "a descriptor",
        "remove_tree: os.open(folder.parent, FOLDER_NOFOLLOW)": "a folder of an agent's own; the helper never does",
    },
    "workers/launch_helper.py": {
        "_share_of: Path(entry.removesuffix(':rw')).resolve()": "of the operator's file, read before it serves",
        "AccountMap.__init__: path.read_text()": "the operator's file, likewise",
        "LaunchServer.__init__: folder.mkdir(mode=457, parents=True, exist_ok=True)": "likewise, of the option",
        "LaunchServer.__init__: os.open(folder, FOLDER_NOFOLLOW)": "likewise",
        "LaunchServer.serve: path.parent.mkdir(mode=493, parents=True, exist_ok=True)": "likewise",
        "LaunchServer.serve: path.unlink(missing_ok=True)": "likewise",
        "LaunchServer.serve: listening.bind(str(path))": "likewise",
        "LaunchServer._records: os.listdir(self._cells_folder)": "a descriptor",
        "LaunchServer._start: tempfile.TemporaryFile()": "without a name",
    },
    "workers/private_files.py": {
        "_hides: os.access(path, os.R_OK)": "the helper looks at /etc only, where nobody else may write",
        "unreadable: entry.stat(follow_symlinks=False)": "likewise",
        "unreadable: os.scandir(folder)": "likewise",
    },
    "workers/sandbox.py": {
        "_interfaces: _INTERFACES.is_dir()": "the kernel's",
        "_interfaces: _INTERFACES.iterdir()": "the kernel's",
        "_interfaces: each.is_symlink()": "the kernel's",
        "_interfaces: each.resolve()": "the kernel's",
        "_interfaces: path.is_dir()": "the kernel's",
        "_command: path.resolve()": "fairlog's own settings",
        "_command: shutil.which('bwrap')": "a program of the system",
        "_command: Path(path).resolve()": "folders of the system",
        "_folder: os.open(named, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)": "with the rights of the account",
        "_folders: os.path.normpath(folder_of(pattern))": "the text; see `_folder`",
        "_groups: (_GROUPS / 'cgroup.controllers').exists()": "the kernel's file system",
        "_groups: _GROUPS.exists()": "likewise",
        "_hidden: path.resolve()": "with the rights of who asks",
        "_is_everybodys: each.stat()": "of an agent's own, without the rights of others; the helper never does",
        "_is_everybodys: folder.stat()": "likewise",
        "_is_swapped: folder.lstat()": "from the shared folder down, each below one where root alone may write",
        "_link: os.readlink(path)": "folders of the system",
        "_masks: path.is_dir()": "how bubblewrap hides it; what is there is not opened",
        "_mounted: path.exists()": "whether it need be kept; what is there is opened part by part",
        "_name_servers: os.path.isfile(real)": "a file of the system",
        "_name_servers: os.path.realpath(f'/{_NAMES}')": "likewise",
        "_shown_image.check: part.stat()": "below the descriptor, in folders in which only root can put anything",
        "_shown_image: (opened / _NAMES).is_file()": "below the descriptor, in a folder that the operator lists",
        "_shown_image: os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)": "with the rights of who asks",
        "_real: os.readlink(f'/proc/self/fd/{descriptor}')": "the descriptor itself",
        "_seen_at: path.exists()": "whether it need be hidden",
        "_shared: Path(entry.removesuffix(':rw')).expanduser()": "the text; see `os.open`",
        "_shared: os.open(path, os.O_PATH | os.O_CLOEXEC)": "with the rights of who asks",
        "_tells: os.access(path, os.R_OK)": "the kernel's file systems",
        "_tells: os.listdir(path)": "likewise",
        "_tells: os.path.isdir(path)": "likewise",
        "_why_not: Path(_filled(pattern, values)).resolve()": "with the rights of who asks",
        "_all_code: (here / room).resolve()": "fairlog's own code",
        "_all_code: Path(path).resolve()": "likewise",
        "own_code: path.is_dir()": "likewise",
        "private_files: Path(entry.removesuffix(':rw')).expanduser()": "of an agent's own; the helper never does",
        "private_files: Path(entry.removesuffix(':rw')).expanduser().resolve()": "likewise",
        "python_inside: os.path.realpath(sys.executable)": "fairlog's Python",
        "probe_cell: os.open('/', os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)": "the root folder",
        "probe_cell: os.path.realpath(sys.executable)": "fairlog's Python",
        "probe_cell: shutil.which('bwrap')": "a program of the system",
    },
}
"""What goes by a name as root, and why no program can make the name lead elsewhere."""


def by_name(source: str) -> Iterator[str]:
    """The calls that go by a name, or follow one in a folder: `function: call`."""
    for function, call in _calls(ast.parse(source), ()):
        name, given = ast.unparse(call.func), {keyword.arg for keyword in call.keywords}
        said, method = ast.unparse(call), name.rpartition(".")[2]
        within = bool(given & DESCRIPTORS)
        needs = "NOFOLLOW" if name == "os.open" else "follow_symlinks=False" if name in FOLLOW else ""
        follows = needs not in said
        of_os = name.startswith("os.") and f" {method} " in OF_OS and (not within or follows)
        of_paths = "." in name and not name.startswith(("os.", *LIBRARIES)) and f" {method} " in OF_PATHS
        if of_os or of_paths or name in OTHERS or name.startswith(LIBRARIES):
            yield f"{function}: {said}"


def _calls(node: ast.AST, within: tuple[str, ...]) -> Iterator[tuple[str, ast.Call]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        inside = (*within, child.name) if isinstance(child, ast.FunctionDef | ast.ClassDef) else within
        if isinstance(child, ast.Call):
            yield ".".join(within), child
        yield from _calls(child, inside if named else within)


@pytest.mark.parametrize("file", NAMED)
def test_root_goes_by_descriptor_but_for_what_nobody_else_can_swap(file: str) -> None:
    found = set(by_name((ROOT / file).read_text()))
    assert found - set(NAMED[file]) == set(), "open it by descriptor, with NOFOLLOW, or say here why the name is safe"
    assert set(NAMED[file]) - found == set(), "it is gone: take it out of the table"


@pytest.mark.parametrize(
    "line",
    [
        "os.chmod(name, 0o700, dir_fd=folder)",
        "os.stat(name, dir_fd=folder)",
        "os.open(name, os.O_RDONLY, dir_fd=folder)",
        "os.chown(path, 1, 1)",
        "path.write_text('x')",
        "Path('x').chmod(0o600)",
        "shutil.rmtree(path)",
        "tempfile.mkdtemp()",
        "open('x')",
    ],
)
def test_a_name_is_found(line: str) -> None:
    assert list(by_name(f"def f():\n    {line}\n"))


@pytest.mark.parametrize(
    "line",
    [
        "os.chmod(name, 0o700, dir_fd=folder, follow_symlinks=False)",
        "os.open(name, FOLDER_NOFOLLOW, dir_fd=folder)",
        "os.unlink(name, dir_fd=folder)",
        "os.rename(one, other, src_dir_fd=inner, dst_dir_fd=top)",
        "os.fchmod(descriptor, 0o700)",
        "'a'.replace('a', 'b')",
    ],
)
def test_a_descriptor_is_not(line: str) -> None:
    assert not list(by_name(f"def f():\n    {line}\n"))
