"""Graphics processors: what a program is told of those that it was granted, and which device files are theirs.

An address of a kind that begins with `gpu` names a processor by its number, by the UUID that NVIDIA's driver gives it,
or by its device file, such as `nvidia1` or `renderD129`. Numbers count as `nvidia-smi` does: by the place on the bus.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

GPUS_VARIABLE = "CUDA_VISIBLE_DEVICES"
_NUMBERED = re.compile(r"nvidia[0-9]+")
_SHARED = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset", "kfd")
"""Device files that stand for no processor of their own."""
_RENDERS = "renderD*"


class _Processor(NamedTuple):
    """A processor: its UUID or "", and its device files below `/dev`."""

    uuid: str
    files: tuple[str, ...]


def is_gpu(kind: str) -> bool:
    """Whether resources of this kind are graphics processors."""
    return kind.startswith("gpu")


def gpus_of(addresses: Mapping[str, Sequence[str]]) -> list[str]:
    """The addresses of graphics processors among them."""
    return [address for kind, found in addresses.items() if is_gpu(kind) for address in found]


def visible(addresses: Sequence[str], *, apart: bool, root: Path = Path("/")) -> str:
    """The value of `CUDA_VISIBLE_DEVICES` for these addresses; "" if there are none.

    `apart`: where a program finds the device files of these processors only (`device_files`). CUDA then numbers them
    anew, so they are named by their UUIDs, if the driver tells them.
    """
    known = {address: uuid for address in addresses if apart and (uuid := _uuid_of(address, root))}
    return ",".join(known.get(address, address) for address in addresses)


def device_files(addresses: Sequence[str], root: Path = Path("/")) -> list[Path]:
    """The device files of these processors, and those that stand for none; empty without addresses.

    An address that names no processor of this machine has none.
    """
    if not addresses:
        return []
    processors, devices = _processors(root), root / "dev"
    named: dict[str, None] = dict.fromkeys(_SHARED)
    for address in addresses:
        if (found := _named_by(address, processors)) is not None:
            named.update(dict.fromkeys(found.files))
    return [path for name in named if (path := devices / name).exists()]


def unknown(addresses: Sequence[str], root: Path = Path("/")) -> list[str]:
    """The addresses that name no processor, if this machine has any."""
    processors = _processors(root)
    return [address for address in addresses if processors and _named_by(address, processors) is None]


def _uuid_of(address: str, root: Path) -> str:
    found = _named_by(address, _processors(root))
    return "" if found is None else found.uuid


def _named_by(address: str, processors: Sequence[_Processor]) -> _Processor | None:
    if address.isdecimal():
        return processors[int(address)] if int(address) < len(processors) else None
    name = address.removeprefix("dev/").removeprefix("dri/")
    return next(
        (each for each in processors if address == each.uuid or name in {file.split("/")[-1] for file in each.files}),
        None,
    )


def _processors(root: Path) -> list[_Processor]:
    """The processors of this machine: NVIDIA's if there are any, else those that the kernel renders with."""
    told = list(_told_by_driver(root))
    if told:
        return told
    numbered = [path.name for path in _by_number((root / "dev").glob("nvidia*")) if _NUMBERED.fullmatch(path.name)]
    if numbered:
        return [_Processor("", (name,)) for name in numbered]
    renders = _by_number((root / "dev/dri").glob(_RENDERS))
    return (
        [_Processor("", tuple(_drawn_by(root / "sys/class/drm" / path.name / "device"))) for path in renders]
        if (root / "sys/class/drm").exists()
        else [_Processor("", (f"dri/{path.name}",)) for path in renders]
    )


def _told_by_driver(root: Path) -> Iterator[_Processor]:
    """What NVIDIA's driver says, by the place on the bus."""
    for folder in sorted((root / "proc/driver/nvidia/gpus").glob("*")):
        try:
            text = (folder / "information").read_text(errors="replace")
        except OSError:
            continue
        said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}
        if said.get("Device Minor", "").isdecimal():
            device = root / "sys/bus/pci/devices" / folder.name
            yield _Processor(said.get("GPU UUID", ""), (f"nvidia{said['Device Minor']}", *_drawn_by(device)))


def _drawn_by(device: Path) -> Iterator[str]:
    """The files below `/dev` by which the kernel draws with a device."""
    for path in sorted((device / "drm").glob("*")):
        if path.name.startswith(("card", "renderD")):
            yield f"dri/{path.name}"


def _by_number(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: (len(path.name), path.name))
