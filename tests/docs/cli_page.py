"""docs/cli.md from the verbs' own help: `python -m tests.docs.cli_page` writes it anew, the examples kept.

A section's text and options come from `--help`; what follows, from its example on, is written by hand.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import click

from fairlog.cli.main import cli
from fairlog.cli.target import target_options
from tests.docs.one_a_line import one_a_line

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
COMMON = "Cluster options"
_BY_HAND = re.compile(r"^(?:```console|<!-- run: )", re.MULTILINE)


@target_options()
def _none() -> None:
    """No verb."""


_CLUSTER: list[click.Option] = list(reversed(getattr(_none, "__click_params__", [])))


def verbs(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every verb with its path, in the order of the help; a group before its own."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from verbs(command, (*path, name))


def sections(text: str) -> dict[str, str]:
    """The page's sections by their headings; that before the first heading has none, ""."""
    parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def described(path: tuple[str, ...], command: click.Command) -> str:
    """What the page says of a verb: its usage, its help and its own options."""
    context = click.Context(command, info_name=" ".join(("fairlog", *path)))
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    paragraphs = [" ".join(each.split()) for each in inspect.cleandoc(command.help or "").split("\n\n")]
    common = {option.name for option in _CLUSTER}
    options = [option for option in command.params if isinstance(option, click.Option) and not option.hidden]
    own = [option for option in options if option.name not in common or path == ("up",)]
    lines = [f"`{usage}`", *paragraphs]
    if own:
        lines.append(_table(own))
    if len(own) < len(options):
        lines.append(f"Accepts the [cluster options](#{COMMON.lower().replace(' ', '-')}).")
    return one_a_line("\n\n".join(lines)).rstrip()


def common() -> str:
    """The options by which every verb finds its cluster."""
    return _table([option for option in cli.params if isinstance(option, click.Option) and option.name != "version"])


def _table(options: list[click.Option]) -> str:
    rows = []
    for option in options:
        record = option.get_help_record(click.Context(cli))
        assert record is not None
        names, text = (" ".join(part.split()).replace("|", "\\|") for part in record)
        rows.append(f"| `{names}` | {text} |")
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def written(text: str) -> str:
    """The page with every description from the help, the hand-written rest of each section kept."""
    old = sections(text)
    parts = [old[""].rstrip(), f"## {COMMON}\n\n{old.get(COMMON, '').partition('| option |')[0].lstrip()}{common()}"]
    for path, command in verbs():
        rest = by_hand(old.get(" ".join(path), ""))
        parts.append(f"## {' '.join(path)}\n\n{described(path, command)}" + (f"\n\n{rest}" if rest else ""))
    return "\n\n".join(parts) + "\n"


def by_hand(section: str) -> str:
    """What stands in a section from its example on."""
    found = _BY_HAND.search(section)
    return section[found.start() :].strip() if found else ""


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
