"""Which device files belong to which graphics processors, on machines made of files."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.gpus import device_files, unknown, visible


def _machine(root: Path, *files: str) -> Path:
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


def _nvidia(root: Path) -> Path:
    """Two processors whose places on the bus and minor numbers are in opposite orders."""
    _machine(root, "dev/nvidia0", "dev/nvidia1", "dev/nvidiactl", "dev/nvidia-uvm", "dev/dri/card7", "dev/dri/card8")
    for place, minor, uuid in (("0000:0a:00.0", 1, "GPU-aa"), ("0000:0b:00.0", 0, "GPU-bb")):
        about = root / "proc/driver/nvidia/gpus" / place / "information"
        about.parent.mkdir(parents=True)
        about.write_text(f"Model: \t X\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n")
        (root / "sys/bus/pci/devices" / place / "drm" / f"card{7 + minor}").mkdir(parents=True)
    return root


def _shown(root: Path, *addresses: str) -> list[str]:
    return [str(path.relative_to(root / "dev")) for path in device_files(addresses, root)]


@pytest.mark.parametrize(
    ("address", "files"),
    [
        ("0", ["nvidia1", "dri/card8"]),
        ("1", ["nvidia0", "dri/card7"]),
        ("GPU-bb", ["nvidia0", "dri/card7"]),
        ("nvidia1", ["nvidia1", "dri/card8"]),
        ("2", []),
        ("GPU-cc", []),
    ],
)
def test_an_address_leads_to_the_files_of_its_processor_and_those_of_none(
    tmp_path: Path, address: str, files: list[str]
) -> None:
    assert _shown(_nvidia(tmp_path), address) == ["nvidiactl", "nvidia-uvm", *files]
    assert unknown([address], tmp_path) == ([] if files else [address])


def test_without_the_drivers_word_numbers_are_those_of_the_files(tmp_path: Path) -> None:
    root = _machine(tmp_path, *(f"dev/nvidia{number}" for number in range(11)), "dev/nvidiactl")
    assert _shown(root, "2", "10") == ["nvidiactl", "nvidia2", "nvidia10"]


def test_other_makers_processors_are_those_that_the_kernel_renders_with(tmp_path: Path) -> None:
    root = _machine(
        tmp_path, "dev/kfd", *(f"dev/dri/{name}" for name in ("card0", "card1", "renderD128", "renderD129"))
    )
    for number in (0, 1):
        device = root / f"sys/class/drm/renderD{128 + number}/device/drm"
        for name in (f"card{number}", f"renderD{128 + number}"):
            (device / name).mkdir(parents=True)
    assert _shown(root, "1") == _shown(root, "renderD129") == ["kfd", "dri/card1", "dri/renderD129"]


def test_who_was_granted_none_is_shown_none(tmp_path: Path) -> None:
    assert _shown(_nvidia(tmp_path)) == []


def test_where_no_other_processor_is_seen_they_are_named_by_their_uuids(tmp_path: Path) -> None:
    """CUDA numbers what it can open from 0 on."""
    root = _nvidia(tmp_path)
    assert visible(("1", "0"), apart=True, root=root) == "GPU-bb,GPU-aa"
    assert visible(("1", "0"), apart=False, root=root) == "1,0"
    assert visible(("1",), apart=True, root=tmp_path / "nothing") == "1"


def test_a_machine_without_processors_knows_none_to_warn_of(tmp_path: Path) -> None:
    assert unknown(["0"], tmp_path) == []
