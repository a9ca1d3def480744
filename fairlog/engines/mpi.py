"""What `fairlog mpirun` gives its executors: a copy of `mpi_node`, so that workers need Python alone, and the keys."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from fairlog.engines import mpi_node, passed_on, wire
from fairlog.engines.keys import draw_keys
from scheduler.model.staged import SCRIPT, digest_of, script_value

_MAIN = "import sys\nfrom fairlog.engines.mpi_node import main\nraise SystemExit(main(sys.argv[1:]))\n"


def copied() -> bytes:
    """The program with all that it imports besides the standard library, as a zip file that Python runs."""
    sources = {"fairlog/__init__.py": "", "fairlog/engines/__init__.py": "", "__main__.py": _MAIN}
    for module in (wire, passed_on, mpi_node):
        sources[module.__name__.replace(".", "/") + ".py"] = Path(str(module.__file__)).read_text(encoding="utf-8")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, source in sources.items():
            packed.writestr(zipfile.ZipInfo(name), source)
    return content.getvalue()


def variables() -> tuple[dict[str, str], str]:
    """The variables of an app that is submitted now, with keys of its own, and the digest of its program."""
    keys, program = draw_keys("mpirun"), copied()
    return {
        mpi_node.AUTHORITY: keys.authority,
        mpi_node.KEY: keys.certificate + keys.key,
        SCRIPT: script_value(program, mpi_node.PROGRAM),
    }, digest_of(program)
