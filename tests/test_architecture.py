"""Imports go one way, and the part that decides knows no clock, no chance and no store."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("scheduler", "workers", "recovery", "fairlog")
PURE = (
    ("scheduler.model.errors", "scheduler.model.resources"),
    ("scheduler.model.events", "scheduler.model.commands", "scheduler.model.grants", "scheduler.keys"),
    ("scheduler.reading",),
    (
        "scheduler.rules.ledger",
        "scheduler.rules.fleet",
        "scheduler.rules.admission.quota",
        "scheduler.rules.admission.queue",
        "scheduler.rules.invariants",
        "scheduler.rules.topology",
        "scheduler.rules.admission",
        "scheduler.rules.placement",
    ),
    ("scheduler.rules.entities",),
    ("scheduler.rules.state", "scheduler.rules.validate"),
    ("scheduler.rules.submission", "scheduler.rules.demand", "scheduler.rules.snapshot_rows"),
    ("scheduler.rules.decide", "scheduler.rules.assignments", "scheduler.rules.views"),
    ("scheduler.rules.turn", "scheduler.rules.simulate"),
)
IMPURE = (
    (
        "scheduler.underway",
        "scheduler.service.notify",
        "scheduler.service.program_log",
        "scheduler.service.outage",
        "scheduler.outage",
    ),
    ("scheduler.primacy",),
    (
        "scheduler.eventlog",
        "scheduler.doorbell",
        "scheduler.service.client",
        "scheduler.worklist",
        "scheduler.worklist_lua",
    ),
    ("scheduler.service.scheduler",),
)
LEVEL = {module: level for level, layer in enumerate(PURE + IMPURE) for module in layer}
LEVEL |= {"workers": 100, "recovery": 100, "fairlog": 200}
OUTSIDE = {"time", "datetime", "random", "secrets", "uuid", "os", "socket", "subprocess", "threading", "redis", "rq"}
FILES = sorted(file.relative_to(ROOT) for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def _part(module: str) -> str:
    """What the table of layers knows a module by: the longest beginning of its name that the table has."""
    names = module.split(".")
    found = (".".join(names[:length]) for length in range(len(names), 0, -1))
    return next((name for name in found if name in LEVEL), module)


def _imports(tree: ast.AST) -> Iterator[str]:
    """Every module imported at run time; what stands under `if TYPE_CHECKING:` is for readers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            from_package = (ROOT / str(node.module).replace(".", "/")).is_dir()
            yield from (f"{node.module}.{alias.name}" if from_package else str(node.module) for alias in node.names)
        yield from _imports(node)


def _over_a_set(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        source = node.iter if isinstance(node, ast.For | ast.comprehension) else None
        made = isinstance(source, ast.Call) and ast.unparse(source.func) in {"set", "frozenset"}
        if source and (made or isinstance(source, ast.Set | ast.SetComp)):
            yield source.lineno


def faults(file: Path, source: str) -> list[str]:
    """A sentence for each rule that the module breaks."""
    tree = ast.parse(source)
    part = _part(".".join(file.with_suffix("").parts))
    if file.name == "__init__.py" and part not in LEVEL:
        return [f"the package imports {name}" for name in _imports(tree) if name.split(".")[0] in PACKAGES]
    if part not in LEVEL:
        return [f"{part} has no layer: give it one in this test"]
    ours = [_part(name) for name in _imports(tree) if name.split(".")[0] in PACKAGES]
    found = [f"imports {name}, which comes later" for name in ours if LEVEL.get(name, 999) > LEVEL[part]]
    if LEVEL[part] == 100:
        found += [f"imports its sibling {name}" for name in ours if LEVEL[name] == 100 and name != part]
    if LEVEL[part] < len(PURE):
        found += [f"decides, but imports {name}" for name in _imports(tree) if name.split(".")[0] in OUTSIDE]
        found += [f"iterates over a set at line {line}" for line in _over_a_set(tree)]
    return found


def catch_alls(source: str) -> int:
    """How many handlers catch every exception."""
    caught = [
        ast.unparse(n.type) if n.type else "" for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ExceptHandler)
    ]
    return sum(
        names in {"", "Exception", "BaseException"} or "Exception" in names.strip("()").split(", ") for names in caught
    )


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_module_keeps_to_its_layer(file: Path) -> None:
    assert faults(file, (ROOT / file).read_text()) == []


def test_every_exception_is_caught_in_at_most_one_place() -> None:
    found = {str(file): count for file in FILES if (count := catch_alls((ROOT / file).read_text()))}
    assert set(found) <= {"scheduler/service/scheduler.py"}
    assert sum(found.values()) <= 1


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        (
            "scheduler/model/events.py",
            "from scheduler.rules import state",
            "imports scheduler.rules.state, which comes later",
        ),
        ("scheduler/rules/decide.py", "def f():\n    import time", "decides, but imports time"),
        ("scheduler/rules/admission/user.py", "from redis.client import Redis", "decides, but imports redis.client"),
        ("scheduler/rules/fleet.py", "[x for x in {1, 2}]", "iterates over a set at line 1"),
        ("scheduler/service/scheduler.py", "import fairlog.cli", "imports fairlog, which comes later"),
        ("workers/agent.py", "from recovery.audit import audit", "imports its sibling recovery"),
        ("scheduler/unheard_of.py", "", "scheduler.unheard_of has no layer: give it one in this test"),
    ],
)
def test_the_check_finds_a_module_that_does_not(file: str, source: str, fault: str) -> None:
    assert faults(Path(file), source) == [fault]


@pytest.mark.parametrize("clause", ["except:", "except BaseException:", "except (ValueError, Exception) as error:"])
def test_the_check_finds_a_handler_that_catches_every_exception(clause: str) -> None:
    assert catch_alls(f"try:\n    pass\n{clause}\n    pass") == 1
    assert catch_alls("try:\n    pass\nexcept (ValueError, OSError):\n    pass") == 0
