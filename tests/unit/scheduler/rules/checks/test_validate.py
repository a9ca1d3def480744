"""What values a command may carry, and the sentence for each that it may not."""

from __future__ import annotations

import re
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import asdict

from scheduler.model.commands import (
    AddDepartment,
    ChangeCompany,
    EndApp,
    EndedDriver,
    EndedExecutor,
    MoveCompany,
    Private,
    RegisterCompany,
    RemoveCompany,
    SetLimit,
    SubmitApp,
    check_variables,
    write_command,
)
from scheduler.model.errors import InvalidCommand, InvalidSetting
from scheduler.model.events import ClusterConfigured
from scheduler.rules.checks.validate import (
    changed_settings,
    check_command_id,
    check_identifier,
    check_name,
    check_near,
    check_private,
    check_range,
    read_part,
    shorten,
    trimmed,
)
from scheduler.service.inbox import received
from tests.property.given import Cluster

DEFAULTS = ClusterConfigured()


@pytest.mark.parametrize("value", ["a", "A1", "app-2026.11_x", "9", "x" * 64])
def test_an_identifier_may_hold_letters_digits_and_three_marks(value: str) -> None:
    check_identifier("the app id", value)


@pytest.mark.parametrize("value", ["", "-a", ".a", "_a", "a b", "a:b", "a{b", "a\n", "x" * 65, "é", "٣"])
def test_an_identifier_that_could_break_a_key_or_a_path_is_refused(value: str) -> None:
    with pytest.raises(InvalidCommand, match=r"^the app id must be 1 to 64 letters, digits, '_', '.' or '-'"):
        check_identifier("the app id", value)


@pytest.mark.parametrize("value", ["a", "Société Générale", "数え上げ", 'it\'s "fine"', "x" * 128])
def test_a_name_may_hold_whatever_can_be_shown(value: str) -> None:
    check_name("the user", value)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("", "the user must not be empty"),
        ("x" * 129, "the user must have at most 128 characters, not 129"),
        ("x" * 100_000, "the user must have at most 128 characters, not 100000"),
        ("a\nb", "the user must not contain control characters: 'a\\nb'"),
        ("a\x1b[2J", "the user must not contain control characters: 'a\\x1b[2J'"),
        ("a\u202eb", "the user must not contain control characters: 'a\\u202eb'"),
        ("a\udcff", "the user must not contain control characters: 'a\\udcff'"),
        (" a", "the user must not start or end with a space: ' a'"),
        ("a ", "the user must not start or end with a space: 'a '"),
    ],
)
def test_a_name_that_cannot_be_shown_is_refused(value: str, sentence: str) -> None:
    with pytest.raises(InvalidCommand) as raised:
        check_name("the user", value)
    assert str(raised.value) == sentence


def test_a_range_holds_both_of_its_ends() -> None:
    check_range("cores", 1, 1, 4)
    check_range("cores", 4, 1, 4)
    for value in (0, 5):
        with pytest.raises(InvalidCommand, match=rf"^cores must be between 1 and 4, not {value}$"):
            check_range("cores", value, 1, 4)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("x" * 129, "the app's name must have at most 128 characters, not 129"),
        ("a\nb", "the app's name must not contain control characters"),
    ],
)
def test_a_name_that_cannot_be_printed_is_refused_in_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(InvalidCommand) as raised:
        check_private(Private(name, ("true",)))
    assert str(raised.value).startswith(sentence)


def test_a_program_may_be_anything_that_a_worker_could_run() -> None:
    check_private(Private("é", ("sh", "-c", "", "a\nb", "=", "é"), ("PATH", "a.b", "x-y"), "/srv/é"))
    check_private(Private(command=("x" * (128 * 1024 - 4),)))
    check_private(Private(command=("true",), env=tuple(f"V{number}" for number in range(128)), cwd="/" + "x" * 4095))


