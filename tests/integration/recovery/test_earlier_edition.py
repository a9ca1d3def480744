"""Nobody serves from a log of an earlier edition of the rules, until an operator goes on by the newest one (H8)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlog.cli.main import main
from fairlog.local.store import EmbeddedStore
from recovery.failover.master import REFUSING
from tests.integration.cli_rig import Shell
from tests.integration.forked import Forked
from tests.waiting import wait_until

GOLDEN = Path(__file__).parents[2] / "golden" / "earlier"
UP = "up", "--detach", "--workers", "1", "--masters", "2"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """The data of an `up` with the log of an earlier version."""
    shell = Shell(tmp_path / "home")
    shell.env["FAIRLOG_DATA"] = str(tmp_path / "data")
    try:
        shell.ok("import", str(GOLDEN / "fair-spread.jsonl"))
        yield shell
    finally:
        shell.run("down")


def status(shell: Shell) -> dict[str, Any]:
    """The conditions that hold, by name."""
    answer = shell.run("status", "--json")
    return {each["condition"]: each for each in json.loads(answer.out)["health"]["conditions"]}


@pytest.mark.slow
def test_up_says_what_to_type_and_serves_once_that_is_typed(shell: Shell) -> None:
    refused = shell.run(*UP)
    assert refused.code == 1
    assert "the log is by edition 2 of the rules of sharing" in refused.err
    assert re.search(r"`fairlog --data \S+ edition 3`", refused.err), "which says which cluster it is about"
    told = shell.ok("edition", "3")
    assert re.search(r"^edition 3 of the rules of sharing is in force; the decision is at \d+$", told, re.MULTILINE)
    assert shell.ok("edition", "3") == "edition 3 of the rules of sharing is in force already\n"
    back = shell.run("edition", "2")
    assert (back.code, "no earlier one can follow" in back.err) == (1, True)
    shell.ok(*UP)
    shell.ok("company", "add", "initech")
    assert "follows its rules" in shell.ok("audit")
    assert not status(shell).keys() & {"edition", "no_master"}


@pytest.mark.slow
def test_masters_that_wait_serve_as_soon_as_it_is_typed(shell: Shell, tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "store") as store:
        shell.env = {**shell.env, "FAIRLOG_STORE": store.url}
        del shell.env["FAIRLOG_DATA"]
        shell.ok("import", str(GOLDEN / "failover.jsonl"))
        log = tmp_path / "log"
        master = Forked(main, "master", environment=shell.env, log=log)
        try:
            wait_until(lambda: log.exists() and REFUSING in log.read_text(), "the master to refuse")
            found = status(shell)
            assert "no_master" not in found, "the advice to start one would be wrong"
            assert found["edition"]["severity"] == "critical"
            assert "`fairlog edition 3`" in found["edition"]["do"]
            shell.ok("edition", "3")
            shell.ok("company", "add", "initech")
            assert "edition" not in status(shell)
        finally:
            master.terminate()
            master.wait()
