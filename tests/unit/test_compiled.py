"""The modules that FAIRLOG_COMPILED=1 compiles can be compiled, and mean the same then."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "deploy" / "hatch_build.py"
_TRANSLATE = "import sys; from mypyc.build import mypycify; mypycify(sys.argv[2:], target_dir=sys.argv[1])"
_CONFIG = """
[mypy]
explicit_package_bases = True
mypy_path = .
[mypy-cryptography.*,hiredis.*,pydantic.*,redis.*,rich.*]
follow_imports = skip
"""
"""mypyc checks each function of all packages that are imported; `make lint` checks the types strictly."""


def test_the_compiler_takes_every_module_and_turns_no_generator_into_a_list(tmp_path: Path) -> None:
    """A stage decides on what the one before has folded, so a list of what all decide would be wrong."""
    modules = runpy.run_path(str(HOOK))["compiled_modules"](ROOT)
    assert "scheduler/rules/stage/turn.py" in modules
    config = tmp_path / "mypy.ini"
    config.write_text(_CONFIG, encoding="utf-8")
    told = subprocess.run(
        [sys.executable, "-c", _TRANSLATE, str(tmp_path), f"--config-file={config}", *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout + told.stderr
    assert "warning" not in told.stdout + told.stderr, told.stdout + told.stderr
