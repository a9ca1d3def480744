"""A master whose file of keys is not that of the cluster: it says so at its start, and the log stays sound."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cli_rig import Service, Shell
from tests.integration.servers import Servers


@pytest.mark.slow
def test_a_master_without_the_key_in_force_refuses_before_it_writes_anything(servers: Servers, tmp_path: Path) -> None:
    """Also beside a master that serves: it would stand by for a log that it may not write."""
    shell = Shell(tmp_path / "home")
    shell.env["FAIRLOG_STORE"] = f"redis://127.0.0.1:{servers.start()}/0"
    for name in ("ours", "others"):
        shell.ok("keys", "new", name)
    ours, others = (shell.env | {"FAIRLOG_KEYS": str(shell.home / name)} for name in ("ours", "others"))
    shell.env = ours
    with Service(shell, "master") as master:
        master.hear("READY=1")
        shell.ok("company", "add", "acme")
        before = shell.ok("log", "--json")
        shell.env = others
        beside = shell.run("master")
        master.process.terminate()
        master.process.wait()
    alone = shell.run("master")
    for refused in (beside, alone):
        assert (refused.code, refused.err.count("Error: ")) == (1, 1)
        assert "which the file of keys does not hold" in refused.err
        assert "`FAIRLOG_KEYS=FILE fairlog master`" in refused.err
    assert shell.ok("log", "--json") == before
    shell.env = ours
    with Service(shell, "master", name="again") as master:
        master.hear("READY=1")
        shell.ok("company", "add", "globex")
        shell.ok("audit")
