"""For how long nobody could submit while a fault lasted, by the times of answers to clients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Answer(NamedTuple):
    """A client's command was answered by a master. Times are those of the monotonic clock (s)."""

    client: int
    sent_s: float
    answered_s: float


BEFORE_S = 1.0
"""A command that was sent so shortly before a fault is one that the fault meets."""


class Span(NamedTuple):
    """A fault: when it began, when its cause was gone, and when everything was well and each client answered again."""

    fault: str
    began_s: float
    healed_s: float
    well_s: float


class Pauses(NamedTuple):
    """The longest times (s) during a fault: without an answer to anybody, to one client, and until one command's."""

    nobody_s: float
    one_client_s: float
    one_command_s: float


def pauses(span: Span, answers: Sequence[Answer]) -> Pauses:
    """How long clients waited, from the beginning of the fault until everything was well."""
    during = [each for each in answers if span.began_s <= each.answered_s < span.well_s]
    met = [each for each in answers if span.began_s - BEFORE_S <= each.sent_s < span.well_s]
    clients = {each.client for each in answers}
    return Pauses(
        _longest(span, (each.answered_s for each in during)),
        max(_longest(span, (each.answered_s for each in during if each.client == client)) for client in clients),
        max((each.answered_s - each.sent_s for each in met), default=span.well_s - span.began_s),
    )


def _longest(span: Span, times_s: Iterable[float]) -> float:
    return max(later - earlier for earlier, later in pairwise([span.began_s, *sorted(times_s), span.well_s]))
