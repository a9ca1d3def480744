"""Images: what tasks find in the place of the machine's system (semantics W12)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from fairlog.local.store import EmbeddedStore
from tests.integration.workers.test_cells import as_root, helper, in_cells, own_store
from tests.integration.workers.test_executor import outputs
from tests.integration.workers.worker_rig import Rig
from workers.images import BadImage, digest_of, read_images, shown
from workers.sandbox import CellSettings

__all__ = ["helper", "own_store"]
ASK = """
. /etc/os-release
[ -e "$1" ] && echo "a file of the machine"
[ -e /etc/passwd ] && echo "a file of the machine"
(: > /etc/written) && echo written
echo "$ID"
"""
"""A program for any shell."""


def library_of(program: str) -> list[Path]:
    """The loader and the libraries of a program of the machine."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return [Path(path) for path in re.findall(r"(/\S+) \(0x", said)]


def unpacked(image: Path, shell: str) -> Path:
    """An image with a shell of the machine, and the C library that it needs."""
    for part in ("bin", "etc", "var/log", "tmp", "home/somebody"):
        (image / part).mkdir(parents=True)
    shutil.copy(os.path.realpath(shell), image / "bin" / Path(os.path.realpath(shell)).name)
    (image / "bin/sh").symlink_to(Path(os.path.realpath(shell)).name)
    for library in library_of(shell):
        (image / str(library.parent)[1:]).mkdir(parents=True, exist_ok=True)
        shutil.copy(library, image / str(library)[1:])
    (image / "etc/os-release").write_text(f"ID={image.name}\n")
    return image


def shells() -> dict[str, str]:
    """Shells of this machine: one of its C library, and one that brings its own, if there is one."""
    found = {"machine": "/bin/sh"}
    busybox = shutil.which("busybox")
    if busybox and not library_of(busybox):
        found["static"] = busybox
    return found


class Worker(NamedTuple):
    """A worker with images, each with a shell of this machine."""

    rig: Rig
    images: dict[str, Path]


@pytest.fixture(params=[pytest.param("cell", marks=in_cells), pytest.param("account", marks=as_root)])
def worker(request: pytest.FixtureRequest, own_store: EmbeddedStore, tmp_path: Path) -> Iterator[Worker]:
    folder = tmp_path / "images"
    if request.param == "account":
        folder = request.getfixturevalue("helper").parent / "shared" / tmp_path.name
    images = {name: unpacked(folder / name, shell) for name, shell in shells().items()}
    rig = Rig(own_store.url, tmp_path / "run")
    rig.launcher, rig.cells = request.param, CellSettings(images=images)
    yield Worker(rig, images)
    rig.close()


def test_tasks_find_the_files_of_their_image_and_nothing_of_the_machines(worker: Worker) -> None:
    rig, images = worker
    for name in images:
        app = Rig(rig.url, rig.files.root)
        app.launcher, app.cells = rig.launcher, rig.cells
        note = app.run(app.grant(("/bin/sh", "-c", ASK, "sh", __file__), image=name))
        assert (note.done, note.unstartable) == (True, "")
        lines = sorted(outputs(app, 1)[0].splitlines())
        assert (len(lines), name in lines, "Read-only" in "".join(lines)) == (2, True, True)
        app.close()


@in_cells
def test_an_app_with_an_image_has_its_folder_and_what_is_shared(own_store: EmbeddedStore, tmp_path: Path) -> None:
    work, shared = tmp_path / "work", tmp_path / "shared"
    for folder in (work, shared):
        folder.mkdir()
    (shared / "file").write_text("shared\n")
    rig = Rig(own_store.url, tmp_path / "run")
    rig.launcher = "cell"
    rig.cells = CellSettings(images={"shell": unpacked(tmp_path / "image", "/bin/sh")}, share=(str(shared),))
    do = f"read line < {shared}/file; echo $line; echo kept > made; echo $FAIRLOG_SCRATCH; : > $FAIRLOG_SCRATCH/own"
    note = rig.run(rig.grant(("sh", "-c", do), image="shell", cwd=str(work)))
    rig.close()
    assert note.done
    assert outputs(rig, 1) == ["shared\n/run/fairlog/scratch\n"]
    assert (work / "made").read_text() == "kept\n"


def test_a_folder_of_an_image_is_shown_in_parts_where_a_cell_has_something_in_it(tmp_path: Path) -> None:
    for part in ("home/ann/own", "home/bob", "srv", "etc", "var/tmp", "var/log", "run"):
        (tmp_path / part).mkdir(parents=True)
    (tmp_path / "etc/hosts").touch()
    (tmp_path / "lib").symlink_to("srv")
    arguments = list(shown(tmp_path, [Path("/home/ann/work"), Path("/etc/resolv.conf"), Path("/lib/x/y")], str))
    binds = {arguments[at + 2] for at, each in enumerate(arguments) if each == "--ro-bind"}
    folders = {arguments[at + 1] for at, each in enumerate(arguments) if each == "--dir"}
    assert binds == {"/home/ann/own", "/home/bob", "/srv", "/etc/hosts", "/var/log"}
    assert folders == {"/home", "/home/ann", "/etc", "/var"}
    assert "--symlink" not in arguments, "a link where the cell has a folder"


@pytest.mark.parametrize(
    ("launcher", "said"),
    [
        pytest.param("cell", "this worker has no image 'none'; its operator starts it with --image", marks=in_cells),
        ("plain", "run without cells, so it cannot show them the image 'none'"),
    ],
)
def test_an_image_that_a_worker_does_not_have_starts_nothing_there(
    own_store: EmbeddedStore, tmp_path: Path, launcher: str, said: str
) -> None:
    rig = Rig(own_store.url, tmp_path / "run")
    rig.launcher, rig.cells = launcher, CellSettings()
    note = rig.run(rig.grant(("true",), image="none"))
    rig.close()
    assert note.reason == "failed"
    assert said in note.unstartable


@as_root
def test_the_helper_shows_no_image_that_its_operator_does_not_share(
    own_store: EmbeddedStore, tmp_path: Path, helper: Path
) -> None:
    assert helper
    rig = Rig(own_store.url, tmp_path / "run")
    rig.launcher, rig.cells = "account", CellSettings(images={"mine": unpacked(tmp_path / "mine", "/bin/sh")})
    note = rig.run(rig.grant(("true",), image="mine"))
    rig.close()
    assert "fairlog-launch may not share" in note.unstartable


@as_root
@pytest.mark.parametrize("part", [".", "var"])
def test_the_helper_shows_no_image_in_which_others_than_root_can_put_something(
    own_store: EmbeddedStore, tmp_path: Path, helper: Path, part: str
) -> None:
    """They could lay a link there, which root would follow."""
    image = unpacked(helper.parent / "shared" / tmp_path.name, "/bin/sh")
    (image / part).chmod(0o777)
    rig = Rig(own_store.url, tmp_path / "run")
    rig.launcher, rig.cells = "account", CellSettings(images={"mine": image})
    note = rig.run(rig.grant(("true",), image="mine"))
    rig.close()
    assert "others than root can change image 'mine'" in note.unstartable


def test_a_digest_tells_images_apart_and_a_copy_from_none(tmp_path: Path) -> None:
    image = unpacked(tmp_path / "one", "/bin/sh")
    copy = tmp_path / "two"
    shutil.copytree(image, copy, symlinks=True)
    assert digest_of(image) == digest_of(copy)
    (copy / "etc/hosts").write_text("")
    changed = digest_of(copy)
    (copy / "etc/hosts").write_text("x")
    assert len({digest_of(image), changed, digest_of(copy)}) == 3


@pytest.mark.parametrize("named", ["alpine", "=/", "a b=/", "alpine=", "~=/"])
def test_an_option_that_names_no_image_is_refused(named: str) -> None:
    with pytest.raises(BadImage):
        read_images([named])


def test_a_folder_without_a_system_and_a_name_given_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadImage, match="neither usr nor bin nor lib"):
        read_images([f"mine={tmp_path}"])
    with pytest.raises(BadImage, match="twice"):
        read_images([f"mine={unpacked(tmp_path / 'a', '/bin/sh')}", "mine=/"])
