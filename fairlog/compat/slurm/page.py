"""The tables of docs/slurm.md, made from those of the options."""

from __future__ import annotations

from fairlog.compat.slurm import tables
from fairlog.compat.slurm.start import COMMANDS
from fairlog.compat.slurm.words import ACTS, IDLE, LEFT, what_becomes_of


def tables_of_the_page() -> str:
    """A section for each command: what acts, what is accepted without effect, what is refused."""
    parts: list[str] = []
    for command in COMMANDS:
        options = getattr(tables, command.upper())
        parts += [f"### {command}", "", "| option | what becomes of it |", "|---|---|"]
        for effect in (ACTS, IDLE, LEFT):
            for option in options:
                if option.effect == effect:
                    letter = f"-{option.letter}, " if option.letter else ""
                    value = (
                        f"[={option.value[1:-1]}]" if option.optional else f"={option.value}" if option.value else ""
                    )
                    shown = f"{letter}--{option.name}{value}".replace("|", "\\|")
                    parts.append(f"| `{shown}` | {what_becomes_of(option)} |")
        parts.append("")
    return "\n".join(parts)
