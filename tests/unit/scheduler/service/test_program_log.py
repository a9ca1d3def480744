"""The program's own log, and that it holds no password."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.service.program_log import masked

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://store:6379/0", "redis://store:6379/0"),
        ("redis://:hush@store:6379/0", "redis://:***@store:6379/0"),
        ("rediss://ann:hu:sh@store", "rediss://ann:***@store"),
        ("redis://ann:hu@sh@store", "redis://ann:***@store"),
        ("redis+sentinel://ann:hush@a:1,b:2/main", "redis+sentinel://ann:***@a:1,b:2/main"),
        ("redis://store?db=1&password=hush&x=2", "redis://store?db=1&password=***&x=2"),
        ("cannot read 'redis://:hush@h:x': port", "cannot read 'redis://:***@h:x': port"),
        ("redis://a:1 and mail@example.org", "redis://a:1 and mail@example.org"),
    ],
)
def test_passwords_in_urls_are_not_shown(text: str, shown: str) -> None:
    assert masked(text) == shown


def _logged(log_format: str) -> str:
    script = (
        "import structlog; from scheduler.service.program_log import log_to_stderr; "
        f"log_to_stderr({log_format!r}); "
        "structlog.get_logger().warning('away', url='redis://ann:hush@h', head=7)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == ""
    return done.stderr


def test_a_program_gets_one_json_object_an_event() -> None:
    entry = json.loads(_logged("json"))
    assert entry.pop("timestamp")
    assert entry == {"event": "away", "level": "warning", "url": "redis://ann:***@h", "head": 7}


def test_people_get_a_line_without_secrets() -> None:
    line = _logged("console")
    assert "away" in line
    assert "hush" not in line


def test_a_process_that_is_started_writes_as_the_one_that_started_it() -> None:
    script = (
        "import subprocess, sys; from scheduler.service.program_log import log_to_stderr; log_to_stderr('json'); "
        "subprocess.run([sys.executable, '-c', "
        "'import structlog; from scheduler.service.program_log import log_to_stderr; "
        'log_to_stderr(); structlog.get_logger().info("hello")\'])'
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stderr)["event"] == "hello"
