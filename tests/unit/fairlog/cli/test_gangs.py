"""Options of gangs that are wrong: one sentence that says what is right, and nothing is submitted."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from fairlog.cli.main import cli


@pytest.mark.parametrize("number", ["0", "-1", "1025", "100000000"])
def test_a_number_of_ranks_that_no_executor_has_is_refused(number: str) -> None:
    job = ["--company", "acme", "--user", "ann", "--executors", "2", "--ranks-per-executor", number]
    answer = CliRunner().invoke(cli, ["mpirun", *job, "--", "true"])
    assert (answer.exit_code, answer.stdout) == (2, "")
    said = f"Invalid value for '--ranks-per-executor': {number} is not in the range 1<=x<=1024"
    assert said in " ".join(answer.stderr.split())
