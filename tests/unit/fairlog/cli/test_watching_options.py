"""Options of `audit --follow`, `alerts` and `master --metrics` that are wrong: one sentence that says what is right."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from fairlog.cli.main import cli


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("audit --follow log.jsonl", "--follow takes no FILE"),
        ("audit --follow --all", "--follow takes no --all"),
        ("audit --follow --json", "--follow takes no --json"),
        ("audit --follow --to 7", "--follow takes no --to"),
        ("audit --follow --company acme", "--follow takes no --company"),
        ("audit --checkpoints x", "--checkpoints needs --follow"),
        ("alerts --webhook hooks.example.com", "a webhook is a URL like https://HOST:8443/PATH"),
        ("alerts --webhook ftp://x/", "a webhook is a URL like https://HOST:8443/PATH"),
        ("alerts --webhook http://[", "a webhook is a URL like https://HOST:8443/PATH"),
        ("alerts --command ''", "'' is no command; quote its arguments as in a shell"),
        ('alerts --command "mail \'x"', "is no command; quote its arguments as in a shell"),
        ("alerts --disk 0", "a percentage is a number from 1 to 100, not '0'"),
        ("alerts --disk 101%", "a percentage is a number from 1 to 100, not '101%'"),
        ("alerts --memory lots", "a percentage is a number from 1 to 100, not 'lots'"),
        ("alerts --every 0", "0 is not in the range 1<=x<=3600"),
        ("alerts --short soon", "'soon' is not a duration; write it like"),
        ("alerts --ignore weather", "'weather' is not one of 'store', 'log', 'shorter', 'edition'"),
        ("master --metrics nine", "metrics are served at [HOST:]PORT, with a port from 1 to 65535, not at 'nine'"),
        ("master --metrics 0", "metrics are served at [HOST:]PORT, with a port from 1 to 65535, not at '0'"),
        ("up --metrics 70000", "metrics are served at [HOST:]PORT, with a port from 1 to 65535, not at '70000'"),
        ("up --metrics 65535", "--metrics needs a port for each of 2 masters, and 65536 is above 65535"),
        ("master --metrics :x", "metrics are served at [HOST:]PORT, with a port from 1 to 65535, not at ':x'"),
        ("status --live --at 3", "--live checks the present; leave out --at"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(
    words: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.jsonl").touch()
    answer = CliRunner().invoke(cli, shlex.split(words))
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert sentence in " ".join(answer.stderr.split())
    assert answer.stderr.startswith("Error: ")
