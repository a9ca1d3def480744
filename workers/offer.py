"""Offers of workers. By default a machine offers all its cores and memory under its host name."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs
import psutil
from pydantic import BaseModel, ConfigDict

from scheduler.model.errors import FairlogError
from scheduler.model.text import counted
from workers.health import Check
from workers.sandbox import CellSettings
from workers.token import Terms

SMALLEST_CORES, SMALLEST_MB = 4, 2048
"""The default size of a smallest executor."""
_MEMORY_STEP_MB = 512
_DISCOVERY_S = 60
"""How long a discovery command may take."""


class WorkerBusy(FairlogError):
    """The worker already has an agent on this machine."""

    def __init__(self, worker: str, holder: Path | int) -> None:
        who = f"process {holder}" if isinstance(holder, int) else f"folder {holder}"
        super().__init__(
            f"worker {worker!r} already has an agent on this host ({who}); choose another id with --id, or "
            "stop that agent"
        )


class Offer(BaseModel):
    """A worker's offer and its agent's options.

    - `outlive_agent`: executors continue without their agent; the next agent adopts them.
    - `health`: the operator's check, which decides whether the worker takes work (semantics W11).
    - `drain`: when asked to stop, the agent waits until everything has ended, then removes the worker.
    - `any_cores`, `any_memory`: nobody has stated it, so that an invitation may lower it.
    - `most`: the cores and the memory (MiB) that its invitation allows, None if it allows anything.
    - `resources`: kind -> addresses that it offers (semantics R1).
    - `labels`: what people and apps know it by; `taints`: what apps must tolerate (semantics P9).
    - `launcher`: where tasks run (`workers.launchers`); `cells`: what they find there.
    - `unsafe_plain`: tasks of several companies may run without cells.
    - `grace_s`: seconds between SIGTERM and SIGKILL.
    """

    model_config = ConfigDict(frozen=True)

    worker: str
    node: str
    host: str
    rack: str = ""
    cores: int
    memory_mb: int
    any_cores: bool = False
    any_memory: bool = False
    most: tuple[int, int] | None = None
    resources: dict[str, tuple[str, ...]] = {}
    labels: dict[str, str] = {}
    taints: tuple[str, ...] = ()
    run_dir: Path
    launcher: str = "plain"
    unsafe_plain: bool = False
    cells: CellSettings = CellSettings()
    outlive_agent: bool = True
    drain: bool = False
    health: Check | None = None
    gpu_use: tuple[str, ...] = ()
    grace_s: float = 5

    def within(self, terms: Terms) -> Offer:
        """The offer, of what nobody has stated no more than the worker was invited to offer."""
        if terms.offer is None:
            return self
        cores = min(self.cores, terms.offer.cores) if self.any_cores else self.cores
        memory_mb = min(self.memory_mb, terms.offer.memory_mb) if self.any_memory else self.memory_mb
        return self.model_copy(
            update={"cores": cores, "memory_mb": memory_mb, "most": (terms.offer.cores, terms.offer.memory_mb)}
        )

    @property
    def smallness(self) -> str | None:
        """The function `smallness` of this offer."""
        return smallness(self.cores, self.memory_mb, self.most)

    @property
    def oddity(self) -> str | None:
        """Which part of the offer may stay unused, in a sentence; None if no part (semantics, Settings: checks)."""
        odd = []
        if self.cores % 2:
            odd.append(f"{self.cores} is not an even number of cores")
        if self.memory_mb % _MEMORY_STEP_MB:
            odd.append(f"{self.memory_mb} MiB are not a multiple of {_MEMORY_STEP_MB}")
        return f"{' and '.join(odd)}: part of the offer may stay unused" if odd else None


def smallness(cores: int, memory_mb: int, most: tuple[int, int] | None = None) -> str | None:
    """A sentence on an offer that is less than a smallest executor has by default; None if it is not."""
    if cores >= SMALLEST_CORES and memory_mb >= SMALLEST_MB:
        return None
    bound = most is not None and (cores == most[0] < SMALLEST_CORES or memory_mb == most[1] < SMALLEST_MB)
    return (
        f"{counted(cores, 'core')} and {memory_mb} MiB are less than the default size of the smallest executor "
        f"({SMALLEST_CORES} cores, {SMALLEST_MB} MiB); "
        f"{'its invitation allows no more' if bound else 'offer more with --cores and --memory'}"
    )


def default_run_dir() -> Path:
    """The folder of this user for the files of workers."""
    return platformdirs.user_state_path("fairlog") / "workers"


def default_cores() -> int:
    """The number of CPUs of this machine."""
    return os.cpu_count() or 1


def default_memory_mb() -> int:
    """The memory of this machine, rounded down to a multiple of 512 MiB."""
    return max(_MEMORY_STEP_MB, psutil.virtual_memory().total // (1024 * 1024) // _MEMORY_STEP_MB * _MEMORY_STEP_MB)


def make_offers(
    *,
    worker: str | None = None,
    instances: int = 1,
    cores: int | None = None,
    memory_mb: int | None = None,
    host: str | None = None,
    rack: str = "",
    run_dir: Path | None = None,
    outlive_agent: bool = True,
) -> list[Offer]:
    """Offers of `instances` workers on this node (semantics W1), with ids `ID-1`, `ID-2` … if there are several.

    Each offers `cores` and `memory_mb`, by default an equal part of the machine's. `run_dir` is the folder for their
    files, by default one of this user.
    """
    name = host or socket.gethostname()
    identity = name if worker is None else worker
    each_mb = default_memory_mb() // instances // _MEMORY_STEP_MB * _MEMORY_STEP_MB
    return [
        Offer(
            worker=identity if instances == 1 else f"{identity}-{number}",
            node=name,
            host=name,
            rack=rack,
            cores=cores or max(1, default_cores() // instances),
            memory_mb=memory_mb or max(_MEMORY_STEP_MB, each_mb),
            any_cores=cores is None,
            any_memory=memory_mb is None,
            run_dir=(run_dir or default_run_dir()).absolute(),
            outlive_agent=outlive_agent,
        )
        for number in range(1, instances + 1)
    ]


def divided(resources: Mapping[str, Sequence[str]], workers: int) -> list[dict[str, tuple[str, ...]]]:
    """The addresses by kind, divided among so many workers of this machine."""
    return [
        {
            kind: tuple(found[number * len(found) // workers : (number + 1) * len(found) // workers])
            for kind, found in resources.items()
        }
        for number in range(workers)
    ]


class DiscoveryFailed(FairlogError):
    """A command that finds the addresses of a resource has failed, or printed something else."""


def discovered(command: str) -> tuple[str, tuple[str, ...]]:
    """The kind and the addresses that the command prints as Spark's JSON (semantics R1).

    `{"name": "gpu", "addresses": ["0", "1"]}`. Raises: DiscoveryFailed.
    """
    try:
        ran = subprocess.run(  # noqa: S603 - the operator's own command
            shlex.split(command), capture_output=True, text=True, timeout=_DISCOVERY_S, check=True
        )
        found = _Discovery.model_validate_json(ran.stdout)
    except subprocess.CalledProcessError as error:
        said = f": {error.stderr.strip().splitlines()[-1]}" if error.stderr.strip() else ""
        raise DiscoveryFailed(f"`{command}` ended with exit code {error.returncode}{said}") from None
    except subprocess.TimeoutExpired:
        raise DiscoveryFailed(f"`{command}` did not end within {_DISCOVERY_S} s") from None
    except (OSError, IndexError) as error:
        raise DiscoveryFailed(
            f"`{command}` cannot be run: {getattr(error, 'strerror', None) or 'it is empty'}"
        ) from None
    except ValueError:
        raise DiscoveryFailed(
            f'`{command}` must print a resource such as {{"name": "gpu", "addresses": ["0", "1"]}}'
        ) from None
    return found.name, found.addresses


class _Discovery(BaseModel):
    """What a discovery command prints, as in Spark."""

    name: str
    addresses: tuple[str, ...]
