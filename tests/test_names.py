"""A test's name says what holds, in at most 80 characters."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parent
LONGEST = 80


def too_long(source: str) -> list[str]:
    """The names of tests that are longer than allowed."""
    functions = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef))
    return [node.name for node in functions if node.name.startswith("test_") and len(node.name) > LONGEST]


def test_no_name_of_a_test_is_longer_than_80_characters() -> None:
    found = {str(file.relative_to(TESTS)): too_long(file.read_text()) for file in sorted(TESTS.rglob("test_*.py"))}
    assert {file: names for file, names in found.items() if names} == {}


def test_the_check_finds_a_name_of_81_characters() -> None:
    names = [f"test_{'x' * length}" for length in (75, 76)]
    assert too_long("".join(f"def {name}():\n    ...\n" for name in names)) == names[1:]
