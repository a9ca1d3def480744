"""The modules that FAIRLOG_COMPILED=1 compiles can be compiled, and mean the same then."""

from __future__ import annotations

import ast
import runpy
import subprocess
import sys
from collections.abc import Iterator
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


def compiled_modules() -> list[str]:
    """The sources that are compiled, relative to the project's folder."""
    found: list[str] = runpy.run_path(str(HOOK))["compiled_modules"](ROOT)
    return found


def test_the_compiler_takes_every_module_and_turns_no_generator_into_a_list(tmp_path: Path) -> None:
    """A stage decides on what the one before has folded, so a list of what all decide would be wrong."""
    modules = compiled_modules()
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


def test_the_types_of_every_field_of_a_compiled_dataclass_are_there_at_run_time() -> None:
    """Compiled, the module evaluates them as it is imported, whatever `from __future__ import annotations` says."""
    assert list(missing_types("if TYPE_CHECKING:\n import a\n@dataclass\nclass B:\n c: list[a.D]")) == ["B.c: a"]
    missing = {
        module: list(missing_types((ROOT / module).read_text(encoding="utf-8"))) for module in compiled_modules()
    }
    assert not {module: fields for module, fields in missing.items() if fields}


def missing_types(source: str) -> Iterator[str]:
    """The fields of dataclasses with what in their types is imported for type checkers alone."""
    tree = ast.parse(source)
    blocks = [node.body for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imports = [node for body in blocks for node in body if isinstance(node, (ast.Import, ast.ImportFrom))]
    unknown = {name.asname or name.name.partition(".")[0] for node in imports for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(each) for each in node.decorator_list):
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    names = {each.id for each in ast.walk(field.annotation) if isinstance(each, ast.Name)}
                    yield from [f"{node.name}.{ast.unparse(field.target)}: {name}" for name in sorted(names & unknown)]
