"""Runs what README and docs show: `python -m tests.docs.pages PAGE…` records the output anew.

A fence ```` ```console ```` holds commands, `$ COMMAND`, and below each what it prints. A page runs from top to bottom
in a home and a folder of its own; `<!-- run: COMMAND -->` runs a command that is not shown. A fence whose first line
goes on with `not run: REASON` is only listed. A line `…` stands for any lines. Output is compared without times,
process ids, digests and widths of columns; ids of apps are those of this run in later commands. A command fails if and
only if the page shows a line that begins with `Error:`. Of a ```` ```python ```` fence, `print(…)  # OUTPUT` says what
it prints.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from click.testing import CliRunner

from fairlog.cli.main import cli
from scheduler.service.advice import DATA_VARIABLE
from tests.waiting import HOPELESS_S

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
HOME, HOST = "/home/ann", "node-1"
"""What the pages call the folder of their user and their machine."""
SOON_S = HOPELESS_S
"""How long a command that only reads may take until it shows what the page shows."""
READS = {"apps", "app", "workers", "shares", "status", "log", "logs", "explain", "company list"}
_FENCE = re.compile(
    r"^<!-- run: (?P<hidden>[^\n]+) -->$|^```python\n(?P<python>.*?)^```$"
    r"|^```console(?: not run: (?P<why>[^\n]+))?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_PRINTED = re.compile(r"\bprint\(.*\)  # (.+)$", re.MULTILINE)
_URL = "redis://store:6379/0"
"""The store of the cluster, in a page's Python."""
_APP = re.compile(r"\bapp-[0-9a-f]{12}\b")
_PROGRESS = re.compile(rf"{_APP.pattern} (pending|running)(, \d+ of \d+ tasks done)?")
_ASIDE = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?Z?"), "TIME"),
    (re.compile(r"\b[0-9a-f]{32,64}\b"), "DIGEST"),
    (re.compile(r"\b[0-9a-f]{16}\b"), "KEY"),
    (re.compile(r"\bprocess \d+\b"), "process N"),
    (re.compile(rf"\b{HOST}-\d+-[0-9a-f]+\b"), "MASTER"),
    (re.compile(r"unix://\S+"), "STORE"),
    (re.compile(r"\blocal/\d+\b"), "local/UID"),
    (re.compile(r"^ *\d+(?=  TIME)|\b\d+(?= log entries)|(?<=log at )\d+|(?<=restored at )\d+|seq +\d+$"), "N"),
    (re.compile(r"\b\d+(\.\d+)? ?(ms|s)\b"), "DURATION"),
    (_APP, "APP"),
    (re.compile(r"[-─━]{3,}"), "---"),
    (re.compile(r"\s+"), " "),
)


@dataclass
class Step:
    """A command of a page, and what the page says that it prints; None if the page does not show it."""

    command: str
    shown: str | None
    start: int
    """Where in the page the output begins."""


@dataclass
class Page:
    """A page's commands, and the reasons of those that are not run."""

    path: Path
    text: str
    steps: list[Step]
    not_run: list[str]
    fences: int
    """How many fences were read."""


def links(page: Path) -> list[str]:
    """Where the page's links lead that stay in the repository."""
    found = re.findall(r"\]\(([^)\s]+)\)", _outside_fences(page))
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether there is such a file, with such a heading or anchor if it is one of Markdown."""
    name, _, anchor = link.partition("#")
    there = page.parent / name if name else page
    return there.exists() and (not anchor or there.suffix != ".md" or anchor in _anchors(there))


def _anchors(page: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them of its headings, and those that it names."""
    text, found = _outside_fences(page), dict[str, int]()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    numbered = {f"{name}-{number}" for name, most in found.items() for number in range(1, most + 1)}
    return {*found, *numbered, *re.findall(r'(?:id|name)="([^"]+)"', text)}


def _outside_fences(page: Path) -> str:
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def read(path: Path) -> Page:
    """The page. Raises: ValueError if a fence does not begin with a command."""
    text = path.read_text()
    steps: list[Step] = []
    not_run: list[str] = []
    fences = 0
    for fence in _FENCE.finditer(text):
        if fence["hidden"]:
            steps.append(Step(fence["hidden"], None, fence.end()))
            continue
        if fence["python"]:
            shown = "".join(f"{line}\n" for line in _PRINTED.findall(fence["python"]))
            steps.append(Step(f"python -c {shlex.quote(fence['python'])}", shown, fence.end()))
            continue
        fences += 1
        if fence["why"]:
            not_run.append(fence["why"])
            continue
        found = list(re.finditer(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", fence["text"], re.MULTILINE))
        if "".join(each[0] for each in found) != fence["text"]:
            raise ValueError(f"{path.name}: a fence must begin with `$ COMMAND`: {fence['text'][:80]!r}")
        steps += [Step(each[1], each[2], fence.start("text") + each.start(2)) for each in found]
    return Page(path, text, steps, not_run, fences)


def plain(text: str) -> list[str]:
    """The lines without what differs from run to run, and without how far an app has come: quick ones print none."""
    lines = [line for line in text.rstrip().splitlines() if not _PROGRESS.fullmatch(line.strip())]
    for pattern, word in _ASIDE:
        lines = [pattern.sub(word, line) for line in lines]
    return [line.strip() for line in lines]


def agrees(shown: str, printed: str) -> bool:
    """Whether the output is what the page shows."""
    pieces = [re.escape(line) if line != "…" else None for line in plain(shown)]
    pattern = "".join("(?:.*\n)*" if piece is None else f"{piece}\n" for piece in pieces)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in plain(printed))) is not None


