"""Faults planted into a sound log are each found: where, against which rule, and who was passed over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from fairlog.cli.main import cli
from scheduler.model.commands import DecommissionWorker, EndApp, KillExecutors, StartedExecutor
from scheduler.model.events import AppAdmitted
from scheduler.model.resources import Resources
from scheduler.rules.stage.turn import decision_of
from scheduler.store.codec import Fact, read_export, read_lines
from tests.property.given import Cluster, recorded
from tests.unit import recorded as logs
from tests.unit.recorded import facts, rechained, said, stored
from witness.audit.audit import Audit, audit


def sound() -> list[Fact]:
    """Two companies on two workers of 16 cores: four apps run, four wait until the first is gone."""
    cluster = Cluster()
    for company in ("acme", "bolt"):
        cluster.company(company, borrow=False)
    cluster.worker("w1", 16)
    cluster.worker("w2", 16)
    for number, (company, user) in enumerate(
        (("acme", "ann"), ("acme", "bob"), ("bolt", "cat"), ("bolt", "cat"), ("acme", "ann"), ("bolt", "dan")), start=1
    ):
        cluster.submit(f"a{number}", company=company, user=user)
    cluster.submit("a7", company="acme", user="bob")
    cluster.submit("a8", company="acme", user="ann")
    cluster.turn(EndApp(app="a1", reason="finished"))
    for executor in ("a1.0", "a1.1"):
        cluster.ended(executor, done=True)
    return facts(cluster)


LOG = rechained(sound())


def position(kind: str, **stated: object) -> int:
    """Where the log has its first entry of that type that says so."""
    return next(r.seq for r in LOG if r.type == kind and stated.items() <= said(r).items())


def edited(seq: int, **changes: object) -> list[Fact]:
    """The log with other data at `seq`."""
    return logs.edited(LOG, seq, **changes)


def first(log: list[Fact]) -> tuple[int, str, str | None]:
    """Position and rule of the first deviation, and who was passed over."""
    found = audit(log)
    assert found
    return found[0].seq, found[0].rule, found[0].entitled


def test_a_sound_log_has_no_deviation() -> None:
    assert audit(LOG) == []
    assert [r.type for r in LOG].count("AppAdmitted") == 6


def test_an_audit_counts_what_it_worked_out_again_and_says_where_it_ended() -> None:
    audited = Audit()
    assert list(audited.deviations(LOG)) == []
    assert (audited.events, audited.ends_at, audited.digest) == (len(LOG), len(LOG), LOG[-1].digest)
    assert audited.decisions == sum(r.command is None and decision_of(r.event) is not None for r in LOG)


ADMITTED = position("AppAdmitted", app="a5")
"""When the first app has ended, the next one is of acme, of ann, and her first."""


@pytest.mark.parametrize(
    ("app", "company", "user"),
    [
        ("a8", "acme", "ann"),
        ("a7", "acme", "bob"),
        ("a6", "bolt", "dan"),
        ("a1", "acme", "ann"),
        ("nobody", "acme", "ann"),
    ],
)
def test_an_admission_out_of_turn_is_found_though_the_chain_is_whole(app: str, company: str, user: str) -> None:
    log = rechained(edited(ADMITTED, app=app, company=company, user=user))
    assert first(log) == (ADMITTED, "H4", "a5")


def test_an_admission_of_the_company_whose_turn_it_was_not_is_found() -> None:
    cluster = Cluster()
    for company in ("acme", "bolt"):
        cluster.company(company, 64, 65536)
    cluster.worker("w1", 16)
    for app, company in (("a1", "acme"), ("a2", "acme"), ("b1", "bolt")):
        cluster.submit(app, 16, company=company)
    cluster.turn(EndApp(app="a1", reason="finished"))
    log = facts(cluster)
    seq = next(r.seq for r in log if r.type == "AppAdmitted" and said(r)["app"] == "b1")
    log = logs.edited(log, seq, app="a2", company="acme")
    assert first(rechained(log)) == (seq, "H4", "b1")


def test_a_wrong_share_is_found_where_it_is_stated() -> None:
    found = audit(rechained(edited(ADMITTED, share="1/7")))
    assert [(each.seq, each.rule) for each in found] == [(ADMITTED, "C3")]
    assert "share=1/7" in found[0].done
    assert "share=1/2" in found[0].due


def test_a_grant_to_the_wrong_worker_is_found() -> None:
    seq = position("ExecutorAllocated", app="a1")
    assert said(LOG[seq - 1])["worker"] == "w2"
    found = audit(rechained(edited(seq, worker="w1")))
    assert (found[0].seq, found[0].rule, found[0].entitled) == (seq, "P2", "a1")
    assert "worker=w1" in found[0].done
    assert "worker=w2" in found[0].due


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"resources": Resources(8, 2048)}, "S2"),
        ({"resources": Resources(4, 8192)}, "S3"),
        ({"worker": "w9"}, "P1"),
        ({"app": "a2", "executor": "a2.0"}, "H5"),
        ({"locality": "any"}, "L5"),
    ],
)
def test_a_grant_of_another_size_place_or_app_is_found(changes: dict[str, object], rule: str) -> None:
    seq = position("ExecutorAllocated", app="a1")
    assert first(rechained(edited(seq, **changes))) == (seq, rule, "a1")


def test_a_grant_beyond_what_a_worker_offers_is_not_folded() -> None:
    seq = position("ExecutorAllocated", app="a1")
    found = audit(rechained(edited(seq, resources=Resources(64, 2048))))
    assert [(each.seq, each.rule) for each in found[:2]] == [(seq, "S2"), (seq, "P1")]


def test_an_admission_that_nobody_was_due_is_found() -> None:
    log = list(LOG)
    at = position("AppRegistered", app="a7")
    admitted = AppAdmitted(app="a7", company="acme", user="ann", share="1/1")
    log.insert(at, replace(LOG[at - 1], event=admitted, cause="", command=None, caused=0))
    assert first(rechained(log)) == (at + 1, "H4", None)


def test_an_admission_that_was_left_out_is_missed() -> None:
    seq = position("AppAdmitted", app="a1")
    log = [record for record in LOG if record.seq != seq]
    assert first(rechained(log)) == (seq, "H4", "a1")


def test_a_last_decision_that_was_left_out_is_missed_behind_its_turn() -> None:
    seq = position("ExecutorAllocated", executor="a1.1")
    assert LOG[seq].turn == seq + 1
    log = [record for record in LOG if record.seq != seq]
    found = audit(rechained(log))
    assert (found[0].seq, found[0].rule, found[0].done, found[0].entitled) == (seq, "H5", "nothing", "a1")


def test_a_decision_before_the_inputs_of_its_turn_is_found() -> None:
    seq = position("AppAdmitted", app="a1")
    log = list(LOG)
    log[seq - 2], log[seq - 1] = log[seq - 1], log[seq - 2]
    assert first(rechained(log))[:2] == (seq - 1, "T2")


LINES = logs.exported(stored(LOG)).encode().splitlines(keepends=True)


@pytest.mark.parametrize("seq", [1, 7, len(LOG) - 1])
def test_an_edited_entry_whose_digest_was_left_is_found_as_its_turn(seq: int) -> None:
    lines = list(LINES)
    lines[seq - 1] = lines[seq - 1].replace(b'"at":', b'"at":1')
    found = audit(read_export(lines))
    assert [(each.seq, each.rule) for each in found] == [(LOG[seq - 1].turn, "chain")]
    assert "altered" in found[0].done


@pytest.mark.parametrize(
    ("lines", "seq", "said"),
    [
        ([*LINES[:4], *LINES[5:]], 5, "the entry is missing; the next one in the log is 6"),
        ([*LINES[:6], LINES[5], *LINES[6:]], 7, "entry 6 is repeated here"),
        ([*LINES[:4], LINES[5], LINES[4], *LINES[6:]], 5, "the entry is missing; the next one in the log is 6"),
        (LINES[:-1], len(LOG), "the file ends within the turn"),
    ],
)
def test_a_line_that_is_missing_doubled_or_moved_is_named_where_it_is(lines: list[bytes], seq: int, said: str) -> None:
    found = audit(read_export(lines))
    assert [(each.seq, each.rule) for each in found] == [(seq, "chain")]
    assert said in found[0].done


@pytest.mark.parametrize(("kind", "rule"), [("ExecutorChanged", "A5"), ("ExecutorRevoked", "P6")])
def test_an_entry_that_was_doubled_is_found_though_the_chain_is_whole(kind: str, rule: str) -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 16)
    cluster.submit("a1")
    cluster.turn(StartedExecutor(executor="a1.0"))
    cluster.turn(KillExecutors(app="a1", executors=("a1.0",)))
    log = facts(cluster)
    seq = next(r.seq for r in log if r.type == kind)
    found = audit(rechained([*log[:seq], log[seq - 1], *log[seq:]]))
    assert [(each.seq, each.rule) for each in found] == [(seq + 1, rule)]


def test_a_time_that_goes_back_is_found() -> None:
    log = list(LOG)
    last = LOG[-1].turn
    log = [replace(r, at=1) if r.turn == last else r for r in log]
    assert first(rechained(log))[:2] == (last, "T2")


@pytest.mark.parametrize("changes", [{"app": "a2"}, {"app": "nobody"}, {"worker": "w1"}, {"worker": "w9"}])
def test_an_end_that_names_another_app_or_worker_than_the_grant_is_found(changes: dict[str, object]) -> None:
    seq = position("ExecutorRemoved", executor="a1.0")
    audited = Audit()
    found = list(audited.deviations(rechained(edited(seq, **changes))))
    assert (found[0].seq, found[0].rule) == (seq, "A5")
    assert "app=a1 executor=a1.0 worker=w2" in found[0].due
    assert len(audited.verdicts) == 1


def test_a_turn_of_decommissions_alone_owes_no_placement() -> None:
    cluster = Cluster()
    cluster.company("acme")
    cluster.worker("w1", 16)
    cluster.worker("w2", 16)
    cluster.submit("a1", 32)
    cluster.submit("a2", 8)
    cluster.turn(DecommissionWorker(worker="w2"))
    assert audit(facts(cluster)) == []


def test_only_what_lies_between_the_positions_is_named() -> None:
    seq = position("ExecutorAllocated", app="a1")
    log = rechained(edited(seq, worker="w1"))
    assert [each.seq for each in Audit(seq + 1).deviations(log) if each.seq <= seq] == []
    assert [each.seq for each in Audit(1, seq - 1).deviations(log)] == []
    assert next(iter(Audit(seq, seq).deviations(log))).seq == seq


def exported(folder: Path, log: list[Fact], name: str = "log.jsonl") -> Path:
    file = folder / name
    file.write_text(logs.exported(stored(log)))
    return file


def run(*arguments: object) -> Result:
    return CliRunner(env={"FAIRLOG_STORE": None, "HOME": "/nowhere"}).invoke(cli, ["audit", *map(str, arguments)])


def test_a_file_needs_no_store(tmp_path: Path) -> None:
    answer = run(exported(tmp_path, LOG))
    assert answer.exit_code == 0
    assert answer.output == (
        f"This log follows its rules: {len(LOG)} entries and 20 decisions were checked, "
        f"up to {len(LOG)}:{LOG[-1].digest}.\n"
    )


def test_json_is_a_list_of_verdicts_and_the_exit_code_says_so(tmp_path: Path) -> None:
    answer = run(exported(tmp_path, rechained(edited(ADMITTED, share="1/7"))), "--json")
    assert answer.exit_code == 1
    said: list[dict[str, Any]] = json.loads(answer.output)
    assert [list(each) for each in said] == [["seq", "rule", "done", "due", "entitled", "verdict", "later"]]
    assert said[0]["entitled"] == "a5"
    sound = run(exported(tmp_path, LOG), "--json")
    assert (sound.exit_code, sound.output) == (0, "[]\n")


def test_a_company_sees_what_concerns_it(tmp_path: Path) -> None:
    file = exported(tmp_path, rechained(edited(ADMITTED, share="1/7")))
    assert run(file, "--company", "acme").exit_code == 1
    assert run(file, "--company", "bolt").exit_code == 0
    assert "no company 'nobody' is registered" in run(file, "--company", "nobody").output


def test_recorded_histories_are_audited_one_by_one(tmp_path: Path) -> None:
    exported(tmp_path, LOG, "a.jsonl")
    exported(tmp_path, rechained(edited(ADMITTED, share="1/7")), "b.jsonl")
    answer = run("--golden", tmp_path, "--json")
    assert answer.exit_code == 1
    assert [(each["file"], each["seq"]) for each in json.loads(answer.output)] == [("b.jsonl", ADMITTED)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", "log.jsonl has no entry"),
        ("[]\n", "the line is not a log entry: Expected `object`, got `array`"),
        ("no JSON\n", "the line is not a log entry: JSON is malformed"),
    ],
)
def test_a_file_that_is_no_log_is_told_so(tmp_path: Path, lines: str, said: str) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(lines)
    answer = run(file)
    assert answer.exit_code == 1
    assert said in answer.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", 5, "--to", 4), "--to 4 comes before --from 5"),
        (("--from", 5000), f"the log ends at {len(LOG)}, before --from 5000"),
    ],
)
def test_positions_that_make_no_sense_are_refused(tmp_path: Path, options: tuple[object, ...], said: str) -> None:
    answer = run(exported(tmp_path, LOG), *options)
    assert answer.exit_code
    assert said in answer.output


def test_what_json_escapes_in_an_export_is_read_as_it_was_written(tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.company("Müller & Söhne \\ €")
    log = recorded(cluster)
    with exported(tmp_path, facts(log)).open("rb") as lines:
        assert list(read_lines(lines)) == log


def test_each_kind_of_line_is_read_alike(tmp_path: Path) -> None:
    file = exported(tmp_path, LOG)
    spaced = "".join(f"{json.dumps(json.loads(line))}\n\n" for line in file.read_text().splitlines())
    assert list(read_lines(spaced.encode().splitlines(keepends=True))) == stored(LOG)


@pytest.mark.parametrize(
    ("kind", "rule", "why"),
    [
        ("CompanyRegistered", "T3", "is registered already"),
        ("WorkerRegistered", "W1", "nothing"),
        ("AppRegistered", "T3", "exists already"),
    ],
)
def test_a_second_registration_is_named_and_the_rest_is_still_audited(kind: str, rule: str, why: str) -> None:
    seq = position(kind)
    again = replace(LOG[seq - 1], cause="again", at=LOG[-1].at + 1, turn=len(LOG) + 1)
    found = audit(rechained([*LOG, again]))
    assert [(each.seq, each.rule) for each in found] == [(len(LOG) + 1, rule)]
    assert why in found[0].due


def test_a_wrong_share_is_named_so_under_open_admission_too() -> None:
    cluster = Cluster({"admission": "open"})
    cluster.company("acme")
    cluster.worker("w1", 16)
    cluster.submit("a1")
    log = facts(cluster)
    seq = next(r.seq for r in log if r.type == "AppAdmitted")
    assert first(rechained(logs.edited(log, seq, share="1/7"))) == (seq, "C3", "a1")
