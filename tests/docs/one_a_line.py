"""The documents have one sentence a line, so that a change shows what it changes.

`python -m tests.docs.one_a_line` breaks the lines of those that have more.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
NEXT_SENTENCE = re.compile(r"(?:(?<=[\w)`%*]\.)(?<!\.\.)|(?<=\.\*)) (?=[A-Z`⌊])")
_MARK = re.compile(r"[0-9]+\. |[A-Z][0-9]+\. |- ")


def sentences(line: str) -> list[str]:
    """The line's sentences; what belongs to an item of a list is indented as its text is."""
    indent = line[: len(line) - len(line.lstrip())]
    mark = _MARK.match(line.lstrip())
    head = indent + (mark[0] if mark else "")
    under = indent if mark is None or mark[0][0].isalpha() else " " * len(head)
    first, *others = NEXT_SENTENCE.split(line[len(head) :])
    return [head + first, *[under + each for each in others]]


def one_a_line(page: str) -> str:
    """The page with one sentence a line."""
    return "".join([f"{each}\n" for line, prose in _lines(page) for each in (sentences(line) if prose else [line])])


def crowded(page: str) -> list[str]:
    """The lines of more than one sentence."""
    return [line for line, prose in _lines(page) if prose and len(sentences(line)) > 1]


def _lines(page: str) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it has sentences: neither examples, figures, tables nor headings have."""
    inside = False
    for line in page.splitlines():
        fence = line.lstrip().startswith("```")
        inside ^= fence
        yield line, not (inside or fence or line.startswith(("    ", "|", "#", "<!--")))


if __name__ == "__main__":
    for path in DOCS.glob("*.md"):
        path.write_text(one_a_line(path.read_text()))
