"""Patterns of the files to which the tasks of an app write."""

from __future__ import annotations

import pytest

from scheduler.model.commands import SubmitApp, write_command
from scheduler.model.errors import InvalidCommand
from scheduler.model.outputs import check_pattern, filled, folder_of, is_shared
from scheduler.service.inbox import received

VALUES = {"j": "17_4", "A": "17", "a": "4", "x": "a/b", "u": "ann", "N": "node1"}


@pytest.mark.parametrize(
    ("pattern", "file"),
    [
        ("/out/%j.txt", "/out/17_4.txt"),
        ("/out/%A/%3a", "/out/17/004"),
        ("/out/%x-%u@%N", "/out/a_b-ann@node1"),
        ("/out/%%j%%", "/out/%j%"),
        ("/dev/null", "/dev/null"),
    ],
)
def test_a_pattern_stands_for_a_file(pattern: str, file: str) -> None:
    check_pattern("--output", pattern)
    assert filled(pattern, VALUES) == file


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("/out/%q", "--output has '%q', which stands for nothing; write %j, %A, %a, %x, %u, %N or %%"),
        ("/out/%", "--output has '%', which stands for nothing; write %j, %A, %a, %x, %u, %N or %%"),
        ("/out/%5j", "--output has '%5j', which stands for nothing; write %j, %A, %a, %x, %u, %N or %%"),
        ("out", "--output must be the absolute path of a file, not 'out'"),
        ("/out/", "--output must be the absolute path of a file, not '/out/'"),
        ("/a\0", "--output must not contain NUL characters"),
        ("/" + "x" * 4096, "--output can have at most 4096 characters, not 4097"),
    ],
)
def test_a_pattern_that_stands_for_no_file_is_refused(pattern: str, sentence: str) -> None:
    with pytest.raises(InvalidCommand) as raised:
        check_pattern("--output", pattern)
    assert str(raised.value) == sentence


def test_the_folder_of_a_pattern_is_what_all_its_files_have_in_common() -> None:
    assert [folder_of(each) for each in ("/a/b/%j", "/a/%x/b", "/%a", "/a/b%a/c")] == ["/a/b", "/a", "/", "/a"]


def test_files_are_shared_unless_something_tells_the_tasks_apart() -> None:
    shared = [is_shared(each) for each in ("/a", "/%A", "/%%a", "/%a", "/%j", "/dev/null", "")]
    assert shared == [True, True, True, False, False, False, False]


@pytest.mark.parametrize(
    "about",
    [
        {"tasks": 2, "output": "/out/%A"},
        {"tasks": 2, "output": "/out/%a", "error": "/out/err"},
        {"output": "/out"},
        {"tasks": 1, "executor_program": True, "output": "/out"},
        {"tasks": 1, "driver": True, "output": "/out"},
    ],
)
def test_tasks_share_a_file_only_if_they_are_told_to_append(about: dict[str, object]) -> None:
    plain = SubmitApp(app="a", company="acme", user="ann", command=("true",), **about)  # type: ignore[arg-type]
    with pytest.raises(InvalidCommand, match="all tasks of the app would write to the same file '/out"):
        received(write_command(plain).encode())
    append = SubmitApp(app="a", company="acme", user="ann", command=("true",), open_mode="append", **about)  # type: ignore[arg-type]
    assert received(write_command(append).encode()) == append


@pytest.mark.parametrize("about", [{"tasks": 1}, {"driver": True}, {"driver": True, "tasks": 0}])
def test_a_lone_task_has_a_file_of_its_own(about: dict[str, object]) -> None:
    alone = SubmitApp(app="a", company="acme", user="ann", command=("true",), output="/out", **about)  # type: ignore[arg-type]
    assert received(write_command(alone).encode()) == alone
