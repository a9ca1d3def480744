"""Imports go one way, nothing imports in a circle, and the part that decides knows no clock, no chance and no store."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CORE = ("scheduler.model", "scheduler.rules", "scheduler.store", "scheduler.service")
ROOMS_OF_RULES = (
    *("entities", "placement", "admission", "index", "checks"),
    *("state", "command", "share", "stage", "view"),
)
"""The rooms of `scheduler.rules`, each of which may import from those before it."""
RULES = tuple(f"scheduler.rules.{room}" for room in ROOMS_OF_RULES)
RECOVERY = ("recovery.replay", "recovery.archive", "recovery.failover", "recovery.second_edition")
OUTER = (*CORE, *RECOVERY, "workers", "witness", "fairlog.watch", "fairlog.api")
LAW: Mapping[str, tuple[str, ...]] = {
    "scheduler.model": (),
    **{f"scheduler.rules.{room}": ("scheduler.model", *RULES[:place]) for place, room in enumerate(ROOMS_OF_RULES)},
    "scheduler.rules": ("scheduler.model",),
    "scheduler.store": ("scheduler.model",),
    "scheduler.service": ("scheduler.model", "scheduler.rules", "scheduler.store"),
    "workers": CORE,
    "recovery.replay": CORE,
    "recovery.archive": (*CORE, "recovery.replay"),
    "recovery.second_edition": ("scheduler.model", "scheduler.store", "scheduler.service"),
    "recovery.failover": (*CORE, "recovery.replay", "recovery.archive"),
    "witness.audit": (*CORE, *RECOVERY),
    "witness": (*CORE, *RECOVERY),
    "fairlog.watch": (*CORE, *RECOVERY, "witness"),
    "fairlog.page": (*CORE, *RECOVERY, "witness", "fairlog.watch"),
    "fairlog.api": (*CORE, *RECOVERY, "workers", "witness", "fairlog.watch", "fairlog.page"),
    "fairlog.local": (*CORE, *RECOVERY, "workers", "fairlog.watch", "fairlog.api"),
    "fairlog.compat": (*CORE, "fairlog.api", "fairlog.engines", "fairlog.local"),
    "fairlog.cli": (
        *OUTER,
        *("fairlog.page", "fairlog.local", "fairlog.demo", "fairlog.engines", "fairlog.compat", "fairlog.pools"),
    ),
    "fairlog.plugins": ("scheduler.model", "fairlog.api", "fairlog.engines"),
    "fairlog.pools": (*CORE, "fairlog.api", "fairlog.cli"),
    "fairlog.engines": (*CORE, "fairlog.api", "fairlog.local"),
    "fairlog.demo": (*OUTER, "fairlog.local", "fairlog.cli"),
    "fairlog": (*OUTER, "fairlog.local", "fairlog.cli", "fairlog.demo", "fairlog.engines", "fairlog.compat"),
}
"""Room -> the rooms that it may import from, besides the rooms within it and those that it lies in."""
PACKAGES = ("scheduler", "workers", "recovery", "witness", "fairlog")
DECIDES = ("scheduler.model", "scheduler.rules", "recovery.second_edition.rules")
OUTSIDE = {"time", "datetime", "random", "secrets", "uuid", "os", "socket", "subprocess", "threading", "redis", "rq"}
FILES = sorted(file.relative_to(ROOT) for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


def module_of(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str | None:
    """The innermost room of the law that the module lies in."""
    return max((room for room in LAW if f"{module}.".startswith(f"{room}.")), key=len, default=None)


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module imported anywhere: at the top, within a function, or for annotations only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = (ROOT / str(node.module).replace(".", "/")).is_dir()
            yield from (f"{node.module}.{alias.name}" if package else str(node.module) for alias in node.names)


def ours(tree: ast.AST) -> list[str]:
    return [name for name in imports(tree) if name.split(".")[0] in PACKAGES]


def _over_a_set(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        source = node.iter if isinstance(node, ast.For | ast.comprehension) else None
        made = isinstance(source, ast.Call) and ast.unparse(source.func) in {"set", "frozenset"}
        if source and (made or isinstance(source, ast.Set | ast.SetComp)):
            yield source.lineno


def _app_of_spec(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "app" and ast.unparse(node.value).split(".")[-1] == "spec":
            yield node.lineno


def _may_import(room: str, other: str | None) -> bool:
    if other is None:
        return False
    within = f"{other}.".startswith(f"{room}.") or f"{room}.".startswith(f"{other}.")
    return within or any(f"{other}.".startswith(f"{allowed}.") for allowed in LAW[room])


def faults(file: Path, source: str) -> list[str]:
    """A sentence for each law that the module breaks."""
    tree = ast.parse(source)
    module = module_of(file)
    room = room_of(module)
    if module in {"scheduler", "recovery"}:
        return [f"the package imports {name}" for name in ours(tree)]
    if room is None:
        return [f"{module} is in no room: give it one in the law"]
    found = [f"{room} may not import {name}" for name in ours(tree) if not _may_import(room, room_of(name))]
    found += [f"asks a specification, which apps share, for an app at line {line}" for line in _app_of_spec(tree)]
    if room.startswith(DECIDES):
        found += [f"decides, but imports {name}" for name in imports(tree) if name.split(".")[0] in OUTSIDE]
        found += [f"iterates over a set at line {line}" for line in _over_a_set(tree)]
    return found


def circle(sources: Mapping[str, str]) -> list[str]:
    """The modules of a circle of imports, the first one named again at the end; empty if there is none."""
    graph = {
        module: {name for name in ours(ast.parse(source)) if name != module and name in sources}
        for module, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def catch_alls(source: str) -> int:
    """How many handlers catch every exception."""
    caught = [
        ast.unparse(n.type) if n.type else "" for n in ast.walk(ast.parse(source)) if isinstance(n, ast.ExceptHandler)
    ]
    return sum(
        names in {"", "Exception", "BaseException"} or "Exception" in names.strip("()").split(", ") for names in caught
    )


def sources(files: Iterable[Path]) -> dict[str, str]:
    return {module_of(file): (ROOT / file).read_text() for file in files}


@pytest.mark.parametrize("file", FILES, ids=str)
def test_a_module_imports_what_its_room_may(file: Path) -> None:
    assert faults(file, (ROOT / file).read_text()) == []


def test_no_imports_form_a_circle() -> None:
    assert circle(sources(FILES)) == []


@pytest.mark.parametrize("room", sorted({file.parent for file in FILES}), ids=str)
def test_every_room_says_what_it_is_for(room: Path) -> None:
    assert len(ast.get_docstring(ast.parse((ROOT / room / "__init__.py").read_text())) or "") > 60


CATCH_ALLS = {
    "scheduler/service/scheduler.py": "whatever a message leads to, it is put aside",
    "fairlog/engines/functions.py": "what a user's function or its pickle raises is its caller's",
    "fairlog/engines/function_worker.py": "likewise",
    "fairlog/engines/script.py": "likewise",
}


def test_every_exception_is_caught_only_where_a_reason_is_given() -> None:
    found = {str(file): count for file in FILES if (count := catch_alls((ROOT / file).read_text()))}
    assert set(found) == CATCH_ALLS.keys()


FORBIDDEN = {
    "scheduler.model": "scheduler.rules.state.cluster",
    "scheduler.rules": "scheduler.store.keys",
    **dict(zip(RULES, (f"{above}.planted" for above in RULES[1:]), strict=False)),
    RULES[-1]: "scheduler.store.keys",
    "scheduler.store": "scheduler.rules.state.cluster",
    "scheduler.service": "recovery.replay.rebuild",
    "workers": "recovery.failover.lease",
    "recovery.replay": "recovery.archive.archive",
    "recovery.archive": "recovery.failover.lease",
    "recovery.failover": "witness.explain",
    "recovery.second_edition": "scheduler.rules.state.cluster",
    "witness.audit": "workers.agent",
    "witness": "fairlog.cli.render",
    "fairlog.page": "fairlog.api.app",
    "fairlog.watch": "fairlog.api.replica",
    "fairlog.api": "fairlog.cli.render",
    "fairlog.local": "fairlog.cli.render",
    "fairlog.engines": "fairlog.cli.render",
    "fairlog.plugins": "fairlog.cli.render",
    "fairlog.pools": "workers.agent",
    "fairlog.compat": "fairlog.cli.render",
}
"""Of each room, something that it may not import; what lies in `fairlog` may import everything else."""


@pytest.mark.parametrize("room", sorted(LAW.keys() - {"fairlog", "fairlog.cli", "fairlog.demo"}))
@pytest.mark.parametrize("form", ["import {}", "if TYPE_CHECKING:\n    import {}", "def f():\n    import {}"])
def test_the_check_finds_an_import_that_a_room_may_not_make(room: str, form: str) -> None:
    file = Path(room.replace(".", "/")) / "planted.py"
    assert faults(file, form.format(FORBIDDEN[room])) == [f"{room} may not import {FORBIDDEN[room]}"]


@pytest.mark.parametrize(
    ("file", "source", "fault"),
    [
        ("scheduler/rules/command/decide.py", "def f():\n    import time", "decides, but imports time"),
        ("scheduler/rules/entities/fleet.py", "[x for x in {1, 2}]", "iterates over a set at line 1"),
        *(
            ("witness/board.py", source, "asks a specification, which apps share, for an app at line 1")
            for source in ("app.spec.app", "spec.app")
        ),
        ("scheduler/unheard_of.py", "", "scheduler.unheard_of is in no room: give it one in the law"),
        ("scheduler/__init__.py", "import scheduler.model", "the package imports scheduler.model"),
    ],
)
def test_the_check_finds_what_else_the_law_forbids(file: str, source: str, fault: str) -> None:
    assert faults(Path(file), source) == [fault]


@pytest.mark.parametrize("form", ["import {}", "if TYPE_CHECKING:\n    import {}", "def f():\n    import {}"])
def test_the_check_finds_a_circle(form: str) -> None:
    planted = {"witness.one": "import witness.two", "witness.two": form.format("witness.one"), "witness.three": ""}
    assert sorted(set(circle(planted))) == ["witness.one", "witness.two"]


@pytest.mark.parametrize("clause", ["except:", "except BaseException:", "except (ValueError, Exception) as error:"])
def test_the_check_finds_a_handler_that_catches_every_exception(clause: str) -> None:
    assert catch_alls(f"try:\n    pass\n{clause}\n    pass") == 1
    assert catch_alls("try:\n    pass\nexcept (ValueError, OSError):\n    pass") == 0
