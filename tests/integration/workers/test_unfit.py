"""A worker that can start nothing: it is unwell, no app fails for that, and it takes work again once it can (W11)."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fairlog.local.store import EmbeddedStore
from scheduler.model.commands import UndrainWorker
from scheduler.model.events import AppRemoved, ExecutorRemoved
from scheduler.service.child import Forked
from scheduler.service.private import write_private
from tests.integration.disks import filled
from tests.integration.workers.test_agent import Cluster
from tests.integration.workers.worker_rig import ONE_STORE
from tests.waiting import wait_until
from workers import fitness, forkserver
from workers.agent import run_agent
from workers.offer import Offer
from workers.rundir import RunDir
from workers.sandbox import why_no_cell

pytestmark = ONE_STORE
CELLS = pytest.mark.skipif(bool(why_no_cell()), reason="cells do not work here")


@pytest.fixture
def cluster(store: EmbeddedStore, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(store, tmp_path) as running:
        yield running


class Fault(NamedTuple):
    """What spoils a worker whose run folder is on a small disk, and mends it; how it says so."""

    spoil: Callable[[Path], object]
    mend: Callable[[Path], object]
    says: str
    launcher: str = "plain"


def use_all_inodes(disk: Path) -> None:
    (disk / "many").mkdir()
    with suppress(OSError):
        for number in range(10_000):
            (disk / "many" / str(number)).touch()
    with pytest.raises(OSError, match="No space left"):
        (disk / "one-more").touch()


def sick(disk: Path) -> Path:
    """Beside the small disk; while it is there, `run_spoiled` keeps from the agent what the test is about."""
    return disk.parent / "sick"


def refusing(really: Callable[..., Any], disk: Path, number: int) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if sick(disk).exists():
            raise OSError(number, os.strerror(number))
        return really(*arguments, **named)

    return call


def run_spoiled(url: str, cluster: str, offer: Offer, disk: Path, kind: str) -> None:
    """An agent whose machine has one fault of a kind while there is the file."""
    patch = pytest.MonkeyPatch()
    if kind == "fork":
        for name in ("_launch", "_try"):
            real = getattr(forkserver._ForkServer, name)
            patch.setattr(forkserver._ForkServer, name, refusing(real, disk, errno.EAGAIN))
    elif kind == "read-only":  # as a file system is after an error: nobody may make it so while files are open
        patch.setattr("workers.rundir.write_private", refusing(write_private, disk, errno.EROFS))
    elif kind == "groups":
        patch.setattr(fitness, "can_make_groups", lambda: not sick(disk).exists())
    elif kind == "first":
        patch.setattr("workers.launchers.Forked", refusing(Forked, disk, errno.ENOMEM))
    elif kind == "lock":
        patch.setattr(RunDir, "name_holder", refusing(RunDir.name_holder, disk, errno.EIO))
    elif kind == "bubblewrap":
        shown = disk.parent / "bin"
        patch.setenv("PATH", str(shown))
    run_agent(url, cluster, [offer])


def make_sick(disk: Path) -> None:
    sick(disk).touch()


def make_well(disk: Path) -> None:
    sick(disk).unlink()


def hide_bubblewrap(disk: Path) -> None:
    (disk.parent / "bin" / "bwrap").unlink()


def show_bubblewrap(disk: Path) -> None:
    (disk.parent / "bin").mkdir(exist_ok=True)
    (disk.parent / "bin" / "bwrap").symlink_to(str(shutil.which("bwrap")))


FULL = "nothing can be written to its run folder: No space left on device"
FAULTS: Mapping[str, Fault] = {
    "full": Fault(partial(filled, left=0), lambda disk: (disk / "fills-it").unlink(), FULL),
    "inodes": Fault(use_all_inodes, lambda disk: shutil.rmtree(disk / "many"), FULL),
    "read-only": Fault(make_sick, make_well, "nothing can be written to its run folder: Read-only file system"),
    "fork": Fault(make_sick, make_well, "nothing can be started: Resource temporarily unavailable"),
    "first": Fault(make_sick, make_well, "nothing can be started: Cannot allocate memory"),
    "lock": Fault(make_sick, make_well, "nothing can be started: Input/output error"),
    "groups": Fault(make_sick, make_well, "no control group can be made any more for what it starts"),
    "bubblewrap": Fault(hide_bubblewrap, show_bubblewrap, "bubblewrap is not installed any more", "cell"),
}


def spoiled(cluster: Cluster, disk: Path, kind: str) -> Fault:
    """The worker w1, with its run folder on the disk, spoiled."""
    fault = FAULTS[kind]
    offer = cluster.offer().model_copy(update={"run_dir": disk / "run", "launcher": fault.launcher})
    if kind == "bubblewrap":
        show_bubblewrap(disk)
    cluster.fork(partial(run_spoiled, cluster.store.url, cluster.name, offer, disk, kind))
    wait_until(lambda: cluster.pid_of("w1"), "the agent")
    fault.spoil(disk)
    return fault


def found(cluster: Cluster, worker: str = "w1") -> Any:
    return next(each for each in cluster.client.view("workers") if each["worker"] == worker)


def removed(cluster: Cluster, kind: type[Any], reason: str) -> list[Any]:
    return [event for event in cluster.events() if isinstance(event, kind) and event.reason == reason]


@pytest.mark.parametrize("kind", [pytest.param(each, marks=CELLS) if each == "bubblewrap" else each for each in FAULTS])
def test_no_app_fails_where_nothing_can_be_started(cluster: Cluster, disks: Callable[..., Path], kind: str) -> None:
    disk = disks("small", 8, "nr_inodes=600")
    fault = spoiled(cluster, disk, kind)
    app = cluster.submit(("/bin/true",))
    wait_until(lambda: found(cluster)["unwell"], "a worker that is unwell")
    assert found(cluster)["reason"] == fault.says
    later = cluster.submit(("/bin/true",))
    fault.mend(disk)
    assert [cluster.end_of(each)["state"] for each in (app, later)] == ["finished", "finished"]
    assert (found(cluster)["status"], found(cluster)["unwell"]) == ("alive", False)
    assert removed(cluster, ExecutorRemoved, "failed") == []
    for event in removed(cluster, ExecutorRemoved, "killed"):
        assert event.detail == "worker w1 can start nothing at present"


def test_what_a_spoiled_worker_was_to_start_goes_to_another_one(cluster: Cluster, disks: Callable[..., Path]) -> None:
    """An operator who takes it back unmended finds it unwell at once."""
    spoiled(cluster, disks("small", 8), "full")
    app = cluster.submit(("/bin/true",))
    wait_until(lambda: found(cluster)["unwell"], "a worker that is unwell")
    cluster.agent(cluster.offer("w2"))
    assert cluster.end_of(app)["state"] == "finished"
    cluster.client.send(UndrainWorker(worker="w1"))
    more = [cluster.submit(("/bin/true",)) for _ in range(4)]
    assert {cluster.end_of(each)["state"] for each in more} == {"finished"}
    wait_until(lambda: found(cluster)["unwell"], "a worker that is unwell again")
    assert removed(cluster, ExecutorRemoved, "failed") == []


@pytest.mark.parametrize("kind", ["full", "first"])
def test_a_driver_waits_for_its_spoiled_worker(cluster: Cluster, disks: Callable[..., Path], kind: str) -> None:
    disk = disks("small", 8)
    fault = spoiled(cluster, disk, kind)
    app = cluster.submit(("/bin/true",), tasks=0, cores=0, driver=True)
    wait_until(lambda: found(cluster)["unwell"], "a worker that is unwell")
    assert removed(cluster, AppRemoved, "failed") == []
    fault.mend(disk)
    assert cluster.end_of(app)["state"] == "finished"


def test_what_runs_while_the_disk_is_full_ends_as_itself(cluster: Cluster, disks: Callable[..., Path]) -> None:
    disk = disks("small", 8)
    cluster.agent(cluster.offer().model_copy(update={"run_dir": disk / "run"}))
    hold = cluster.folder / "hold"
    hold.touch()
    script = f"while [ -e {hold} ]; do sleep 0.05; done; exit $1"
    well = cluster.submit(("/bin/sh", "-c", script, "sh", "0"), tasks=1, cores=1)
    ill = cluster.submit(("/bin/sh", "-c", script, "sh", "3"), tasks=0, cores=0, driver=True)
    wait_until(lambda: cluster.app(well)["executors"] and cluster.app(ill)["state"] == "running", "both apps")
    wait_until(lambda: len(list((disk / "run" / "w1" / "logs").glob("*/*.log"))) == 2, "both programs")
    file = filled(disk, 0)
    hold.unlink()
    assert cluster.end_of(well)["state"] == "finished"
    ended = cluster.end_of(ill)
    assert (ended["state"], ended["detail"]) == ("failed", "its driver ended with exit code 3")
    file.unlink()
