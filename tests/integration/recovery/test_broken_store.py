"""A store that cannot read its files is mended by what operations.md says, typed word by word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlog.watch.conditions import Around, found
from scheduler.rules.state.cluster import ClusterState
from tests.integration.cli_rig import Shell

PAGE = Path(__file__).parents[3] / "docs" / "operations.md"
TYPED = "not run: tests/integration/recovery/test_broken_store.py types it"


def steps() -> str:
    """The commands of the page's procedure, as a script that ends at the first one that fails."""
    block = PAGE.read_text(encoding="utf-8").partition(TYPED)[2].partition("```")[0]
    typed = re.findall(r"^\$ (.+)$", block, re.MULTILINE)
    assert "valkey-check-aof" in block
    return "\n".join(["set -e", *typed])


def spoil(data: Path, company: str) -> None:
    """Overwrite what the store has written of this company and the length before it."""
    [file] = (data / "store" / "appendonlydir").glob("*.incr.aof")
    content = bytearray(file.read_bytes())
    begin = content.rindex(b"\r\n*", 0, content.index(f'CompanyRegistered","{company}"'.encode()))
    content[begin + 2 : begin + 6] = b"####"
    file.write_bytes(content)


@pytest.mark.slow
def test_a_store_that_cannot_read_its_files_goes_on_as_operations_md_says(tmp_path: Path) -> None:
    shell = Shell(tmp_path / "home")
    data = tmp_path / "data"
    up = ("up", "--detach", "--data", str(data), "--workers", "0", "--masters", "1")
    try:
        shell.ok(*up)
        for name in ("kept", "hit", "gone"):
            shell.ok("company", "add", name)
        shell.ok("down")
        spoil(data, "hit")
        refused = shell.run(*up)
        assert refused.code == 1
        assert "Bad file format reading the append only file" in refused.err
        mend, _, go_on = steps().partition("\nfairlog recover --data . --accept POSITION\n")
        typed = shell.sh(f"cd {data}\n{mend}")
        assert typed.code == 0, typed
        [advised, position] = re.findall(r"`(fairlog --data [^` ]* recover --accept (\d+))`", typed.err)[0]
        assert advised == f"fairlog --data {data} recover --accept {position}"
        typed = shell.sh(f"cd {data}\nset -e\nfairlog recover --data . --accept {position}\n{go_on}")
        assert typed.code == 0, typed
        assert "This log follows its rules" in typed.out
        assert re.search(r"RegisterCompany of local/\d+ \(gone\)", typed.out), "what was audited and is lost is named"
        left = shell.ok("company", "list", "--json")  # the message of `hit` may still be in the inbox
        assert [name in left for name in ("kept", "gone")] == [True, False]
        assert (data / "store.broken").is_dir()
    finally:
        shell.run("down")


def test_a_store_that_does_not_answer_asserts_nothing_of_what_is_lost() -> None:
    [condition] = found(ClusterState(), Around(now=0, serving=None, error="the store does not answer"))
    assert "nothing is lost" not in condition.do
    assert "can be known once it answers" in condition.do
