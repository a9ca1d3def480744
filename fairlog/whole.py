"""Files that are there only once all of them was written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what becomes the file `path` at the end, on disk by then; what it held before stays until then."""
    draft = path.with_name(f"{path.name}.{uuid4().hex[:8]}.draft")
    try:
        draft.touch(exist_ok=False)
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
