"""The example logs of the README: an installed package has them beside this module, a clone in `examples/`."""

from __future__ import annotations

from pathlib import Path

FOLDER = "examples"
LOGS = ("log.jsonl", "forged.jsonl")


def write_examples(folder: Path) -> list[Path]:
    """Write the logs that are not there yet to `examples` below the folder; those written. Raises: OSError."""
    beside = Path(__file__).parent / FOLDER
    kept = beside if beside.is_dir() else Path(__file__).parents[2] / FOLDER
    to = folder / FOLDER
    to.mkdir(exist_ok=True)
    missing = [to / name for name in LOGS if not (to / name).exists()]
    for path in missing:
        path.write_bytes((kept / path.name).read_bytes())
    return missing
