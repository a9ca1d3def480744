"""The FILE of a pool: what it may say, and what is said of one that is wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairlog.pools.spec import BadPool, Commands, read_pool

GOOD = """
name = "burst"
most = 4
cores = 4
memory = "4G"
cool_down = "90s"
[provider]
kind = "command"
start = ["start"]
stop = ["stop"]
list = ["list"]
"""


def read(tmp_path: Path, text: str) -> str:
    """What is wrong with the text; "" if nothing is."""
    file = tmp_path / "pool.toml"
    file.write_text(text)
    try:
        read_pool(file)
    except BadPool as refusal:
        return str(refusal).removeprefix(f"{file}: ").removesuffix("; docs/pools.md shows a whole file")
    return ""


def test_sizes_and_times_are_written_as_on_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "pool.toml").write_text(GOOD)
    pool = read_pool(tmp_path / "pool.toml")
    assert (pool.memory, pool.cool_down, pool.least, pool.every) == (4096, 90, 0, 5)
    assert pool.provider == Commands(kind="command", start=("start",), stop=("stop",), list=("list",))
    assert (pool.worker(3), pool.number("burst-3"), pool.number("burst-03")) == ("burst-3", 3, None)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("most = 4", "", "most: this must be given"),
        ("most = 4", "most = 4\nleast = 5", "least is 5, and most only 4"),
        ("most = 4", "most = -1", "most: Input should be greater than or equal to 0"),
        ("cores = 4", "cores = 0", "cores: Input should be greater than or equal to 1"),
        ('"burst"', '"Burst!"', "name: this must be 1 to 40 lower-case letters, digits, dots and hyphens"),
        ('"4G"', '"much"', "memory: 'much' is not a size in whole MiB; write it like 512M, 2G or 512"),
        ('"90s"', '"soon"', "cool_down: 'soon' is not a duration; write it like 90s, 1h30m or 00:10:00"),
        ('kind = "command"', 'kind = "cloud"', "provider: kind must be command, slurm or kubernetes"),
        ('kind = "command"', "", "provider: kind must be given: command, slurm or kubernetes"),
        ('start = ["start"]', "", "provider.start: this must be given"),
        ("cores = 4", "cores = 4\nspot = true", "spot: there is no such setting"),
    ],
)
def test_what_is_wrong_is_named_in_a_sentence(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    assert read(tmp_path, GOOD) == ""
    assert read(tmp_path, GOOD.replace(old, new)) == said


def test_a_file_that_is_no_toml_is_said_to_be_none(tmp_path: Path) -> None:
    assert re.search(r"pool\.toml is not TOML: .*line 2", read(tmp_path, "\nname: burst\n"))


def test_the_files_of_the_documents_are_pools(tmp_path: Path) -> None:
    page = (Path(__file__).parents[4] / "docs/pools.md").read_text()
    files = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(files) == 3
    whole = files[0] + 'timeout = "2m"\n'
    assert [read(tmp_path, text) for text in (whole, *files[1:])] == ["", "", ""]
