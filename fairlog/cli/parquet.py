"""The log as a Parquet file: one row per event, its most used fields in typed columns.

A column is null if the event does not have the field. `data` holds all fields as JSON. `share` is a float, exact only
in `data`. `resources` and `requested_resources` hold the amounts of kinds beside cores and memory. The boolean `driver`
of an app is in `has_driver`; `driver` is the id of a driver.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.archive.files import whole_file
from scheduler.model.events import by_kind, named
from scheduler.model.ids import app_of

if TYPE_CHECKING:
    from scheduler.store.codec import EventLine

ROWS = 50_000
"""Number of rows in a row group."""
TEXT = (
    *("company", "user", "app", "executor", "driver", "worker", "node", "host", "rack", "master"),
    *("kind", "sizing", "status", "reason", "detail", "locality"),
)
WHOLE = (
    *("cores", "memory_mb", "requested_cores", "requested_memory_mb", "memory_per_task_mb", "tasks", "done_cores"),
    "cores_per_task",
    *("executor_cores", "executor_memory_mb", "executor_limit", "driver_cores", "driver_memory_mb", "exit_code"),
)
KINDS = {"resources": ("offer", "amounts", "resources"), "requested_resources": ("requested",)}
"""Column -> the fields of events of whose further kinds it tells (semantics R4)."""
TRUTH = ("done", "idle", "borrow", "unlimited", "has_driver")


def write(path: Path, lines: Iterable[EventLine]) -> int:
    """Write the events to the file `path`, which appears only once it is complete. Returns their number.

    Raises: OSError from the file, and what reading `lines` raises.
    """
    import pyarrow as pa  # noqa: PLC0415 (takes half a second, and is an extra)
    from pyarrow.parquet import ParquetWriter  # noqa: PLC0415 (likewise)

    word = pa.dictionary(pa.int32(), pa.string())
    schema = pa.schema(
        [
            pa.field("seq", pa.int64(), nullable=False),
            pa.field("type", word, nullable=False),
            pa.field("at", pa.timestamp("ms", tz="UTC"), nullable=False),
            pa.field("turn", pa.int64(), nullable=False),
            pa.field("cause", pa.string()),
            *(pa.field(name, word) for name in TEXT),
            *(pa.field(name, pa.int64()) for name in WHOLE),
            *(pa.field(name, pa.bool_()) for name in TRUTH),
            *(pa.field(name, pa.map_(pa.string(), pa.int64())) for name in KINDS),
            pa.field("share", pa.float64()),
            pa.field("data", pa.string(), nullable=False),
            pa.field("digest", pa.string()),
        ]
    )
    left, rows = iter(lines), 0
    with whole_file(path) as draft, ParquetWriter(draft, schema, compression="zstd") as file:
        while page := [_row(line) for line in islice(left, ROWS)]:
            file.write_table(pa.Table.from_pylist(page, schema))
            rows += len(page)
    return rows


def _row(line: EventLine) -> dict[str, Any]:
    """The fields of the line and of its event; `app` also for an event that names only an executor."""
    said = named(line.data)
    if "app" not in said and "executor" in said:
        said["app"] = app_of(said["executor"])
    if line.type == "AppRegistered":
        said |= {"has_driver": "driver_cores" in said, "unlimited": said["cores"] is None}
    if "share" in said:
        said["share"] = float(Fraction(said["share"]))
    data = json.dumps(line.data, separators=(",", ":"), ensure_ascii=False)
    position = {name: getattr(line, name) for name in ("seq", "type", "at", "turn", "digest")}
    kinds = {column: _further(line.data, fields) for column, fields in KINDS.items()}
    return {**said, **kinds, **position, "cause": line.cause or None, "data": data}


def _further(stored: Mapping[str, Any], fields: Iterable[str]) -> list[tuple[str, int]] | None:
    """(kind, amount) of the further kinds of the first of these fields that the event has; None if it has none."""
    held = next((stored[name] for name in fields if stored.get(name)), None)
    others = {} if held is None else {k: n for k, n in by_kind(held).items() if k not in ("cores", "memory_mb")}
    return sorted(others.items()) or None