@dataclass
class Machine:
    """A home and a folder for one page."""

    folder: Path
    soon_s: float = SOON_S
    ids: dict[str, str] = field(default_factory=dict)
    """App id in the page -> that of this run."""

    def __post_init__(self) -> None:
        """Make the folder."""
        self.folder.mkdir(exist_ok=True)

    @property
    def env(self) -> dict[str, str]:
        """The environment of a command; nothing of ours but the programs."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FAIRLOG", "XDG"))}
        return {
            **kept,
            "HOME": str(self.folder),
            "PYTHONPATH": str(ROOT),
            "REPO": str(ROOT),
            "COLUMNS": "120",
            "TZ": "UTC",
        }

    def run(self, command: str) -> tuple[int, str]:
        """The exit code and the output of a command, in this page's names for home and host."""
        if command.startswith("python ") and _URL in command:
            command = command.replace(_URL, json.loads(self.run("fairlog status --json")[1])["store"]["url"])
        command = _APP.sub(lambda found: self.ids.get(found[0], found[0]), command)
        # What leaves a process behind is a process itself: `up --detach`.
        if (
            command.startswith("fairlog ")
            and "--detach" not in command
            and not re.search(r"[|;<>&]|\$\(|\$[A-Z]|\*", re.sub(r"'[^']*'", "", command))
        ):
            code, text = self._in_process(shlex.split(command)[1:])
        else:
            script = f'python() {{ "{sys.executable}" "$@"; }}; fairlog() {{ python -m fairlog "$@"; }}\n{command}'
            done = subprocess.run(
                ["bash", "-c", script],
                cwd=self.folder,
                env=self.env,
                capture_output=True,
                text=True,
                timeout=HOPELESS_S,
                check=False,
            )
            code, text = done.returncode, done.stdout + done.stderr
        return code, text.replace(str(self.folder), HOME).replace(socket.gethostname(), HOST)

    def _in_process(self, arguments: list[str]) -> tuple[int, str]:
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            ours = [DATA_VARIABLE, *(name for name in os.environ if name.startswith(("FAIRLOG", "XDG")))]
            unset: dict[str, str | None] = dict.fromkeys(ours)
            answer = CliRunner(env={**unset, **self.env}).invoke(cli, arguments, prog_name="fairlog")
        finally:
            os.chdir(before)
        return answer.exit_code, answer.output

    def take(self, step: Step) -> tuple[bool, str]:
        """Whether the step prints what the page shows, and what it prints; one that reads is asked until it does."""
        words = step.command.split()
        reads = words[0] == "fairlog" and (words[1] in READS or " ".join(words[1:3]) in READS or "--plan" in words)
        deadline = time.monotonic() + (self.soon_s if reads else 0)
        while True:
            code, printed = self.run(step.command)
            if step.shown is None:
                return code == 0, printed
            fails = any(line.startswith("Error:") for line in step.shown.splitlines())
            if (code != 0) == fails and agrees(step.shown, printed):
                for shown, ours in zip(_APP.findall(step.shown), _APP.findall(printed), strict=False):
                    self.ids.setdefault(shown, ours)
                return True, printed
            if time.monotonic() > deadline:
                return False, f"{printed}(exit code {code})\n"
            time.sleep(0.2)

    def down(self) -> None:
        """Stop whatever the page has started."""
        while self.run("fairlog down")[0] == 0:
            pass


def failures(page: Page, folder: Path) -> Iterator[str]:
    """A line for each command that does not print what the page shows."""
    machine = Machine(folder)
    try:
        for step in page.steps:
            right, printed = machine.take(step)
            if not right:
                yield f"`{step.command}` prints\n{printed}\nnot\n{step.shown}"
    finally:
        machine.down()


def record(path: Path) -> None:
    """Write what each command prints into the page, where that is not what it shows."""
    page = read(path)
    with TemporaryDirectory() as home:
        machine = Machine(Path(home) / "ann", soon_s=3)
        text = page.text
        moved = 0
        try:
            for step in page.steps:
                right, printed = machine.take(step)
                if right or step.shown is None:
                    continue
                printed = re.sub(r"\(exit code \d+\)\n$", "", printed)
                for shown, ours in machine.ids.items():
                    printed = printed.replace(ours, shown)
                printed = re.sub(r"[ \t]+$", "", printed, flags=re.MULTILINE)
                at = step.start + moved
                text = text[:at] + printed + text[at + len(step.shown) :]
                moved += len(printed) - len(step.shown)
                sys.stdout.write(f"$ {step.command}\n{printed}")
        finally:
            machine.down()
    path.write_text(text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        record(Path(name))
