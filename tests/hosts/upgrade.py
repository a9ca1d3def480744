"""The programs of an older revision, each replaced by this one's while clients go on, in the documents' order."""

from __future__ import annotations

import compileall
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path

from tests.hosts.bed import AUDITOR_NAME, Bed
from tests.hosts.pauses import Span
from tests.measures import PACKAGES

ROOT = Path(__file__).parents[2]
QUIET_S = 2.0
"""The time between two upgrades, when everything is well."""


def unpacked(revision: str, folder: Path) -> Path:
    """The folder with the revision's files. Raises: ValueError if there is no such revision here."""
    done = subprocess.run(["git", "archive", "--", revision], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(f"there is no revision {revision!r} here: {done.stderr.decode(errors='replace').strip()}")
    with tarfile.open(fileobj=BytesIO(done.stdout)) as files:
        files.extractall(folder, filter="data")
    for package in PACKAGES:  # once: the programs begin together, and each would compile what it imports
        compileall.compile_dir(folder / package, quiet=2)
    return folder


Victims = Callable[[Bed], Sequence[str]]
ORDER: Sequence[tuple[str, Victims]] = (
    ("standby upgraded", Bed.standbys),
    ("API server upgraded", lambda _: ("api-0", "api-1")),
    ("auditor upgraded", lambda _: (AUDITOR_NAME,)),
    ("active master upgraded", lambda bed: (bed.active(),)),
    ("worker upgraded", lambda _: ("worker-0", "worker-1", "worker-2")),
)
"""As docs/operations.md says: who reads the log is there before the next active master writes what is new."""


def upgrade(bed: Bed, progress: Callable[[str], None]) -> Iterator[Span]:
    """Replace one program after the other, each once all is well."""
    for step, victims in ORDER:
        for name in victims(bed):
            bed.await_well(time.monotonic())
            bed.tend(QUIET_S)
            began_s = time.monotonic()
            bed.say(f"{step}: {name}")
            progress(f"{step}: {name}")
            bed.upgrade(name)
            healed_s = time.monotonic()
            bed.await_well(healed_s)
            yield Span(step, began_s, healed_s, time.monotonic())
