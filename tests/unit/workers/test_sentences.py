"""What workers can say of an end is in the list of sentences that the log may hold, and nothing else is."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import workers
from scheduler.service.sentences import TEMPLATES

ELSEWHERE = {
    "api_door": "how an agent reaches an API server, for its own log",
    "fitness": "why a worker is unwell, which is private",
    "health": "why a worker drains itself, which is private",
    "machine": "what `fairlog worker` says to whoever starts it",
    "offer": "what `fairlog worker` says to whoever starts it",
    "servers": "how an agent reaches an API server, for its own log",
    "store_door": "refusals of what a token does not allow, which are answers",
    "token": "what `fairlog worker` says to whoever starts it",
    "unused": "why the use of GPUs is not known, for the agent's own log",
    "visits": "answers to whoever visits a cell",
}
"""Modules whose words end nothing, and where these go."""
NO_END = {
    "worker {} may not act: {}; an operator invites it with `fairlog worker invite {}`": "its own log",
    "cells need Linux": "`worker --check`",
    "--image names {} twice; name each image once": "to who starts a worker",
    "an image is NAME=FOLDER, such as alpine=/srv/images/alpine, and its name has letters, digits and ._-, not {}": (
        "to who starts a worker"
    ),
    (
        "image {} is to be {}, which has neither usr nor bin nor lib: name the folder into which a whole system was "
        "unpacked"
    ): "to who starts a worker",
    "bubblewrap is not installed": "`worker --check`",
    "bubblewrap cannot be run: {}": "`worker --check`",
    "bubblewrap ended with exit code {}": "`worker --check`",
    "import os; os._exit(7)": "a program",
    "a request must be an object": "fairlog-launch, to who is no agent",
    "with a request to start come a socket and a folder of who asks": "fairlog-launch, to who is no agent",
    "the verbs are start, kill and list": "fairlog-launch, to who is no agent",
    "this process cannot be protected from its children": "of a process that has no task yet, for its stderr",
    "its interpreter does not exist": "why a command cannot be run, which stays as the system's reasons do",
    "task {} of {} runs only in fairlog's executors; stop the RQ worker on this queue": "a foreign RQ worker's log",
    "it is no regular file": "why a file cannot be opened, which stays as the system's reasons do",
    "a stream may have {} bytes": "the output itself",
    "it is not a file of its own": "the output itself",
    "nothing can be started: {}": "why a worker is unwell, which is private",
    "nothing can be written to its run folder: {}": "likewise",
    "its forkserver does not answer": "likewise",
}
"""Sentences of other modules that reach no end, and where they go."""
OUTPUT = re.compile(r"\{?\}?fairlog: .*\n|.*\n|\[cells\] of .*|share of \[cells\] .*|.* has a table .*|.* the uid .*")
"""Lines of the output, of protocols, and what is said of a map of accounts when fairlog-launch starts."""
FEW = 3
"""Texts of fewer words are no sentences."""


def templates(module: Path) -> Iterator[str]:
    """The texts of a module, `{}` for each value in them, but docstrings, help and what is written to its log."""
    tree = ast.parse(module.read_text())
    left = {id(part) for node in ast.walk(tree) for part in _left_out(node)}
    for node in ast.walk(tree):
        if id(node) not in left:
            if isinstance(node, ast.JoinedStr):
                yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def _left_out(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.JoinedStr):
        yield from node.values
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        yield node.value
    elif isinstance(node, ast.keyword) and node.arg == "help":
        yield from ast.walk(node.value)
    elif isinstance(node, ast.Call):
        called = ast.unparse(node.func)
        if called.startswith("_log.") or called in {"sys.exit", "ArgumentParser", "argparse.ArgumentParser"}:
            yield from ast.walk(node)


def is_listed(text: str) -> bool:
    """Whether it is such a sentence, or the end or the value of a part of one."""
    words = ".+".join(map(re.escape, re.split("{}(?:/{})?", text)))
    pattern = re.compile(rf"(?:.*[ :])?{words}(?: \(worker <worker>\))?")
    return any(pattern.fullmatch(each) for each in TEMPLATES)


MODULES = [path for path in sorted(Path(workers.__file__).parent.glob("*.py")) if path.stem not in ELSEWHERE]


@pytest.mark.parametrize("module", MODULES, ids=lambda path: str(path.stem))
def test_every_sentence_of_workers_is_listed_or_reaches_no_end(module: Path) -> None:
    said = {text for text in templates(module) if sum(any(map(str.isalpha, word)) for word in text.split()) >= FEW}
    assert {text for text in said if not (is_listed(text) or text in NO_END or OUTPUT.fullmatch(text))} == set()
