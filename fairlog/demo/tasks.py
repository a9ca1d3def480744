"""The demo's tasks: small real jobs on the source files of Python's standard library.

Usage: `tasks.py words|imports|squeeze|pi`. Each task handles the files selected by its index and prints one line of
JSON. The numbers add up over an app's tasks.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import sysconfig
import zlib
from pathlib import Path

DARTS = 40_000
_IMPORT = re.compile(r"^[ \t]*(?:import|from)[ \t]+[\w.]", re.MULTILINE)
_STEP = 6_364_136_223_846_793_005
_MODULUS = 1 << 64


def words(files: list[Path], _index: int) -> dict[str, int]:
    """Count the words of the files."""
    return {"files": len(files), "words": sum(len(re.findall(r"\w+", _text(file))) for file in files)}


def imports(files: list[Path], _index: int) -> dict[str, int]:
    """Count the import statements of the files."""
    return {"files": len(files), "imports": sum(len(_IMPORT.findall(_text(file))) for file in files)}


def squeeze(files: list[Path], _index: int) -> dict[str, int]:
    """Count the files' bytes before and after compression, and their distinct contents."""
    contents = [file.read_bytes() for file in files]
    return {
        "files": len(files),
        "bytes": sum(map(len, contents)),
        "compressed": sum(len(zlib.compress(content, 6)) for content in contents),
        "contents": len({hashlib.sha256(content).digest() for content in contents}),
    }


def pi(_files: list[Path], index: int) -> dict[str, int]:
    """Throw `DARTS` pseudorandom darts at a square and count hits of its inscribed circle; `index` is the seed."""
    hits, seed = 0, index + 1
    for _ in range(DARTS):
        seed = (seed * _STEP + 1_442_695_040_888_963_407) % _MODULUS
        across, along = seed >> 48, (seed >> 32) & 0xFFFF
        hits += across * across + along * along < 0xFFFF * 0xFFFF
    return {"darts": DARTS, "hits": hits}


KINDS = {"words": words, "imports": imports, "squeeze": squeeze, "pi": pi}


def main() -> None:
    """Do this task's part of the work named on the command line."""
    index, count = int(os.environ["FAIRLOG_TASK_INDEX"]), int(os.environ["FAIRLOG_TASK_COUNT"])
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("[a-z]*.py"))[index::count]
    sys.stdout.write(json.dumps(KINDS[sys.argv[1]](files, index)) + "\n")


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace")


if __name__ == "__main__":
    main()
