"""Advice that acts on the cluster it is about: the commands in a sentence name the data folder of an `up`."""

from __future__ import annotations

import os
import re
import shlex

DATA_VARIABLE = "FAIRLOG_ADVISED_DATA"
"""Environment variable of the processes of an `up` whose data folder is not the default one: that folder."""
_TYPED = re.compile(r"`fairlog (?P<rest>[^`]+)`")
_NAMES_A_PLACE = re.compile(r"--(?:data|store|api)\b")


def program(data: str = "") -> str:
    """What is typed before a verb that acts on that data folder, or the one that the environment names, if any."""
    data = data or os.environ.get(DATA_VARIABLE, "")
    return f"fairlog --data {shlex.quote(data)}" if data else "fairlog"


def of_this_cluster(said: str, data: str = "") -> str:
    """The sentence, whose commands act on that data folder, or the one that the environment names, if any.

    A command that names a place already stays as it is, and so does a bare `fairlog up`, which is a program.
    """
    fairlog = program(data)
    if fairlog == "fairlog":
        return said

    def named(found: re.Match[str]) -> str:
        rest = found["rest"]
        if rest == "up" or _NAMES_A_PLACE.search(rest):
            return found[0]
        return f"`{fairlog} {rest}`"

    return _TYPED.sub(named, said)
