"""A verdict is a sentence for each cause: what follows from one fault is one verdict, whatever else it changes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner, Result

from fairlog.cli.main import cli
from scheduler.model.commands import Command, EndApp, EndedExecutor, StartedExecutor
from scheduler.model.events import AppAdmitted, ExecutorAllocated
from scheduler.model.ids import app_of
from scheduler.store.codec import Fact
from tests.property.given import Cluster, submission
from tests.unit.recorded import edited, exported, facts, rechained, stored, without
from witness.audit.audit import Audit
from witness.audit.deviation import CommonCause

COMPANIES = ("north", "south", "east")


def lively(seed: int, **settings: object) -> list[Fact]:
    """A cluster of three companies where 40 apps come, wait, run executor by executor, and end."""
    chance = Random(seed)
    cluster = Cluster(settings, each_refusal=False)
    for company in COMPANIES:
        cluster.company(company)
    for number in range(4):
        cluster.worker(f"w{number}", 16)
    left: dict[str, int] = {}
    submitted = 0
    while submitted < 40 or cluster.state.waiting:
        commands: list[Command] = []
        for _ in range(chance.choice((0, 1, 2)) if submitted < 40 else 0):
            company, user = chance.choice(COMPANIES), chance.choice(("ann", "bob", "cid"))
            cores = chance.choice((4, 8, 8, 16, 24))
            commands.append(submission(f"{company}-{submitted}", cores, company=company, user=user))
            submitted += 1
        for name in list(cluster.state.executors):
            left[name] = left.get(name, chance.choice((2, 3, 4, 6, 9))) - 1
            if cluster.state.executors[name].status == "starting":
                commands.append(StartedExecutor(executor=name))
            elif left[name] <= 0:
                commands.append(EndedExecutor(executor=name, reason="exited", exit_code=0, done=True))
        over = [app for app in cluster.state.waiting.values() if app.next_executor and not app.executors]
        commands += [EndApp(app=app.id, reason="finished") for app in over if app.left_cores < 4]
        cluster.turn(*commands)
    return facts(cluster)


@cache
def lawful() -> list[Fact]:
    """A log that follows its rules."""
    return rechained(lively(1))


def about(fact: Fact, app: str) -> bool:
    event = fact.event
    return getattr(event, "app", app_of(getattr(event, "executor", ""))) == app


def admissions(log: list[Fact]) -> list[int]:
    return [fact.seq for fact in log if isinstance(fact.event, AppAdmitted)]


def never_admitted(log: list[Fact], seq: int) -> list[Fact]:
    """The log without that admission and all that followed of the app, its digests made anew."""
    event = log[seq - 1].event
    assert isinstance(event, AppAdmitted)
    return rechained(without(log, *(fact.seq for fact in log if fact.seq >= seq and about(fact, event.app))))


def verdicts(log: list[Fact]) -> tuple[list[CommonCause], int]:
    audited = Audit()
    return audited.verdicts, len(list(audited.deviations(log)))


PLAIN: dict[str, object]
PLAIN, BY_USE, BALANCED = {}, {"company_policy": "pay-as-you-go"}, {"user_policy": "balanced"}


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        *((number, settings) for number in (3, 12, 21, 22) for settings in (PLAIN, BY_USE, BALANCED)),
        (20, PLAIN),
        (20, BALANCED),  # by use, a later turn depends on when the app that is missing ended
    ],
    ids=str,
)
def test_a_removed_admission_with_all_that_followed_is_one_verdict(settings: dict[str, object], number: int) -> None:
    log = lively(number, **settings)
    assert verdicts(log) == ([], 0)
    seq = admissions(log)[number]
    found, deviations = verdicts(never_admitted(log, seq))
    assert [each.first.seq for each in found] == [seq]
    assert found[0].first.entitled == getattr(log[seq - 1].event, "app", None)
    assert deviations == 1 + len(found[0].later)


def test_its_sentence_names_position_app_user_company_and_rule() -> None:
    seq = admissions(lawful())[8]
    event = lawful()[seq - 1].event
    assert isinstance(event, AppAdmitted)
    found, deviations = verdicts(never_admitted(lawful(), seq))
    assert deviations > 10
    assert str(found[0]) == (
        f"From {seq} on this log does not follow its rules: app {event.app} ({event.user}, {event.company}) "
        f"was due under {found[0].first.rule} and is passed over. "
        f"{deviations - 1} later deviations have the same cause."
    )


def test_two_faults_are_two_verdicts() -> None:
    log = lawful()
    one, other = admissions(log)[5], admissions(log)[25]
    admitted = log[one - 1].event.app  # type: ignore[union-attr]
    log = without(log, *(fact.seq for fact in log if fact.seq >= one and about(fact, admitted)))
    passed_over = lawful()[other - 1].event
    assert isinstance(passed_over, AppAdmitted)
    log = [fact for fact in log if not (fact.seq >= other and about(fact, passed_over.app))]
    found, _ = verdicts(rechained(log))
    assert [each.first.entitled for each in found] == [admitted, passed_over.app]


def test_an_edited_grant_is_one_verdict_whatever_follows_from_its_worker() -> None:
    seq = next(fact.seq for fact in lawful()[100:] if isinstance(fact.event, ExecutorAllocated))
    event = lawful()[seq - 1].event
    assert isinstance(event, ExecutorAllocated)
    found, _ = verdicts(rechained(edited(lawful(), seq, worker="w0" if event.worker != "w0" else "w1")))
    assert [each.first.seq for each in found] == [seq]


def test_a_broken_chain_is_a_verdict_and_nothing_behind_it_is_checked(tmp_path: Path) -> None:
    lines = exported(stored(lawful())).splitlines(keepends=True)
    file = tmp_path / "log.jsonl"
    file.write_text("".join(lines[:50] + lines[51:]))
    answer = run("audit", file)
    assert answer.exit_code == 1
    assert answer.output.startswith("From 51 on this log cannot be trusted: the entry is missing")


def run(*arguments: object) -> Result:
    return CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"}).invoke(cli, [*map(str, arguments)])


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("forged") / "log.jsonl"
    file.write_text(exported(stored(never_admitted(lawful(), admissions(lawful())[8]))))
    return file


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sound") / "log.jsonl"
    file.write_text(exported(stored(lawful())))
    return file


def test_the_audit_prints_the_verdict_first_and_every_deviation_on_request(forged: Path) -> None:
    (verdict,), deviations = verdicts(never_admitted(lawful(), admissions(lawful())[8]))
    answer = run("audit", forged)
    lines = answer.output.splitlines()
    assert (answer.exit_code, lines[0], len(lines)) == (1, str(verdict), 3)
    every = run("audit", forged, "--all").output.splitlines()
    assert every[0] == str(verdict)
    assert len(every) == 2 + 1 + deviations
    (told,) = json.loads(run("audit", forged, "--json").output)
    assert (told["verdict"], len(told["later"])) == (str(verdict), deviations - 1)


@pytest.mark.parametrize(
    "verb", [("explain", "north-3"), ("fairness",), ("statement", "--company", "north", "--month", "1970-01")]
)
def test_what_is_derived_from_a_log_that_breaks_its_rules_says_so_first(
    verb: tuple[str, ...], forged: Path, sound: Path
) -> None:
    name = lawful()[admissions(lawful())[0] - 1].event.app if verb[0] == "explain" else ""  # type: ignore[union-attr]
    arguments = [name if part == "north-3" else part for part in verb]
    begins = f"From {admissions(lawful())[8]} on this log does not follow its rules: app "
    answer = run(*arguments, forged)
    assert (answer.exit_code, answer.output.startswith(begins)) == (0, True)
    assert json.loads(run(*arguments, forged, "--json").output)["verdict"].startswith(begins)
    assert "does not follow its rules" not in run(*arguments, sound).output
    assert json.loads(run(*arguments, sound, "--json").output)["verdict"] is None


def test_a_noted_point_is_found_and_missed_where_the_end_was_cut_off(sound: Path, tmp_path: Path) -> None:
    printed = run("checkpoint", sound).output
    assert printed == f"{len(lawful())}:{lawful()[-1].digest}\n"
    assert run("audit", sound, "--expect", printed.strip()).exit_code == 0
    early = next(fact for fact in lawful()[200:] if fact.digest)
    assert run("audit", sound, "--expect", f"{early.seq}:{early.digest}").exit_code == 0

    cut = tmp_path / "cut.jsonl"
    cut.write_text("".join(sound.read_text().splitlines(keepends=True)[: early.seq]))
    assert run("audit", cut).exit_code == 0
    answer = run("audit", cut, "--expect", printed.strip())
    assert answer.exit_code == 1
    assert answer.output == (
        f"Error: this log does not contain {printed.strip()}: it ends at position {early.seq}, so its end was cut off\n"
    )


def test_a_log_with_another_digest_at_the_point_or_a_point_inside_a_turn_is_refused(sound: Path, forged: Path) -> None:
    noted = f"{len(lawful())}:{lawful()[-1].digest}"
    assert run("audit", forged, "--expect", noted).exit_code == 1
    seq = next(fact.seq for fact in lawful() if fact.digest and fact.seq > fact.turn + 1)
    other = run("audit", sound, "--expect", f"{seq}:{'0' * 64}")
    assert (other.exit_code, other.output) == (
        1,
        f"Error: this log does not contain {seq}:{'0' * 64}; its digest there is {lawful()[seq - 1].digest}\n",
    )
    inside = run("audit", sound, "--expect", f"{seq - 1}:{'0' * 64}")
    turn = lawful()[seq - 1].turn
    assert inside.output == (
        f"Error: position {seq - 1} is inside the turn {turn} to {seq}; give the digest of position {seq}\n"
    )
    assert run("audit", sound, "--expect", "5").exit_code == 2
