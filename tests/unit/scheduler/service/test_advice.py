"""Commands that a process of an `up` advises act on the data of that `up`."""

from __future__ import annotations

import pytest

from scheduler.service.advice import DATA_VARIABLE, of_this_cluster


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("type `fairlog recover --accept 0`", "type `fairlog --data /d recover --accept 0`"),
        (
            "`fairlog restore FILE`, or `fairlog audit`",
            "`fairlog --data /d restore FILE`, or `fairlog --data /d audit`",
        ),
        ("another `fairlog up` runs", "another `fairlog up` runs"),
        ("stop it with `fairlog down --data /e`", "stop it with `fairlog down --data /e`"),
        ("log in with `fairlog login --api URL`", "log in with `fairlog login --api URL`"),
        ("`up` uses the keys", "`up` uses the keys"),
    ],
)
def test_commands_name_the_folder_unless_they_name_a_place(
    monkeypatch: pytest.MonkeyPatch, said: str, named: str
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, "/d")
    assert of_this_cluster(said) == named
    monkeypatch.setenv(DATA_VARIABLE, "/a folder")
    assert of_this_cluster(said) == named.replace("--data /d", "--data '/a folder'")
    monkeypatch.delenv(DATA_VARIABLE)
    assert of_this_cluster(said) == said
