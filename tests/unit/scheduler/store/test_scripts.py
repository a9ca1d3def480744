"""The store's Lua scripts are files, and each says what it does and what it uses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scheduler.store.scripts import script

ROOT = Path(__file__).parents[4]
PACKAGES = ("fairlog", "scheduler", "workers", "recovery", "witness")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.lua"))
MODULES = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]


def test_a_script_is_sent_after_what_it_uses_each_once_and_without_its_comments(tmp_path: Path) -> None:
    folder = tmp_path / "lua"
    folder.mkdir()
    (folder / "one.lua").write_text("-- One.\n\nlocal one = 1\n")
    (folder / "two.lua").write_text("-- Two.\n--\n-- with one\n\nlocal two = one + 1\n")
    (folder / "three.lua").write_text("-- with one, two\n\n-- kept\nreturn one + two\n")
    sent = script(str(tmp_path / "module.py"), "three")
    assert sent == "local one = 1\nlocal two = one + 1\n-- kept\nreturn one + two\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parents[1].name}/{path.name}")
def test_a_script_says_what_it_does_and_is_sent_by_name(path: Path) -> None:
    assert path.read_text().startswith("-- ")
    beside = [other.read_text() for other in path.parent.glob("*.lua")]
    used = [
        name
        for text in beside
        for found in re.findall(r"^-- with (.*)$", text, re.MULTILINE)
        for name in found.split(", ")
    ]
    sent = re.compile(rf'script\(__file__, "{path.stem}"\)')
    senders = [module for module in path.parents[1].glob("*.py") if sent.search(module.read_text())]
    assert senders or path.stem in used


def test_no_module_has_lua_in_it() -> None:
    assert len(FILES) > 30
    assert [path.name for path in MODULES if "redis.call(" in path.read_text() and path.name != "scripts.py"] == []