@pytest.mark.parametrize(
    ("command", "env", "cwd", "sentence"),
    [
        ((), (), None, "an app needs a command"),
        (("", "a"), (), None, "an app needs a command"),
        (("x" * 131069,), (), None, "a command with its arguments can take at most 131072 bytes as JSON, not 131073"),
        (("\\" * 65535,), (), None, "a command with its arguments can take at most 131072 bytes as JSON, not 131074"),
        (("é" * 65535,), (), None, "a command with its arguments can take at most 131072 bytes as JSON, not 131074"),
        (("true",), ("X" * 131070,), None, "the variable XXXXXXX"),
        (
            ("true",),
            tuple(f"{n}" for n in range(1025)),
            None,
            "an app can have at most 1024 environment variables of 262144 bytes together, not 1025 of 5040",
        ),
        (("true",), (), "/" + "x" * 4096, "the folder to run in can have at most 4096 characters, not 4097"),
        (("true", "a\0"), (), None, "the command and its folder must not contain NUL characters"),
        (("true",), (), "/a\0", "the command and its folder must not contain NUL characters"),
        (("true",), ("",), None, "'' cannot be the name of an environment variable"),
        (("true",), ("A=B",), None, "'A=B' cannot be the name of an environment variable"),
        (("true",), ("A\0",), None, "'A\\x00' cannot be the name of an environment variable"),
        (("true",), (), "srv", "the folder to run in must be an absolute path, not 'srv'"),
        (("true",), (), "", "the folder to run in must be an absolute path, not ''"),
    ],
)
def test_a_program_that_no_worker_could_run_is_refused(
    command: tuple[str, ...], env: tuple[str, ...], cwd: str | None, sentence: str
) -> None:
    with pytest.raises(InvalidCommand) as raised:
        check_private(Private("", command, env, cwd))
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("25%", "1/4"),
        ("100%", "1/1"),
        ("33.3%", "333/1000"),
        ("0.0001%", "1/1000000"),
        ("1/3", "1/3"),
        ("2/4", "1/2"),
        ("1", "1/1"),
        ("0.25", "1/4"),
    ],
)
def test_a_part_is_read_exactly_and_put_in_lowest_terms(text: str, part: str) -> None:
    """Semantics C2."""
    assert read_part(text) == part


@pytest.mark.parametrize(
    "text",
    ["", "%", "a", "1/0", "1/", "/2", "1/2/3", "nan", "inf", "-1/4", "-5%", "1e-3", "1e999999999", " 1/4", "1" * 5000],
)
def test_a_part_that_is_not_written_as_one_is_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidCommand, match=r"^a part of the cluster is written like 25% or 1/4, not '") as raised:
        read_part(text)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("text", ["0", "0%", "0/5", "101%", "3/2", "2"])
def test_a_part_is_above_nothing_and_at_most_the_whole(text: str) -> None:
    with pytest.raises(InvalidCommand, match=r"must be above 0% and at most 100%"):
        read_part(text)


def test_a_part_is_at_most_as_fine_as_a_millionth() -> None:
    with pytest.raises(InvalidCommand, match=r"at most a millionth"):
        read_part("1/1000001")


