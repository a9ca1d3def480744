"""Whatever people write into a cluster and however its apps end: a public export and another company see none of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_rig import Shell
from tests.integration.fairlog.test_organisation import Organisation
from tests.waiting import wait_until

MARK = "zq7x"
"""A part of every text that is given; no id and no digest holds it."""
WAITS = "sh", "-c", f"sleep 600  # {MARK}"


@pytest.fixture
def organisation(tmp_path: Path) -> Iterator[Organisation]:
    found = Organisation(tmp_path)
    yield found
    found.owner.ok("down")


class Ann:
    """A user whose every app has the mark in its name, command, variables and folder."""

    def __init__(self, shell: Shell, folder: Path) -> None:
        self.shell, self.folder = shell, folder

    def submit(self, *arguments: str) -> str:
        """The id of an app; its options, then `--` and its command."""
        options, command = arguments[: arguments.index("--")], arguments[arguments.index("--") :]
        marked = ("--name", f"name {MARK}", "--env", f"{MARK.upper()}_KEY=value-{MARK}", *options, *command)
        return self.shell.ok("submit", *marked, folder=self.folder).splitlines()[0]

    def state(self, app: str) -> str:
        """Pending, waiting, running, or how it ended."""
        return str(self.shell.app(app)["state"])

    def ends(self, app: str, state: str) -> None:
        """Wait until it has ended so."""
        wait_until(lambda: self.shell.app(app)["endedAt"], f"the end of {app}")
        assert self.state(app) == state

    def runs(self, app: str) -> None:
        """Wait until it runs."""
        wait_until(lambda: self.state(app) == "running", f"the start of {app}")


def test_no_byte_of_what_people_write_is_in_a_public_export_however_an_app_ends(
    organisation: Organisation, tmp_path: Path
) -> None:
    folder = tmp_path / f"folder of {MARK}"
    folder.mkdir()
    (folder / f"{MARK}-job.sh").write_text(f"#!/bin/sh\n# {MARK}\nexit 3\n")
    olga, owner = organisation.olga, organisation.owner
    boss, shell = organisation.company("acme")
    _, bob = organisation.company("other")
    ann = Ann(shell, folder)
    boss.ok("account", "rename", "acme/ann", f"Ann {MARK}")
    boss.ok("account", "add", "acme/eve", "--display", f"Eve {MARK}")
    olga.ok("settings", "set", "max_executor_failures=1")

    ann.ends(ann.submit("--", "echo", MARK), "finished")
    for command in ([f"./no-{MARK}"], [f"/srv/{MARK}/no"], ["sh", f"./{MARK}-job.sh"], [f"./{MARK}-job.sh"]):
        ann.ends(ann.submit("--", *command), "failed")
        ann.ends(ann.submit("--driver", "--", *command), "failed")
        ann.ends(ann.submit("--executor-program", "--executors", "1", "--", *command), "failed")
    ann.ends(ann.submit("--", "sh", "-c", f"echo {MARK} >&2; kill -9 $$"), "failed")
    timed = ann.submit("--max-runtime", "1s", "--", *WAITS)
    ann.ends(timed, "expired")

    held = ann.submit("--hold", "--", "echo", MARK)
    assert ann.shell.run("kill", held, "--reason", f"no {MARK}\x07").code != 0
    ann.shell.ok("kill", held, "--reason", f"not {MARK} any more")
    assert ann.shell.run("kill", "app-0", "--reason", f"gone {MARK}").code != 0
    assert bob.run("kill", held, "--reason", "not mine").code != 0
    refused = ("submit", "--company", "other", "--user", "ann", "--name", f"{MARK}", "--", "echo", MARK)
    assert ann.shell.run(*refused, folder=folder).code != 0

    owned = ann.submit("--executor-program", "--executors", "1", "--", *WAITS)
    ann.runs(owned)
    ann.shell.ok("finish", owned, "--failed", "--detail", f"since {MARK}")
    running = ann.submit("--cores", "1", "--", *WAITS)
    ann.runs(running)
    olga.ok("kill", running, "--reason", f"an operator says {MARK}")
    lost = ann.submit("--cores", "1", "--driver", "--", *WAITS)
    ann.runs(lost)
    [worker] = [each["worker"] for each in json.loads(owner.ok("workers", "--json"))]
    olga.ok("drain", worker, "--reason", f"since {MARK}")
    assert MARK in owner.ok("workers")
    olga.ok("remove", worker, "--force")
    ann.ends(lost, "failed")

    assert (ann.shell.app(owned)["detail"], ann.shell.app(running)["detail"]) == (
        f"since {MARK}",
        f"an operator says {MARK}",
    )
    assert f"an operator says {MARK}" in ann.shell.ok("explain", running)
    assert f"Eve {MARK}" in boss.ok("account", "list")
    whole, public = owner.ok("log", "--json"), owner.ok("log", "--json", "--public")
    assert whole.count(MARK) > 50
    told = [public, bob.ok("log", "--json"), bob.ok("log"), bob.ok("audit"), owner.ok("log", "--public")]
    assert [text.lower().count(MARK) for text in told] == [0] * len(told)
    export = tmp_path / "public.jsonl"
    export.write_text(public)
    assert "This log follows its rules" in owner.ok("audit", str(export))
    assert "This log follows its rules" in owner.ok("audit")
