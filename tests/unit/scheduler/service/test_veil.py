"""What a public log says of how an app ended: nothing of its command, folder, variables and name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.commands import Command, EndApp, EndedDriver, EndedExecutor, SubmitApp
from scheduler.model.errors import InvalidCommand
from scheduler.model.text import MAX_DETAIL, one_line
from scheduler.rules.state import ClusterState
from scheduler.service.veil import veiled, veiled_refusal
from scheduler.store.codec import lines_of
from tests.property.given import Cluster, shared, submission

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
        "used 5000 MiB, more than its 4096 MiB",
        "its driver was ended by SIGKILL",
        "worker w1 runs tasks without cells, and those of company acme only; give it --launcher cell",
    ],
)
def test_a_sentence_that_quotes_nothing_stays_as_it_is(said: str) -> None:
    state = submitted().state
    assert [veiled(state, report) for report in reports(said)] == reports(said)


def test_without_the_private_part_quotes_and_paths_are_left_out_all_the_same() -> None:
    veil = veiled(ClusterState(), EndApp(app="gone", reason="failed", detail="command 'x' in /srv/y on worker 'gone'"))
    assert veil == EndApp(app="gone", reason="failed", detail="command '…' in … on worker 'gone'")


def test_the_refusal_of_a_submission_is_logged_without_what_is_private() -> None:
    asked = SubmitApp(app="app-1", company="acme", user="ann", cwd=f"{SECRET}/here")
    refusal = InvalidCommand(f"the folder to run in must be an absolute path, not '{SECRET}/here'")
    logged = veiled_refusal(asked, refusal)
    assert (type(logged), str(logged)) == (InvalidCommand, "the folder to run in must be an absolute path, not '…'")
    assert str(veiled_refusal(submission("a"), InvalidCommand("no 'acme'"))) == "no 'acme'"
