"""The log as a Parquet file, for analysis: an entry a row, what its event says in columns of their types.

`data` holds the event in full, as it is stored. The other columns behind `cause` are the facts that most questions
are about, null where an event does not state them; `share` as a number, which is exact in `data` only, and whether an
app has a driver apart from the driver's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from fractions import Fraction
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.archive.files import whole_file
from scheduler.model.errors import InvalidCommand
from scheduler.model.events import named
from scheduler.model.ids import app_of

if TYPE_CHECKING:
    from scheduler.store.codec import Line

ROWS = 50_000
"""How many rows are written together."""
TEXT = (
    *("company", "user", "app", "executor", "driver", "worker", "node", "host", "rack", "master"),
    *("kind", "sizing", "status", "reason", "detail", "locality"),
)
WHOLE = (
    *("cores", "memory_mb", "requested_cores", "requested_memory_mb", "memory_per_task_mb", "tasks", "done_cores"),
    *("executor_cores", "executor_memory_mb", "executor_limit", "driver_cores", "driver_memory_mb", "exit_code"),
)
TRUTH = ("done", "idle", "borrow", "unlimited", "has_driver")


def check_extra() -> None:
    """Raises: InvalidCommand saying what to install if no Parquet can be written."""
    if find_spec("pyarrow") is None:
        raise InvalidCommand("--parquet needs pyarrow: pip install 'fairlog[parquet]'")


def write(path: Path, lines: Iterable[Line]) -> int:
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


def _row(line: Line) -> dict[str, Any]:
    """The line's fields and those of its event; of the app that an executor is of, if that is all it says."""
    said = named(line.data)
    if "app" not in said and "executor" in said:
        said["app"] = app_of(said["executor"])
    if line.type == "AppRegistered":
        said |= {"has_driver": "driver_cores" in said, "unlimited": said["cores"] is None}
    if "share" in said:
        said["share"] = float(Fraction(said["share"]))
    data = json.dumps(line.data, separators=(",", ":"), ensure_ascii=False)
    place = {name: getattr(line, name) for name in ("seq", "type", "at", "turn", "digest")}
    return {**said, **place, "cause": line.cause or None, "data": data}
