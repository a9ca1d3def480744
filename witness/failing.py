"""Failing workers in words: from which an app is excluded (semantics W7, W9), and which are suspected (W8)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from recovery.replay.bounds import moment
from scheduler.model.text import few

_NAMED = 5
"""The largest number of names in a sentence."""


def exclusion_in_words(exclusion: Mapping[str, Any], who: str = "it") -> str:
    """An entry of `excludedWorkers` of the view `app`, as JSON values, as a sentence about `who`."""
    worker, until, ends = exclusion["worker"], moment(exclusion["until"]), exclusion["ends"]
    if exclusion["unstartable"]:
        return f"{who} is excluded from {worker} until {until}: its command cannot be started there"
    return (
        f"{who} is excluded from {worker} until {until}: {ends} of its executors ended abnormally there, with no task "
        "finished in between"
    )


def suspicion_in_words(worker: str, suspicion: Mapping[str, Any]) -> str:
    """The `suspicion` of a worker in the views `workers` and `cluster`, as JSON values, as a sentence."""
    names = suspicion["executors"]
    why = f"{few(names, _NAMED)} ended abnormally within 10 s of their start"
    if suspicion["probe"]:
        return f"worker {worker} is suspected; {suspicion['probe']} runs on it as a probe: {why}"
    if suspicion["onProbe"]:
        return f"worker {worker} is suspected and gets one executor as a probe: {why}"
    again = f", {suspicion['times']} times in a row" if suspicion["times"] > 1 else ""
    return f"worker {worker} is suspected until {moment(suspicion['until'])}{again}: {why}"
