"""What the house measures of itself, as a table or `--json`: how long, how many, and what stands twice."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
PACKAGES = ("deploy", "fairlog", "recovery", "scheduler", "witness", "workers")
FROZEN = "recovery/second_edition"
"""A room that is never changed; it is counted apart, and nothing else of it is measured."""
RULE = re.compile(r"(?:^|(?<=\. ))[A-Z][0-9]+\. (?=\S)", re.MULTILINE)
ROADS = {"api", "_near", "SessionByApi", "server", "server_for"}
"""Names that a condition about the road has."""
FUNCTIONS = ast.FunctionDef, ast.AsyncFunctionDef


class Measure(NamedTuple):
    """A number, and what it is about if it is the largest of many."""

    name: str
    value: int
    of: str = ""


def sources(root: Path = ROOT) -> dict[str, str]:
    """The Python files outside tests and benchmarks, by their paths below `root`."""
    files = [file for package in PACKAGES for file in sorted((root / package).rglob("*.py"))]
    return {file.relative_to(root).as_posix(): file.read_text(encoding="utf-8") for file in files}


def classes(files: dict[str, str]) -> Iterator[tuple[str, ast.ClassDef]]:
    """(file, class) of each class at the top of a module."""
    for file, source in files.items():
        for node in ast.parse(source).body:
            if isinstance(node, ast.ClassDef):
                yield file, node


def names_with_two_meanings(files: dict[str, str]) -> dict[str, list[str]]:
    """Name of a class -> the files that define one of that name, where there are several; `_Name` is `Name`."""
    found: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for file, node in classes(files):
        found[node.name.lstrip("_")][file] = None
    return {name: list(those) for name, those in sorted(found.items()) if len(those) > 1}


def choices_of_road(files: dict[str, str]) -> int:
    """How many conditions of the command line ask which road a session takes, or whether an API server answers it."""
    found = 0
    for file, source in files.items():
        if file.startswith("fairlog/cli/"):
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.If | ast.IfExp | ast.While):
                    parts = list(ast.walk(node.test))
                    bases = [each.value for each in parts if isinstance(each, ast.Attribute)]
                    names = {getattr(each, "attr", getattr(each, "id", "")) for each in parts if each not in bases}
                    found += not ROADS.isdisjoint(names)
    return found


def measures(files: dict[str, str], rules: str) -> list[Measure]:
    """All of them; `rules` is the text of semantics.md."""
    frozen = {file for file in files if file.startswith(f"{FROZEN}/")}
    ours = {file: source for file, source in files.items() if file not in frozen}
    known = list(classes(ours))
    methods = max(known, key=lambda one: methods_of(one[1]))
    longest = max(known, key=lambda one: lines_of(one[1]))
    return [
        Measure("lines outside tests and benchmarks", sum(len(source.splitlines()) for source in ours.values())),
        Measure("lines of the frozen room", sum(len(files[file].splitlines()) for file in frozen)),
        Measure("methods of the class that has most", methods_of(methods[1]), f"{methods[1].name} in {methods[0]}"),
        Measure("lines of the longest class", lines_of(longest[1]), f"{longest[1].name} in {longest[0]}"),
        Measure("words of semantics.md", len(rules.split())),
        Measure("rules of semantics.md", len(RULE.findall(rules))),
        Measure("class names that stand in several modules", len(names_with_two_meanings(ours))),
        Measure("conditions by which verbs choose a road", choices_of_road(ours)),
    ]


def methods_of(node: ast.ClassDef) -> int:
    """How many methods and properties the class defines itself."""
    return sum(isinstance(each, FUNCTIONS) for each in node.body)


def lines_of(node: ast.ClassDef) -> int:
    """How many lines it has, from its name to its end."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def here() -> list[Measure]:
    """Those of this repository."""
    return measures(sources(), (ROOT / "docs/semantics.md").read_text(encoding="utf-8"))


def main(arguments: list[str]) -> None:
    """Print them; with `--json` as an object by name, with `--names` also what stands in several modules."""
    if unknown := [each for each in arguments if each not in ("--json", "--names")]:
        raise SystemExit(f"{unknown[0]!r} is not --json or --names; type `python -m tests.measures --names`")
    found = here()
    if "--json" in arguments:
        print(json.dumps({each.name: {"value": each.value, "of": each.of} for each in found}, indent=2))
        return
    for each in found:
        print(f"{each.value:>7,}  {each.name}{f': {each.of}' if each.of else ''}")
    if "--names" in arguments:
        ours = {file: source for file, source in sources().items() if not file.startswith(f"{FROZEN}/")}
        for name, files in names_with_two_meanings(ours).items():
            print(f"{name}: {', '.join(files)}")


if __name__ == "__main__":
    main(sys.argv[1:])
