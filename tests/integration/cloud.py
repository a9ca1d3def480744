"""A provider of workers for pools, of processes of this machine: `cloud.py FOLDER start|stop|list [WORKER]`.

It does not mind two instances of a name, as few clouds do, but notes each in the folder `doubles`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

import psutil


def alive(file: Path) -> psutil.Process | None:
    """The process whose id and beginning the file has; None once it has ended."""
    pid, begun = file.read_text().split()
    try:
        process = psutil.Process(int(pid))
        lives = str(process.create_time()) == begun and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if lives else None


def instances(folder: Path) -> dict[Path, psutil.Process]:
    """The instances that run, by the file of each."""
    found = {file: alive(file) for file in folder.glob("*.instance")}
    return {file: process for file, process in found.items() if process is not None}


def start(folder: Path, worker: str) -> None:
    """Start an instance, which takes a moment, as everywhere."""
    if any(file.name.startswith(f"{worker}@") for file in instances(folder)):
        (folder / "doubles").mkdir(exist_ok=True)
        (folder / "doubles" / worker).touch()
    time.sleep(0.3)
    program, *arguments = shlex.split(os.environ["FAIRLOG_WORKER_COMMAND"])
    assert program == "fairlog"
    with (folder / f"{worker}.log").open("ab") as log:
        process = psutil.Popen(
            [sys.executable, "-m", "fairlog", *arguments, "--run-dir", str(folder / "run")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    draft = folder / f"{worker}@{process.pid}.draft"
    draft.write_text(f"{process.pid} {process.create_time()}")
    draft.rename(draft.with_suffix(".instance"))


def stop(folder: Path, worker: str) -> None:
    """Take the machine away, and all that runs on it."""
    for file, process in instances(folder).items():
        if file.name.startswith(f"{worker}@"):
            for each in [process, *process.children(recursive=True)]:
                each.kill()


def main(folder: Path, what: str, worker: str = "") -> None:
    """Do what a pool asks."""
    folder.mkdir(exist_ok=True)
    if what == "list":
        for file in sorted(instances(folder)):
            notice = " leaving" if (folder / f"{file.name.partition('@')[0]}.notice").exists() else ""
            sys.stdout.write(f"{file.name.partition('@')[0]}{notice}\n")
    else:
        {"start": start, "stop": stop}[what](folder, worker)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