@pytest.mark.parametrize(
    "changes",
    [
        {"min_executor_cores": 2, "max_executor_cores": 2},
        {"min_executor_cores": 6, "max_executor_cores": 24},
        {"min_executor_cores": 4, "max_executor_cores": 65536},
        {"min_executor_memory_mb": 256},
        {"min_executor_memory_mb": 16384},
        {"max_executor_memory_mb": 2048},
        {"app_policy": "sql-first", "occupancy": "requested", "placement": "pack"},
        {"worker_selection": "memory-free-asc", "retained_apps": 0, "worker_timeout_s": 1},
        {"company_policy": "pay-as-you-go", "half_life_s": 1, "slot_s": 0},
        {"user_policy": "least-occupied"},
        {"user_policy": "balanced"},
    ],
)
def test_settings_that_keep_the_checks_are_taken_and_the_others_stay(changes: dict[str, Any]) -> None:
    assert asdict(changed_settings(DEFAULTS, changes)) == {**asdict(DEFAULTS), **changes}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"max_cores": 4}, "no setting is named 'max_cores'; `fairlog settings` lists the settings"),
        ({"x" * 1000: 4}, "no setting is named 'xxx"),
        (
            {"max_executor_cores": 12},
            "max_executor_cores must be min_executor_cores times a power of two, not 12 with 4",
        ),
        (
            {"max_executor_cores": 10},
            "max_executor_cores must be min_executor_cores times a power of two, not 10 with 4",
        ),
        ({"max_executor_cores": 2}, "max_executor_cores must be min_executor_cores times a power of two, not 2 with 4"),
        ({"max_executor_cores": 0}, "max_executor_cores must be min_executor_cores times a power of two, not 0 with 4"),
        ({"max_executor_cores": 1 << 17}, "max_executor_cores must be at most 65536, not 131072"),
        ({"min_executor_cores": 5, "max_executor_cores": 5}, "min_executor_cores must be an even number, not 5"),
        ({"min_executor_cores": 0}, "min_executor_cores must be at least 2, not 0"),
        ({"min_executor_memory_mb": 2000}, "min_executor_memory_mb must be a multiple of 256 MiB, not 2000"),
        ({"min_executor_memory_mb": 0}, "min_executor_memory_mb must be at least 256, not 0"),
        ({"max_executor_memory_mb": 5000}, "max_executor_memory_mb must be a multiple of 256 MiB, not 5000"),
        ({"max_executor_memory_mb": 0}, "max_executor_memory_mb must be a multiple of 256 MiB, not 0"),
        ({"max_executor_memory_mb": 1024}, "max_executor_memory_mb must be at least min_executor_memory_mb (2048)"),
        ({"default_cores": 0}, "default_cores must be at least 1, not 0"),
        ({"default_memory_per_task_mb": 511}, "default_memory_per_task_mb must be at least 512, not 511"),
        ({"max_executor_failures": 0}, "max_executor_failures must be at least 1, not 0"),
        ({"worker_timeout_s": 0}, "worker_timeout_s must be at least 1, not 0"),
        ({"retained_apps": -1}, "retained_apps must be at least 0, not -1"),
        ({"half_life_s": 0}, "half_life_s must be at least 1, not 0"),
        ({"reclaim_patience_s": -1}, "reclaim_patience_s must be at least 0, not -1"),
        ({"quota_patience_s": 1}, "quota_patience_s was a setting of the second edition of the rules; leave it out"),
        ({"reclaim": "yes"}, "reclaim cannot be 'yes': set reclaim_patience_s instead"),
        ({"reclaim_patience_s": "long"}, "reclaim_patience_s cannot be 'long': use a whole number or none"),
        ({"worker_timeout_s": 1 << 31}, "worker_timeout_s must be at most 1073741824, not 2147483648"),
        ({"default_cores": "8"}, "default_cores cannot be '8': use a whole number"),
        ({"default_cores": 8.0}, "default_cores cannot be 8.0: use a whole number"),
        ({"default_cores": True}, "default_cores cannot be True: use a whole number"),
        ({"default_cores": None}, "default_cores cannot be None: use a whole number"),
        ({"placement": 1}, "placement cannot be 1: use one of spread, pack"),
        ({"placement": "heap"}, "placement cannot be 'heap': use one of spread, pack"),
        ({"worker_selection": ""}, "worker_selection cannot be '': use one of cores-free-desc, "),
        ({"occupancy": "granted"}, "occupancy cannot be 'granted': what apps request counts; leave it out"),
        ({"occupancy": None}, "occupancy cannot be None: what apps request counts; leave it out"),
        (
            {"max_driver_share": "1/2"},
            "max_driver_share was a setting of the second edition of the rules; leave it out",
        ),
        ({"company_policy": "lottery"}, "company_policy cannot be 'lottery': use one of dominant-share"),
        ({"user_policy": "lottery"}, "user_policy cannot be 'lottery': use one of longest-wait"),
        ({"app_policy": "lifo"}, "app_policy cannot be 'lifo': use one of fifo, sql-first"),
    ],
)
def test_a_setting_that_breaks_a_check_is_refused_in_one_sentence(changes: dict[str, Any], sentence: str) -> None:
    """Semantics, Settings: checks."""
    with pytest.raises(InvalidSetting) as raised:
        changed_settings(DEFAULTS, changes)
    assert str(raised.value).startswith(sentence)


def test_values_are_quoted_whole_only_while_they_are_short() -> None:
    assert shorten("a") == "'a'"
    assert shorten("x" * 58) == repr("x" * 58)
    assert len(shorten("x" * 59)) == 58
    assert shorten("x" * 59).endswith("…")


