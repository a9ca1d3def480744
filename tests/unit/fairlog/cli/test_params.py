"""How the command line reads sizes, durations and pairs, and how it shows what it prints."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner
from msgspec.json import encode

from fairlog.cli import render
from fairlog.cli.params import (
    kinds_option,
    merge_counts,
    read_amount,
    read_bounds,
    read_cores,
    read_counts,
    read_dependency,
    read_duration,
    read_limit,
    read_offered,
    read_pair,
    read_setting,
    read_share,
    read_size,
    read_terms,
    read_text,
)
from scheduler.model.commands import SubmitApp, Taken
from scheduler.model.events import AppRegistered, ClusterConfigured, CompanyRegistered, Computed, Event
from scheduler.model.resources import Resources, size_text
from scheduler.model.sender import NOBODY
from scheduler.service.program_log import masked
from scheduler.store.codec import encode_turn, lines_of


@pytest.mark.parametrize(
    ("text", "memory_mb"),
    [
        ("512M", 512),
        ("2G", 2048),
        ("2g", 2048),
        ("2GiB", 2048),
        ("1T", 1 << 20),
        ("700", 700),
        ("1.5G", 1536),
        ("-5", -5),
    ],
)
def test_a_size_is_read_in_mib(text: str, memory_mb: int) -> None:
    assert read_size(text) == memory_mb


@pytest.mark.parametrize("text", ["12X", "", "M", "1.0001M", "2 G 1", "0x10", "1e3", "٣G ", "512K"])
def test_what_is_no_size_is_refused_with_the_right_forms(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write it like 512M, 2G or 512"):
        read_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("10m", 600),
        ("2h", 7200),
        ("1D", 86400),
        ("1h30m", 5400),
        ("1d2h3m4s", 93784),
        ("00:10:00", 600),
        ("36:00:01", 129_601),
        ("1-12:00:00", 129_600),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: int) -> None:
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1x", "1.5h", "10 minutes", "30m1h", "1:30", "00:60:00", "1h-5m", "٣s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="write it like 90s, 1h30m or 00:10:00"):
        read_duration(text)


def test_the_value_of_a_pair_may_be_empty_or_hold_more_equals_signs() -> None:
    assert read_pair("A=") == ("A", "")
    assert read_pair("A=b=c") == ("A", "b=c")


def test_preferred_hosts_are_read_with_how_many_tasks_prefer_each() -> None:
    assert read_counts("h1=30") == {"h1": 30}
    assert read_counts("h1=30,h2=0,odd=name=7") == {"h1": 30, "h2": 0, "odd=name": 7}


@pytest.mark.parametrize("text", ["h1", "h1=", "=3", "h1=-1", "h1=3,", "h1=1.5", ""])
def test_what_is_no_preference_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="HOST=TASKS"):
        read_counts(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [("a-1", ("a-1", "ok")), ("a-1:ok", ("a-1", "ok")), ("a:any", ("a", "any")), ("a:not-ok", ("a", "not-ok"))],
)
def test_a_dependency_is_read_as_an_app_and_a_condition(text: str, found: tuple[str, str]) -> None:
    assert read_dependency(text) == found


@pytest.mark.parametrize("text", ["a:later", "a:OK", "a:ok:any", "\udcff"])
def test_what_is_no_dependency_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"APP\[:ok\|any\|not-ok\|began\]|not valid UTF-8"):
        read_dependency(text)


def test_a_preferred_host_is_named_once() -> None:
    assert merge_counts(({"h": 3}, {"g": 1, "f": 2})) == {"h": 3, "g": 1, "f": 2}
    with pytest.raises(click.BadParameter, match="the host 'h' is named twice"):
        merge_counts(({"h": 3}, {"g": 1, "h": 3}))
    with pytest.raises(click.BadParameter, match="the host 'h' is named twice"):
        read_counts("h=3,g=1,h=4")


def test_bounds_are_read_as_the_least_and_the_most() -> None:
    assert read_bounds("0:12") == (0, 12)


@pytest.mark.parametrize("text", ["3", "1:", ":2", "1:2:3", "-1:2", "a:b", ""])
def test_what_is_no_bounds_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="MIN:MAX; write it like 1:8"):
        read_bounds(text)


@pytest.mark.parametrize("text", ["A", "=b", ""])
def test_a_pair_needs_a_name_and_an_equals_sign(text: str) -> None:
    with pytest.raises(click.BadParameter, match="NAME=VALUE"):
        read_pair(text)


def test_a_text_that_is_not_unicode_is_refused() -> None:
    with pytest.raises(click.BadParameter, match="not valid UTF-8"):
        read_text("\udcff")


def test_a_password_in_the_stores_url_is_not_shown() -> None:
    assert masked("redis://ann:secret@host:1/0") == "redis://ann:***@host:1/0"
    assert masked("unix:///run/store.sock") == "unix:///run/store.sock"


def test_sizes_times_and_shares_are_shown_as_people_write_them() -> None:
    assert [size_text(value) for value in (512, 2048, "8/3")] == ["512M", "2G", "8/3 M"]
    assert [render.duration(value) for value in (None, 300, 252_000, 7_500_000)] == ["-", "0.3s", "4m12s", "2h05m"]
    assert [render.percent(value) for value in ("1/8", "0/1", "1/0")] == ["12.5%", "0.0%", "no quota"]
    assert render.moment(1_000) == "1970-01-01 00:00:01.000Z"


APPS = [
    ["APP", "app-f9ae5e0523d1"],
    ["STATE", "running"],
    ["SUBMITTED", "2026-11-21 15:56:26"],
    ["MESSAGE", "it is over"],
]


@pytest.mark.parametrize(
    ("room", "widths"),
    [
        (80, [16, 7, 19, 10]),
        (58, [16, 7, 19, 10]),
        (57, [16, 7, 18, 10]),
        (49, [16, 7, 10, 10]),
        (46, [16, 7, 10, 7]),
        (45, [16, 7, 9, 7]),
        (20, [16, 6, 6, 6]),
    ],
)
def test_a_narrow_terminal_breaks_lines_in_cells_first_at_spaces_and_never_an_id(room: int, widths: list[int]) -> None:
    assert render.column_widths(APPS, room=room) == widths


def test_an_app_id_stands_whole_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    ids = [f"app-{number:012x}" for number in range(3)]

    @click.command()
    def show() -> None:
        render.print_table(("APP", "WORKER", "WHY"), [(app, "worker-1", "it is " * 9) for app in ids], empty="")

    output = CliRunner().invoke(show).output
    assert [app for app in ids if app not in output] == []
    assert max(map(len, output.splitlines()[1:])) <= 40


def test_an_event_is_one_line_whatever_its_command_holds() -> None:
    event = AppRegistered(
        app="a",
        company="acme",
        user="ann",
        kind="batch",
        cores=1,
        requested=Resources(4, 2048),
        tasks=1,
        sizing=Computed(512),
    )
    command = ("sh", "-c", "echo a\necho \x85\u2028 ü")
    submitted = Taken(0, 1, "c", NOBODY, SubmitApp(app="a", company="acme", user="ann", command=command))
    (line,) = lines_of(encode_turn([(event, "c")], [submitted], first=7, at=0, previous="0" * 64))
    for text in (render.log_line(line), render.log_json(line)):
        assert len(text.splitlines()) == 1
    said = json.loads(render.log_json(line))
    stored = dict(zip(event.__struct_fields__, json.loads(encode(event))[1:], strict=True))
    assert list(said["data"].items()) == list({**stored, "requested": {"cores": 4, "memory_mb": 2048}}.items())
    assert said["private"]["command"] == list(command)
    assert list(said) == [
        *("seq", "type", "at", "turn", "cause", "data"),
        *("command", "events", "by", "commit", "private", "digest"),
    ]


def test_a_setting_of_off_or_0_is_shown_where_it_has_a_meaning() -> None:
    line = _line(ClusterConfigured(spread_out_drivers=False, max_drivers=0))
    assert "spread_out_drivers=False" in line
    assert "max_drivers=0" in line
    assert "borrow" not in _line(CompanyRegistered(company="acme"))


def _line(event: Event) -> str:
    (line,) = lines_of(encode_turn([(event, "")], first=7, at=0, previous="0" * 64))
    return render.log_line(line)


def test_cores_and_limits_are_numbers_or_one_word() -> None:
    assert (read_cores("8"), read_cores("unlimited")) == (8, "unlimited")
    assert (read_limit("3"), read_limit("none")) == (3, None)
    with pytest.raises(click.BadParameter, match=r'^\'all\' is neither a whole number nor "unlimited"$'):
        read_cores("all")
    with pytest.raises(click.BadParameter, match=r'^\'all\' is neither a whole number nor "none"$'):
        read_limit("all")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("spread_out_drivers", "false", False),
        ("spread_out_drivers", "true", True),
        ("max_drivers", "none", None),
        ("max_drivers", "3", 3),
        ("archive_url", "none", ""),
        ("reclaim_patience_s", "none", None),
    ],
)
def test_a_setting_is_read_as_what_it_is_likely_to_be(name: str, text: str, value: object) -> None:
    assert read_setting(f"{name}={text}") == (name, value)


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("gpu=4", ("gpu", ("0", "1", "2", "3"))),
        ("gpu=0,2,3", ("gpu", ("0", "2", "3"))),
        ("gpu=3,", ("gpu", ("3",))),
        ("gpu=0", ("gpu", ("0",))),
        ("gpu.a100=GPU-5f, GPU-6a", ("gpu.a100", ("GPU-5f", "GPU-6a"))),
    ],
)
def test_offered_addresses_are_listed_or_counted(text: str, offered: tuple[str, tuple[str, ...]]) -> None:
    assert read_offered(text) == offered


@pytest.mark.parametrize("text", ["gpu", "gpu=", "=4", "gpu=,", "gpu=10001"])
def test_what_offers_no_addresses_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"gpu=0,1 or gpu=2 for the same|not between 1 and 10000 addresses"):
        read_offered(text)


def test_amounts_of_kinds_are_read() -> None:
    assert read_amount("gpu=2") == ("gpu", 2)
    assert read_share("gpu=1/4") == ("gpu", "1/4")
    for text in ("gpu", "gpu=x", "gpu=1/4", "=2"):
        with pytest.raises(click.BadParameter, match="write it like gpu="):
            read_amount(text)


def test_a_kind_is_named_once() -> None:
    @kinds_option("--resource", "resources")
    def run(resources: dict[str, int]) -> None:
        click.echo(resources)

    command = click.command()(run)
    assert (
        CliRunner().invoke(command, ["--resource", "gpu=2", "--resource", "fpga=1"]).output == "{'gpu': 2, 'fpga': 1}\n"
    )
    assert (
        "the kind 'gpu' is named twice"
        in CliRunner().invoke(command, ["--resource", "gpu=2", "--resource", "gpu=1"]).output
    )


def test_kinds_are_shown_with_amounts_or_addresses() -> None:
    assert render.in_words("resources", {"gpu": ["0", "1"], "fpga": ["a"]}) == "gpu=0,1 fpga=a"
    assert render.in_words("quotaResources", {"gpu": 2}) == "gpu=2"
    assert render.in_words("resources", "") == ""


@pytest.mark.parametrize(
    ("variables", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"FORCE_COLOR": ""}, False)]
)
def test_states_that_need_attention_have_a_colour_on_a_terminal(
    variables: dict[str, str], *, coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TERM": "xterm", "FORCE_COLOR": "1", "NO_COLOR": "", **variables}.items():
        monkeypatch.setenv(name, value)

    @click.command()
    def show() -> None:
        render.print_table(("APP", "STATE"), [("a", "failed"), ("b", "waiting"), ("c", "finished")], empty="")

    output = CliRunner().invoke(show, color=True).output
    assert ("\x1b[31mfailed" in output, "\x1b[33mwaiting" in output) == (coloured, coloured)
    assert "finished\n" in output


def test_columns_that_are_spare_are_left_out_where_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows = [("app-0123456789ab", "a" * 20, "b" * 20)]

    @click.command()
    def show() -> None:
        render.print_table(("APP", "ONE", "TWO"), rows, empty="", spare=("TWO", "ONE"))

    for columns, shown in (("80", "ONE TWO"), ("50", "ONE"), ("20", "")):
        monkeypatch.setenv("COLUMNS", columns)
        output = CliRunner().invoke(show).output
        assert [name for name in ("ONE", "TWO") if name in output] == shown.split()


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("zone=north", ("zone=north",)),
        ("zone=north,gpu", ("gpu", "zone=north")),
        (r"zone=a\,b,gpu=ü", ("gpu=ü", "zone=a,b")),
        ("a=b=c", ("a=b=c",)),
    ],
)
def test_labels_are_separated_by_commas_but_for_those_behind_a_backslash(text: str, terms: tuple[str, ...]) -> None:
    assert read_terms("--require")(text) == terms


@pytest.mark.parametrize("text", ["", "zone=", ",zone", "zone,,gpu", "=x", "zö=x", "zone= "])
def test_labels_that_no_worker_can_have_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        read_terms("--require")(text)
