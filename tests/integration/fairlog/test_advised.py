"""What verbs advise can be typed: on the folder that was named, on apps that exist, at times to come."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_rig import ROOT, Shell
from tests.waiting import HOPELESS_S


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Shell, str]]:
    """Somebody who names the data folder of their cluster, which is not the default one."""
    shell, data = Shell(tmp_path_factory.mktemp("home")), str(tmp_path_factory.mktemp("data"))
    typed = ("up", "--data", data, "--detach", "--workers", "1", "--cores", "4", "--memory", "4G", "--masters", "1")
    assert shell.ok(*typed).endswith(f"`fairlog --data {data} down` stops it\n")
    try:
        yield shell, data
    finally:
        shell.ok("down", "--data", data)


def test_who_names_a_data_folder_is_advised_to_name_it(named: tuple[Shell, str]) -> None:
    shell, data = named
    for typed, due in {
        ("company", "list"): f"`fairlog --data {data} company add NAME` adds one",
        ("account", "list"): f"`fairlog --data {data} account add op/NAME` adds the first one",
        ("resource", "list"): f"`fairlog --data {data} resource add KIND` registers one",
    }.items():
        assert due in shell.ok(*typed, "--data", data)
        assert due.replace(f" --data {data}", "") in shell.ok(*typed)
    assert f"`fairlog --data {data} workers` lists" in shell.run("drain", "nosuch", "--data", data).err


def test_the_greeting_of_up_names_its_folder(tmp_path: Path) -> None:
    shell, data = Shell(tmp_path / "home"), str(tmp_path / "data")
    typed = [sys.executable, "-m", "fairlog", "up", "--data", data, "--workers", "0", "--masters", "1"]
    with subprocess.Popen(typed, env=shell.env, cwd=ROOT, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout is not None
            said = [up.stdout.readline() for _ in range(6)]
        finally:
            up.terminate()
            up.wait(HOPELESS_S)
    assert f"  fairlog --data {data} company add acme\n" in said
    assert f"  fairlog --data {data} status; fairlog --data {data} shares; " in "".join(said)
    assert f"with `fairlog --data {data} page`" in "".join(said)


def test_a_submission_begins_at_a_time_to_come(named: tuple[Shell, str]) -> None:
    shell, data = named
    shell.run("company", "add", "acme", "--data", data)
    submit = ("submit", "--company", "acme", "--user", "ann", "--data", data)
    for past in ("yesterday", "today", "2020-01-01", "2020-01-01T12:00Z"):
        refused = shell.run(*submit, "--begin", past, "--", "true")
        assert (refused.code, refused.out) == (2, "")
        assert f"'--begin': {past!r} is over: it is 20" in refused.err
    for later in ("now", "+1h", "tomorrow"):
        assert shell.ok(*submit, "--begin", later, "--", "true").startswith("app-")


def test_a_plan_names_no_app_that_does_not_exist(named: tuple[Shell, str]) -> None:
    shell, data = named
    shell.run("company", "add", "acme", "--data", data)
    plan = ("submit", "--company", "acme", "--user", "eve", "--data", data, "--plan")
    for options in ((), ("--hold",), ("--begin", "+1h"), ("--cores", "4", "--json"), ("--hold", "--json")):
        assert "app-" not in shell.ok(*plan, *options, "--", "true")
    assert "it is on hold; `fairlog release APP` ends that" in shell.ok(*plan, "--hold", "--", "true")


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("echo hello\n", "the script from standard input does not say by `#!` what runs it; begin it with `#!/bin/sh`"),
        ("#!/bin/sh\r\necho\r\n", r"convert it by `tr -d '\r'`"),
        ("", "the script is empty"),
    ],
)
def test_a_script_from_standard_input_is_not_called_a_file(named: tuple[Shell, str], text: str, due: str) -> None:
    shell, data = named
    refused = shell.run("submit", "--company", "acme", "--user", "ann", "--data", data, "--script", "-", text=text)
    assert (refused.code, refused.out) == (2, "")
    assert due in refused.err
    assert "./<stdin>" not in refused.err
    assert "'<stdin>'" not in refused.err