def test_settings_about_drivers_and_admission_are_read_and_checked() -> None:
    """Semantics A6, D2, D4."""
    changes = {"admission": "open", "spread_out_drivers": False, "max_drivers": 3}
    changed = changed_settings(DEFAULTS, changes)
    assert (changed.admission, changed.spread_out_drivers, changed.max_drivers) == ("open", False, 3)
    assert changed_settings(changed, {"max_drivers": None}).max_drivers is None


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"admission": "closed"}, "admission cannot be 'closed': use one of fair, open"),
        ({"spread_out_drivers": "yes"}, "spread_out_drivers cannot be 'yes': use true or false"),
        ({"max_drivers": "few"}, "max_drivers cannot be 'few': use a whole number or none"),
        ({"max_drivers": -1}, "max_drivers must be at least 0, not -1"),
        (
            {"placement": "classic"},
            "placement cannot be 'classic': use one of spread, pack, classic-spread, classic-pack",
        ),
    ],
)
def test_a_setting_about_drivers_and_admission_that_makes_no_sense_is_refused(
    change: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidSetting) as raised:
        changed_settings(DEFAULTS, change)
    assert str(raised.value) == sentence


@pytest.mark.parametrize("said", ["x" * 5000, "a\nb\x1b[31m" + "x" * 5000, "\u202egnp.exe", "\x07\x00"])
def test_what_a_report_says_is_cut_and_never_refused(said: str) -> None:
    ends = trimmed(EndApp(app="a", reason="failed", detail=said))
    executor = trimmed(EndedExecutor(executor="a-0", reason="failed", unstartable=said, exit_code=10**100))
    driver = trimmed(EndedDriver(driver="a-d0", reason="failed", detail=said, exit_code=-(10**100)))
    assert isinstance(ends, EndApp)
    assert isinstance(executor, EndedExecutor)
    assert isinstance(driver, EndedDriver)
    for detail in (ends.detail, executor.unstartable, driver.detail):
        assert len(detail) <= 1024
        assert detail.isprintable()
    assert executor.unstartable
    assert executor.exit_code is driver.exit_code is None


def test_a_report_within_the_bounds_is_as_it_was() -> None:
    for command in (
        EndApp(app="a", reason="failed", detail="x" * 1024),
        EndedExecutor(executor="a-0", reason="failed", exit_code=-9),
        EndedDriver(driver="a-d0", reason="exited", exit_code=0, detail="é"),
    ):
        assert trimmed(command) is command


@pytest.mark.parametrize("identity", ["", "x" * 129, "a\nb", "\u202ea", " a"])
def test_an_id_of_a_command_is_one_printable_line(identity: str) -> None:
    with pytest.raises(InvalidCommand, match="the id of a command"):
        check_command_id(identity)


@pytest.mark.parametrize("name", ["a", "acme", "0", "a.b_c-d", "x" * 63])
def test_a_company_is_named_in_one_word(name: str) -> None:
    assert received(write_command(RegisterCompany(company=name)).encode()) == RegisterCompany(company=name)


@pytest.mark.parametrize(
    "name",
    [
        "a b",
        "a/b",
        "/",
        "",
        "Acme",
        "é",
        ".",
        "-x",
        "a:b%$",
        "x" * 64,
        "a\n",
        "op",
        "auditor",
        "worker",
        "local",
        "master",
    ],
)
def test_a_company_that_could_have_no_account_is_not_added(name: str) -> None:
    with pytest.raises(
        InvalidCommand, match=r"a company's name has 1 to 63 lower-case|a company cannot be named op or"
    ):
        received(write_command(RegisterCompany(company=name)).encode())


@pytest.mark.parametrize("user", ["a/b", "a b", "a\tb", "/"])
def test_a_user_with_a_slash_or_a_blank_submits_nothing(user: str) -> None:
    with pytest.raises(InvalidCommand, match="a user's name has neither blanks nor '/'"):
        received(write_command(SubmitApp(app="a", company="acme", user=user, command=("true",))).encode())


