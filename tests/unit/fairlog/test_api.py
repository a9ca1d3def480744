"""The public API: everything it names is there, typed once, and nothing is loaded before it is asked for."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import fairlog
from fairlog.client import _values
from scheduler.model import errors


def test_every_public_name_can_be_imported() -> None:
    assert [name for name in fairlog.__all__ if not getattr(fairlog, name)] == []


def test_the_version_is_that_of_the_package() -> None:
    assert fairlog.__version__ == version("fairlog")


def test_every_refusal_that_a_user_command_can_meet_is_a_public_error() -> None:
    agents_only = {"AddressGranted", "DuplicateWorker", "OfferTooSmall", "UnknownDriver"}
    refusals = {each.__name__ for each in errors.CommandRejected.__subclasses__()}
    assert refusals - agents_only == refusals & set(fairlog.errors.__all__)


def test_importing_the_package_loads_neither_the_store_library_nor_the_scheduler() -> None:
    program = "import sys, fairlog; print([n for n in ('redis', 'scheduler') if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("env", [{"A": 1}, {1: "A"}, {"A": None}, {"A": b"1"}, ["A"], "A=1", [("A", "1")]])
@pytest.mark.parametrize("script", [None, "true"])
def test_variables_that_are_no_texts_are_called_what_the_caller_calls_them(env: object, script: str | None) -> None:
    with pytest.raises(errors.InvalidCommand, match="env gives each variable a text by its name"):
        _values(env, script)  # type: ignore[arg-type]  # what an untyped caller gives
    assert _values({"A": "1"}, None) == {"A": "1"}
