"""The store's Lua scripts, each of them atomic: files `lua/NAME.lua` beside the modules that run them.

A file begins with comments that say what it does; they are not sent. A last one, `-- with NAME, NAME`, names the files
beside it whose functions the script uses.
"""

from __future__ import annotations

from pathlib import Path

_WITH = "-- with "


def script(module: str, name: str) -> str:
    """The text of the script of that name beside the module, whose `__file__` is given, after what it uses."""
    folder = Path(module).with_name("lua")
    bodies: dict[str, str] = {}
    _gather(folder, name, bodies)
    return "".join(bodies.values())


def _gather(folder: Path, name: str, bodies: dict[str, str]) -> None:
    """Add the body of the file, after those of the files that it uses, each once."""
    comments, _, body = (folder / f"{name}.lua").read_text(encoding="utf-8").partition("\n\n")
    last = comments.rpartition("\n")[2]
    for used in last.removeprefix(_WITH).split(", ") if last.startswith(_WITH) else ():
        if used not in bodies:
            _gather(folder, used, bodies)
    bodies[name] = body
