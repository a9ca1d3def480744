"""With FAIRLOG_COMPILED=1, a wheel has the modules that decide and audit compiled by mypyc; a C compiler is needed.

They are the same sources, so a decision is the same, in less than half of the time. The other modules stay as they
are: mypyc cannot compile the classes of msgspec, or a function of theirs that stays plain is not slower.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PLAIN = {
    # They define classes of msgspec, or dataclasses with fields of such.
    "classic",
    "records",
    # They hand on workers lazily by generator expressions.
    "delay",
    "yarn",
    # No turn calls them often.
    "invariants",
    "membership",
    "permission",
    "simulate",
    "views",
}
"""The modules of scheduler/rules that are not compiled."""

FURTHER = (
    "scheduler/model/ids.py",
    "scheduler/model/quota.py",
    "witness/audit/audit.py",
    "witness/audit/shadow_ledger.py",
)
"""What of other folders is."""


def compiled_modules(root: Path) -> list[str]:
    """The sources to compile, relative to the project's folder `root`."""
    found = sorted((root / "scheduler" / "rules").rglob("*.py"))
    chosen = [path for path in found if path.stem not in {"__init__", *PLAIN}]
    return [*[str(path.relative_to(root)) for path in chosen], *FURTHER]


class CompiledRules(BuildHookInterface[Any]):
    """Adds the extension modules to a wheel."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """What building needs besides hatchling: mypyc, and the types of what the modules import."""
        return ["mypy>=2,<3", "setuptools>=77", *self.metadata.core.dependencies] if _wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile into a folder of its own, and have the wheel include what came out."""
        if not _wanted():
            return
        if version == "editable":
            raise SystemExit("FAIRLOG_COMPILED=1 compiles wheels only; run `pip install .`, without -e")
        self._out = Path(tempfile.mkdtemp(prefix="fairlog-compiled-"))
        for made in _compile(Path(self.root), self._out):
            build_data["force_include"][str(made)] = str(made.relative_to(self._out))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002 - hatchling's
        """Delete that folder."""
        if _wanted():
            shutil.rmtree(self._out)


def _wanted() -> bool:
    return os.environ.get("FAIRLOG_COMPILED", "") == "1"


def _compile(root: Path, out: Path) -> list[Path]:
    from mypyc.build import mypycify  # noqa: PLC0415 - only where it is wanted
    from setuptools import Distribution  # noqa: PLC0415 - likewise

    before = Path.cwd()
    os.chdir(root)
    try:
        modules = mypycify(compiled_modules(root), opt_level="3", debug_level="0", target_dir=str(out / "c"))
        command = Distribution({"name": "fairlog", "ext_modules": modules}).get_command_obj("build_ext")
        command.build_lib, command.build_temp = str(out), str(out / "o")
        command.ensure_finalized()
        command.run()
    finally:
        os.chdir(before)
    return sorted(path for path in out.rglob("*") if path.suffix in {".so", ".pyd"})
