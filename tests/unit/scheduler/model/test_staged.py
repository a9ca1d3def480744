"""Files that are staged with an app."""

from __future__ import annotations

import pytest

from scheduler.model.errors import InvalidCommand
from scheduler.model.staged import MOST_BYTES, packed, unpacked


def test_what_was_packed_is_unpacked() -> None:
    files = {"a.sh": b"true", "_b-1+c": bytes(range(256)), "full": b"x" * (MOST_BYTES - 260)}
    assert unpacked(packed(files)) == files


@pytest.mark.parametrize("name", ["", ".hidden", "../up", "a/b", "-x", "a\nb", "x" * 129])
def test_a_name_that_leads_elsewhere_is_refused_at_both_ends(name: str) -> None:
    with pytest.raises(InvalidCommand, match="a staged file's name has"):
        packed({name: b""})
    with pytest.raises(InvalidCommand, match="a staged file's name has"):
        unpacked(packed({"x": b""}).replace('"x"', f'"{name}"'.replace("\n", "\\n")))


@pytest.mark.parametrize("text", ["", "[]", "1", '{"a": 1}', '{"a": "%"}', "null"])
def test_a_value_of_another_make_is_refused(text: str) -> None:
    with pytest.raises(InvalidCommand, match="FAIRLOG_FILES holds no files"):
        unpacked(text)


def test_too_much_is_refused_with_both_numbers() -> None:
    with pytest.raises(InvalidCommand, match="have more than 40960 bytes together"):
        packed({"a": b"x" * 40_961})
    with pytest.raises(InvalidCommand, match="at most 32 files can be staged, not 33"):
        packed({str(number): b"" for number in range(33)})