@pytest.mark.parametrize(
    ("name", "typed"),
    [("ACME", "acme"), ("-x", "x"), ("Acme Ltd.", "acme-ltd"), ("ü", "acme"), ("OP", "acme"), ("x" * 100, "x" * 63)],
)
def test_it_is_said_what_to_type_for_a_company(name: str, typed: str) -> None:
    with pytest.raises(InvalidCommand, match=f"`fairlog company add {re.escape(typed)}`, for example"):
        received(write_command(RegisterCompany(company=name)).encode())
    assert received(write_command(RegisterCompany(company=typed)).encode())


@pytest.mark.parametrize("name", ["ACME", "é", ".", "-x", "a b/c"])
def test_a_company_of_an_earlier_log_is_changed_as_before(name: str) -> None:
    cluster = Cluster()
    cluster.company(name)
    cluster.turn(AddDepartment(department="d"))
    for command in (
        ChangeCompany(company=name, cores=4, memory_mb=4096),
        MoveCompany(company=name, department="d"),
        SetLimit(scope="company", name="max_cores", value=2, company=name),
        RemoveCompany(company=name),
    ):
        same = received(write_command(command).encode())
        assert same == command
        cluster.turn(same)
    assert name not in cluster.state.companies


def test_a_change_of_a_company_that_states_nothing_is_refused_when_it_arrives() -> None:
    with pytest.raises(InvalidCommand, match="nothing to change of company 'acme' is stated; state a quota"):
        received(write_command(ChangeCompany(company="acme")).encode())
    for stated in ({"part": "none"}, {"borrow": False}, {"default_max_runtime_s": 0}, {"cores": 0, "memory_mb": 0}):
        command = convert({"company": "acme", **stated}, ChangeCompany)
        assert received(write_command(command).encode()) == command


def test_names_of_earlier_logs_are_decided_as_before() -> None:
    cluster = Cluster()
    cluster.company("A B")
    cluster.submit("a", 1, company="A B", user="a/b")
    assert cluster.state.apps["a"].spec.user == "a/b"


@pytest.mark.parametrize("part", ["\0", "a\0b"])
def test_a_variable_with_nul_is_refused_before_a_worker_fails_to_set_it(part: str) -> None:
    with pytest.raises(InvalidCommand, match="environment variables must not contain NUL"):
        check_variables({"A": part})


def test_variables_of_256_kib_are_taken_and_the_largest_of_more_are_named() -> None:
    values = {"A": "x" * 131_000, "B": "y" * 100_000, "C": "z" * 31_132}
    check_variables({**values, "FAIRLOG_SCRIPT": "s" * 5_000_000})
    with pytest.raises(InvalidCommand) as raised:
        check_variables({**values, "DD": ""})
    assert str(raised.value) == (
        "an app can have at most 1024 environment variables of 262144 bytes together, not 4 of 262145; leave out some, "
        "as by --export ALL,-A; the largest are A (131003 bytes), B (100003 bytes), C (31135 bytes)"
    )


def test_a_variable_with_which_linux_starts_no_program_is_refused() -> None:
    check_variables({"A": "x" * (131_071 - 3)})
    with pytest.raises(InvalidCommand, match="the variable A has 131072 bytes, and Linux starts no program with one"):
        check_variables({"A": "x" * (131_072 - 3)})


@pytest.mark.parametrize(
    "about",
    [{"script": "ab" * 32}, {"env": ("FAIRLOG_SCRIPT",)}, {"script": "x", "env": ("FAIRLOG_SCRIPT",), "script_at": 1}],
)
def test_a_script_is_copied_with_its_digest_and_its_place_or_not_at_all(about: dict[str, object]) -> None:
    with pytest.raises(InvalidCommand, match="a script is copied as the variable FAIRLOG_SCRIPT, with its digest"):
        check_private(Private(command=("true",), **about))  # type: ignore[arg-type]


def test_preferred_hosts_that_are_too_long_for_the_log_are_refused_with_both_numbers() -> None:
    check_near({"h1": "0-99999"})
    scattered = ",".join(map(str, range(1, 100_000, 2)))
    said = (
        f"take at most 131072 characters, not {len(scattered) + 2}; give tasks that prefer the same host neighbouring"
    )
    with pytest.raises(InvalidCommand, match=said):
        check_near({"h1": scattered})
