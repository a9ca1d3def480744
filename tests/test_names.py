"""Names and docstrings: a test's name says what holds, and a docstring begins with what it is about."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.model.text import counted

TESTS = Path(__file__).parent
LONGEST = 80
ROOT = TESTS.parent
VAGUE = re.compile(r"(It|They|Those|That|The same)\b")
"""First words that name nothing: a reader has to look for what they stand for."""


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


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module, its classes and functions, and the texts below attributes and constants."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for before, part in zip([None, *node.body], node.body, strict=False):
                told = isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant) and part.value.value
                if isinstance(told, str) and (before is None or isinstance(before, ast.Assign | ast.AnnAssign)):
                    yield told.strip()


@pytest.mark.parametrize("room", ["scheduler", "workers", "recovery", "witness", "fairlog", "benchmarks", "deploy"])
def test_a_docstring_begins_with_a_noun_or_a_verb_of_the_field(room: str) -> None:
    files = [file for file in sorted((ROOT / room).rglob("*.py")) if "second_edition" not in file.parts]
    found = {str(file.relative_to(ROOT)): [*filter(VAGUE.match, docstrings(file.read_text()))] for file in files}
    assert {file: texts for file, texts in found.items() if texts} == {}


def test_the_check_finds_a_vague_docstring_wherever_it_stands() -> None:
    module = (
        '"""It."""\nSIZE = 1\n"""Those of it."""\n\ndef f():\n    """That one."""\n\nclass C:\n    """Its size."""\n'
    )
    assert [*filter(VAGUE.match, docstrings(module))] == ["It.", "Those of it.", "That one."]


PLURALS = re.compile(
    r" (cores|executors|workers|tasks|apps|entries|decisions|events|masters|replicas|nodes|bytes|processes|drivers)\b"
)
"""Amounts that people read, after a number in a text."""
AS_THEY_ARE = {"scheduler/rules/command/decide.py", "fairlog/compat/slurm/steps.py"}
"""Modules with texts that stay: parts of decisions, which an audit derives again, and Slurm's own words."""
ALWAYS_MORE = re.compile(r"(self\._most|masters|standing\.pending|fits|number|len\(endless\))$|[\w.]*\b_?[A-Z][A-Z_]+$")
"""Amounts that are no 1 where they stand: constants, and what a case of its own says of one."""


def uncounted(source: str) -> list[str]:
    """The amounts in a module's f-strings that would be "1 cores"."""
    found = []
    for text in (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.JoinedStr)):
        for value, after in itertools.pairwise(text.values):
            if isinstance(value, ast.FormattedValue) and isinstance(after, ast.Constant):
                plain, amount = value.format_spec is None and value.conversion == -1, ast.unparse(value.value)
                said = str(after.value)
                if plain and PLURALS.match(said) and not ALWAYS_MORE.match(amount):
                    found.append(amount + said)
    return found


@pytest.mark.parametrize("room", ["scheduler", "workers", "recovery", "witness", "fairlog"])
def test_amounts_are_written_by_what_knows_that_one_is_no_plural(room: str) -> None:
    files = {str(file.relative_to(ROOT)): file for file in sorted((ROOT / room).rglob("*.py"))}
    kept = {name: file for name, file in files.items() if "second_edition" not in name and name not in AS_THEY_ARE}
    found = {name: uncounted(file.read_text()) for name, file in kept.items()}
    assert {name: amounts for name, amounts in found.items() if amounts} == {}


def test_the_check_of_amounts_finds_a_plural_after_a_number() -> None:
    module = "f'{n} cores free', f'{n:.1f} cores', f'{MOST} cores', f\"{counted(n, 'core')} free\", f'{name!r} cores'"
    assert uncounted(module) == ["n cores free"]


def test_one_of_something_is_no_plural() -> None:
    assert [
        counted(1, "core"),
        counted(2, "core"),
        counted(0, "entry"),
        counted(1, "entry"),
        counted(3, "process"),
    ] == [
        "1 core",
        "2 cores",
        "0 entries",
        "1 entry",
        "3 processes",
    ]
