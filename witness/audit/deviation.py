"""The findings of an audit: entries that do not follow the rules, and verdicts that group them by cause."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from scheduler.model.events import AppAdmitted, Event

if TYPE_CHECKING:
    from scheduler.rules.state.cluster import ClusterState

CHAIN = "chain"
"""The rule of a deviation where the chain of digests is broken, or an entry cannot be read."""


class Deviation(NamedTuple):
    """At position `seq` the log has `done` where `due` was due under `rule`; app `entitled` was passed over."""

    seq: int
    rule: str
    done: str
    due: str
    entitled: str | None = None
    companies: tuple[str, ...] = ()
    """The companies that it concerns; empty = all."""
    whose: str = ""
    """User and company of an app whose admission was due and is missing, "USER, COMPANY"."""

    def as_json(self) -> dict[str, object]:
        """The deviation as `fairlog audit --json` prints it."""
        return {name: getattr(self, name) for name in ("seq", "rule", "done", "due", "entitled")}

    def __str__(self) -> str:
        if self.whose:
            return f"app {self.entitled} ({self.whose}) was due under {self.rule} and is passed over"
        return f"{self.done} stands where {self.due} was due under {self.rule}"


@dataclass
class CommonCause:
    """Deviations that have one cause."""

    first: Deviation
    later: list[Deviation] = field(default_factory=list)

    def __str__(self) -> str:
        seq, rule = self.first.seq, self.first.rule
        if rule == CHAIN:
            return f"From {seq} on this log cannot be trusted: {self.first.done}."
        sentence = f"From {seq} on this log does not follow its rules: {self.first}."
        if not self.later:
            return sentence
        have = "deviation has" if len(self.later) == 1 else "deviations have"
        return f"{sentence} {len(self.later)} later {have} the same cause."

    def concerns(self, company: str) -> bool:
        """Whether one of its deviations concerns the company."""
        return any(not each.companies or company in each.companies for each in (self.first, *self.later))

    def as_json(self) -> dict[str, object]:
        """The verdict as `fairlog audit --json` prints it."""
        return {**self.first.as_json(), "verdict": str(self), "later": [each.as_json() for each in self.later]}


def deviation(state: ClusterState, seq: int, done: Event | None, due: Event | str | None, rule: str) -> Deviation:
    """The deviation at position `seq`, on the state before it; `due` may be given in words."""
    entitled = None if isinstance(due, str) else getattr(due, "app", None)
    apps = [getattr(event, "app", None) for event in (done, due)]
    known = [state.apps[app].spec.company for app in apps if app in state.apps]
    whose = ""
    if isinstance(due, AppAdmitted) and due.app != getattr(done, "app", None):
        whose = f"{due.user}, {due.company}"
    said = due if isinstance(due, str) else words(due)
    return Deviation(seq, rule, words(done), said, entitled, tuple(dict.fromkeys(known)), whose)


def words(event: Event | None) -> str:
    """An event in one line: its type, and its fields that are not the default."""
    if event is None:
        return "nothing"
    usual = {each.name: each.default for each in structs.fields(event)}
    said = [f"{name}={value}" for name, value in structs.asdict(event).items() if value != usual[name]]
    return " ".join([type(event).__name__, *said])
