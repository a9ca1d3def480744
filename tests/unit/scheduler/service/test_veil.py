"""What a public log says of how an app ended: nothing of its command, folder, variables and name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from scheduler.model.commands import Command, EndApp, EndedDriver, EndedExecutor, SubmitApp
from scheduler.model.errors import InvalidCommand
from scheduler.model.text import MAX_DETAIL, one_line
from scheduler.rules.state.cluster import ClusterState
from scheduler.service.veil import is_veiled, veiled, veiled_refusal
from scheduler.store.codec import lines_of
from tests.property.given import Cluster, shared, submission
from workers.agent import _CELLS

SECRET = "top-secret"
PRIVATE: dict[str, Any] = {
    "name": f"name of {SECRET}",
    "command": (f"./run {SECRET}", f"--key={SECRET}"),
    "cwd": f"/srv/{SECRET} plans/it's",
    "env": (f"{SECRET.upper().replace('-', '_')}_KEY",),
}
WORDS = st.sampled_from([*PRIVATE["command"], PRIVATE["cwd"], PRIVATE["name"], *PRIVATE["env"]])
SAID = st.one_of(
    st.builds("command {!r} does not exist on worker w1".format, WORDS),
    st.builds("directory {!r} does not exist or is not accessible on worker w1".format, WORDS),
    st.builds("bwrap: execvp {}: No such file or directory (worker w1)".format, WORDS),
    st.builds("[Errno 13] Permission denied: {!r} (worker w1)".format, WORDS),
    st.builds(
        lambda word, number: one_line("x" * number + f" {word!r} is missing", MAX_DETAIL), WORDS, st.integers(970, 1020)
    ),
)

KNOWN = [
    "task 3 ended with exit code 1",
    "its driver was ended by SIGKILL",
    "command 'a' cannot be run on worker w1: Exec format error",
    "the staged file 'a' could not be written on worker w1: Disk quota exceeded",
    "no cell can be started: bwrap: no (worker w1)",
    "the tasks of executor app-1.0 used 5000 MiB; 4096 MiB are granted",
    f"worker w1 runs tasks without cells, and those of company acme only; {_CELLS}",
]

HELPER = "fairlog-launch starts no cell: "
OUTPUT = "of its own; name a file in the app's folder or another one (worker w1)"


def submitted() -> Cluster:
    """A cluster with an app that runs, of which each private part names the secret."""
    cluster = shared(w1=8)
    cluster.turn(SubmitApp(app="app-1", company="acme", user="ann", **PRIVATE))
    return cluster


def reports(said: str) -> list[Command]:
    return [
        EndApp(app="app-1", reason="failed", detail=said),
        EndedDriver(driver="app-1.driver-0", worker="w1", reason="failed", detail=said),
        EndedExecutor(executor="app-1.0", worker="w1", reason="failed", exit_code=127, unstartable=said),
        EndedExecutor(executor="app-1.0", worker="w1", reason="failed", exit_code=1, detail=said),
    ]


@given(SAID)
def test_no_report_names_what_is_private(said: str) -> None:
    state = submitted().state
    for report in reports(said):
        told = repr(veiled(state, report)).lower()
        assert SECRET not in told
        assert SECRET.replace("-", "_") not in told
        assert "plans" not in told


@given(SAID)
def test_no_public_export_of_a_log_names_what_is_private(said: str) -> None:
    for report in reports(said):
        cluster = submitted()
        if not isinstance(report, EndApp | EndedExecutor):
            continue
        cluster.turn(veiled(cluster.state, report))
        public = "".join(str(line.as_json()) for record in cluster.records for line in lines_of(record, public=True))
        assert SECRET not in public.lower()


@pytest.mark.parametrize(
    "said",
    [
        "task 3 ended with exit code 1",
        "task 3 exceeded its time limit of 5 s",
        "used 5000 MiB, above the 4096 MiB granted",
        "the tasks of executor app-1.0 used 5000 MiB; 4096 MiB are granted",
        "its driver was ended by SIGKILL",
        "its program was ended by signal 35",
        "its command cannot be started",
        "no log file on worker w1: No space left on device",
        "the executor's cell has ended",
        "bubblewrap is not installed (apt install bubblewrap) (worker w1)",
        "the stored script is not the one that was submitted; submit it again (worker w1)",
        f"worker w1 runs tasks without cells, and those of company acme only; {_CELLS}",
    ],
)
def test_a_sentence_that_quotes_nothing_stays_as_it_is(said: str) -> None:
    state = submitted().state
    assert [veiled(state, report) for report in reports(said)] == reports(said)


@pytest.mark.parametrize(
    ("said", "logged"),
    [
        ("command './a b' does not exist on worker w1", "command '…' does not exist on worker w1"),
        ('command "it\'s" does not exist on worker w1', 'command "…" does not exist on worker w1'),
        (
            "command 'a' cannot be run on worker w1: Exec format error",
            "command '…' cannot be run on worker w1: Exec format error",
        ),
        (
            "command 'a' cannot be run on worker w1: its interpreter does not exist",
            "command '…' cannot be run on worker w1: its interpreter does not exist",
        ),
        (
            "directory 'a' does not exist or is not accessible on worker w1",
            "directory '…' does not exist or is not accessible on worker w1",
        ),
        (
            "the staged file 'a' could not be written on worker w1: Disk quota exceeded",
            "the staged file '…' could not be written on worker w1: Disk quota exceeded",
        ),
        (
            "the file '/a' of its output cannot be opened on worker w1: it is no regular file",
            "the file '…' of its output cannot be opened on worker w1: it is no regular file",
        ),
        ("no cell can be started: bwrap: no (worker w1)", "no cell can be started: … (worker w1)"),
        ("the executor's cell has ended: a (worker w1)", "the executor's cell has ended: … (worker w1)"),
        *(
            (f"{helper}folder '/a' cannot be {why} (worker w1)", f"{helper}folder '…' cannot be {logged} (worker w1)")
            for helper in ("", HELPER)
            for why, logged in (
                ("an app's: it belongs to the system or to fairlog",) * 2,
                (
                    "an app's: this worker takes folders below /a, /b (--folders)",
                    "an app's: this worker takes folders below … (--folders)",
                ),
            )
        ),
        (f"{HELPER}neither user acme/ann nor company acme has an account here (worker w1)",) * 2,
        (f"{HELPER}neither user acme/bob nor company acme has an account here (worker w1)", f"{HELPER}… (worker w1)"),
        (
            f"the output '/tmp/a' would end with the cell, which has a /tmp {OUTPUT}",
            f"the output '…' would end with the cell, which has a … {OUTPUT}",
        ),
        ("anything (worker w1)", "… (worker w1)"),
        ("anything (worker w2)", "…"),
        ("no log file on worker w2: No space left on device", "…"),
        ("the tasks of executor app-2.0 used 5000 MiB; 4096 MiB are granted", "…"),
        ("sh: 1: ./a: not found", "…"),
        ("task 3 ended with exit code 1 ", "…"),
        ("task 3 ended with exit code 1\n", "…"),
    ],
)
def test_only_known_sentences_are_logged_and_nothing_that_they_quote(said: str, logged: str) -> None:
    state = submitted().state
    for report, veil in zip(reports(said), reports(logged), strict=True):
        assert veiled(state, report) == veil
    assert is_veiled(said, logged), "who sends the report again is not told that it says something else"


def test_an_app_that_is_not_known_names_the_worker_that_reports() -> None:
    end = EndedExecutor(
        executor="gone.0", worker="w7", reason="failed", detail="command 'x' does not exist on worker w7"
    )
    assert veiled(ClusterState(), end) == replace(end, detail="command '…' does not exist on worker w7")


@given(
    st.sampled_from(["", *KNOWN]),
    st.lists(st.sampled_from(["zq7x", "'", '"', " ", "(", ")", "worker w1", "\\", "/", "a", ";"]), max_size=6),
    st.data(),
)
def test_whatever_a_worker_says_around_a_known_sentence_no_part_of_it_is_logged(
    sentence: str, parts: list[str], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(sentence)))
    said = f"{sentence[:at]}{''.join(parts)}zq7x{sentence[at:]}"
    state = submitted().state
    for report in reports(said):
        assert "zq7x" not in repr(veiled(state, report))


def test_the_refusal_of_a_submission_is_logged_without_what_is_private() -> None:
    asked = SubmitApp(app="app-1", company="acme", user="ann", cwd=f"{SECRET}/here")
    refusal = InvalidCommand(f"the folder to run in must be an absolute path, not '{SECRET}/here'")
    logged = veiled_refusal(asked, refusal)
    assert (type(logged), str(logged)) == (InvalidCommand, "the folder to run in must be an absolute path, not '…'")
    assert str(veiled_refusal(submission("a"), InvalidCommand("no 'acme'"))) == "no 'acme'"
