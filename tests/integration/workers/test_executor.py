"""Executors as real processes on a real store: what tasks see, how they end, and that they leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from rq import Queue
from rq.serializers import JSONSerializer

from fairlog.local.store import EmbeddedStore
from scheduler.model.grants import Leaving
from scheduler.model.staged import FILES, packed
from scheduler.service.keyring import Keyring
from scheduler.store.full_disks import cuts
from scheduler.store.secrets import seal
from scheduler.store.unused import unused
from tests.integration.forked import Forked
from tests.integration.workers.worker_rig import ONE_STORE, WORKER, Rig, processes_of, tasks_of
from tests.waiting import HOPELESS_S, wait_until
from workers.executor import ExecutorSpec, run_executor
from workers.forkserver import Forkserver
from workers.processes import send_signal
from workers.rundir import RunDir

KEY = bytes(range(32))


@pytest.fixture
def rig(store: EmbeddedStore, tmp_path: Path, forkserver: Forkserver) -> Iterator[Rig]:
    rig = Rig(store.url, tmp_path / "run", shared=forkserver)
    yield rig
    rig.close()


@pytest.fixture
def lone_rig(store: EmbeddedStore, tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(store.url, tmp_path / "run")
    yield rig
    rig.close()


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


def outputs(rig: Rig, tasks: int) -> list[str]:
    return [rig.work.output(rig.app, task).decode() for task in range(tasks)]


def test_every_task_runs_once_with_its_own_index_and_the_last_ends_the_app(rig: Rig) -> None:
    grant = rig.grant(shell("echo $FAIRLOG_TASK_INDEX/$FAIRLOG_TASK_COUNT"), tasks=7, cores=3)
    note = rig.run(grant)
    assert (note.reason, note.exit_code, note.done) == ("exited", 0, True)
    assert outputs(rig, 7) == [f"{task}/7\n" for task in range(7)]
    assert [state.attempts for state in rig.work.states(rig.app)] == [1] * 7
    assert [command for command in rig.inbox() if "EndApp" in command] == [
        f'{{"type":"EndApp","app":"{rig.app}","reason":"finished","executor":"{rig.app}.0"}}'
    ]


@ONE_STORE
def test_an_executor_runs_as_many_tasks_at_once_as_its_cores_suffice_for(rig: Rig, tmp_path: Path) -> None:
    """Semantics A7: 5 cores are two tasks of 2."""
    gate = tmp_path / "gate"
    script = f"echo $FAIRLOG_TASK_CORES of $FAIRLOG_CORES; until test -e {gate}; do sleep 0.02; done"
    grant = rig.grant(shell(script), tasks=3, cores=5, cores_per_task=2)
    rig.launch(grant)
    wait_until(lambda: rig.work.progress(rig.app).running, "the first tasks")
    assert rig.work.progress(rig.app)[:3] == (3, 1, 2)
    gate.touch()
    assert rig.end_of(grant).done
    assert outputs(rig, 3) == ["2 of 5\n"] * 3


@ONE_STORE
def test_an_executor_and_its_tasks_are_one_process_group(rig: Rig) -> None:
    grant = rig.grant((sys.executable, "-c", "import os; print(os.getpgrp())"), tasks=2)
    pid = rig.launch(grant)
    rig.end_of(grant)
    assert outputs(rig, 2) == [f"{pid}\n"] * 2


@ONE_STORE
def test_several_executors_share_the_tasks_of_one_app(rig: Rig, tmp_path: Path) -> None:
    """No task ends before each executor has begun one."""
    begun = tmp_path / "begun"
    begun.mkdir()
    script = f"touch {begun}/$FAIRLOG_EXECUTOR_ID; while test $(ls {begun} | wc -l) -lt 3; do sleep 0.02; done"
    grants = [rig.grant(shell(script), number=n, tasks=30) for n in range(3)]
    for grant in grants:
        rig.launch(grant)
    for grant in grants:
        assert rig.end_of(grant).done
    states = rig.work.states(rig.app)
    assert {state.state for state in states} == {"succeeded"}
    assert len({state.executor for state in states}) == 3
    assert all(state.attempts == 1 for state in states)


@ONE_STORE
@pytest.mark.parametrize("killed", ["nothing", "the executor", "the first process"])
def test_without_an_agent_nothing_runs_once_the_grant_is_gone(
    store: EmbeddedStore, tmp_path: Path, killed: str
) -> None:
    """Its worker was lost, so the grant went, and no agent stops the executor."""
    rig = Rig(store.url, tmp_path / "run", outlive_agent=True)
    grant = rig.grant(("sleep", "100000"))
    executor = rig.launch(grant)
    wait_until(lambda: processes_of(rig.app), "the task")
    holder = next(each for each in rig.files.known() if each.executor == grant.executor)
    rig.forkserver.close()  # as when its agent is gone
    try:
        if killed != "nothing":
            os.kill(executor if killed == "the executor" else holder.first, signal.SIGKILL)
        rig.connection.hdel(rig.keys.grants(WORKER), grant.executor)
        wait_until(lambda: not processes_of(rig.app), "the end of the task")
    finally:
        for pid in (executor, *processes_of(rig.app)):
            send_signal([pid], signal.SIGKILL)
        rig.close()


@ONE_STORE
@pytest.mark.parametrize("program", [False, True])
def test_what_the_disk_does_not_take_is_told_in_the_output_and_to_the_cluster(rig: Rig, program: bool) -> None:  # noqa: FBT001
    """A folder in the place of the file stands for a full disk."""
    rig.files.log_files(rig.app, "0" if program else "0-0")[1].mkdir(parents=True)
    grant = rig.grant(shell("echo out; echo lost >&2"))
    rig.run(grant.model_copy(update={"program": program}))
    said = "fairlog: 5 bytes of the output are not in the worker's files: Is a directory\n"
    assert rig.work.tail(rig.app, 0).text("stderr").decode() == f"lost\n{said}"
    cut = cuts(rig.connection, rig.keys)[WORKER]
    assert (cut.unwritten >= 5, cut.why) == (True, "Is a directory")


@ONE_STORE
@pytest.mark.parametrize(("code", "port"), [(127, 20_000), (1, 20_000), (127, 0)])
def test_a_program_of_a_gang_can_say_that_it_could_not_be_started(rig: Rig, code: int, port: int) -> None:
    """One without a port is no program of a gang."""
    note = rig.run(rig.grant(shell(f"exit {code}")).model_copy(update={"program": True, "port": port}))
    said = f"its program ended with exit code {code}"
    assert (note.reason, note.exit_code) == ("failed", code)
    if (code, port) == (127, 20_000):
        assert note.unstartable.startswith(f"{said} on worker {WORKER}, as shells do where a command does not exist")
    else:
        assert (note.unstartable, note.detail) == ("", said)


@ONE_STORE
def test_a_task_sees_the_submitters_variables_and_its_executors_size(rig: Rig) -> None:
    names = ("SECRET", "FAIRLOG_APP_ID", "FAIRLOG_EXECUTOR_ID", "FAIRLOG_CORES", "FAIRLOG_MEMORY_MB")
    grant = rig.grant(shell("; ".join(f"echo ${name}" for name in names)), memory_mb=768)
    rig.connection.hset(rig.keys.secrets(rig.app), "SECRET", "a=b c")
    rig.run(grant)
    assert outputs(rig, 1) == [f"a=b c\n{rig.app}\n{grant.executor}\n2\n768\n"]


def _put_sealed(rig: Rig) -> None:
    for name, value in seal(KEY, rig.cluster, rig.app, {"SECRET": "a=b c"}).items():
        rig.connection.hset(rig.keys.secrets(rig.app), name, value)


@ONE_STORE
def test_a_worker_with_the_key_opens_sealed_variables(rig: Rig) -> None:
    grant = rig.grant(shell("echo $SECRET"))
    _put_sealed(rig)
    spec = rig.spec(grant).model_copy(update={"keys": Keyring.new()._replace(apps=KEY).as_json()})
    assert rig.forkserver.launch(spec)
    rig.end_of(grant)
    assert outputs(rig, 1) == ["a=b c\n"]


@ONE_STORE
def test_a_task_whose_secrets_cannot_be_read_fails_with_a_sentence(rig: Rig) -> None:
    _put_sealed(rig)
    assert rig.run(rig.grant(shell("echo $SECRET"))).unstartable
    message = rig.work.states(rig.app)[0].message
    assert message.startswith(f"cannot read the secrets of {rig.app}: they are sealed with the key ")
    assert message.endswith(f"this host has no key for secrets (worker {WORKER})")


@ONE_STORE
def test_a_task_does_not_see_the_environment_of_the_agent(lone_rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTS_OWN", "private")
    lone_rig.run(lone_rig.grant(shell("env")))
    printed = outputs(lone_rig, 1)[0]
    assert "AGENTS_OWN" not in printed
    assert "PATH=" in printed


@ONE_STORE
def test_the_worker_keeps_the_complete_output_of_a_slot_in_two_files(rig: Rig) -> None:
    """An index says what is where."""
    script = "echo out $FAIRLOG_TASK_INDEX; echo err >&2; [ $FAIRLOG_TASK_INDEX = 1 ] || yes | head -c 100000; echo end"
    rig.run(rig.grant(shell(f"[ $FAIRLOG_TASK_INDEX = 2 ] || {{ {script}; }}"), tasks=3, cores=1))
    whole = {}
    for line in rig.files.log_index(rig.app).read_text().splitlines():
        task, attempt, file, offset, length = line.split()
        assert attempt == "1"
        written = (rig.files.log_index(rig.app).parent / file).read_bytes()
        whole[int(task), file] = written[int(offset) : int(offset) + int(length)]
    assert sorted(whole) == [(task, file) for task in (0, 1) for file in ("0-0.err", "0-0.log")]
    assert (whole[1, "0-0.log"], whole[1, "0-0.err"]) == (b"out 1\nend\n", b"err\n")
    assert len(whole[0, "0-0.log"]) > 100_000
    note, _, end = rig.work.output(rig.app, 0, "stdout").partition(b"\n")
    assert end == whole[0, "0-0.log"][-64 * 1024 + 4 :]
    missing = len(whole[0, "0-0.log"]) - len(end)
    assert note == b"fairlog: %d bytes before this are not shown here; the worker has them in its files" % missing
    assert rig.work.output(rig.app, 0, "stderr") == b"err\n"
    assert sorted(rig.work.output(rig.app, 1).splitlines()) == [b"end", b"err", b"out 1"]


def test_a_running_tasks_output_can_be_read(rig: Rig) -> None:
    grant = rig.grant(shell("echo first; sleep 60"))
    rig.launch(grant)
    wait_until(lambda: outputs(rig, 1) == ["first\n"], "the output of the running task")


@ONE_STORE
def test_a_task_runs_in_the_apps_directory(rig: Rig, tmp_path: Path) -> None:
    rig.run(rig.grant(shell("pwd"), cwd=str(tmp_path)))
    assert outputs(rig, 1) == [f"{tmp_path}\n"]


@ONE_STORE
def test_a_staged_file_that_cannot_be_written_is_named(rig: Rig) -> None:
    grant = rig.grant(shell("true"))
    (rig.files.scratch(grant.executor) / "told.txt").mkdir(parents=True)
    rig.connection.hset(rig.keys.secrets(rig.app), FILES, packed({"run.sh": b"", "told.txt": b"said"}))
    rig.run(grant)
    [state] = rig.work.states(rig.app)
    assert state.message == f"the staged file 'told.txt' could not be written on worker {WORKER}: Is a directory"


@ONE_STORE
@pytest.mark.parametrize("cwd", ["/no/such/place", f"/{'x' * 300}"])
def test_a_missing_directory_fails_the_task_with_a_sentence(rig: Rig, cwd: str) -> None:
    rig.run(rig.grant(shell("pwd"), cwd=cwd))
    state = rig.work.states(rig.app)[0]
    assert state.message == f"directory '{cwd}' does not exist or is not accessible on worker {WORKER}"


@ONE_STORE
def test_a_path_with_unusable_folders_still_finds_that_a_command_is_missing(rig: Rig) -> None:
    rig.connection.hset(rig.keys.secrets(rig.app), "PATH", f"/{'x' * 300}:/dev/null")
    rig.run(rig.grant(("no-such-program",)))
    assert rig.work.states(rig.app)[0].message == f"command 'no-such-program' does not exist on worker {WORKER}"


@ONE_STORE
def test_a_task_whose_log_file_cannot_be_created_fails_with_a_sentence(rig: Rig) -> None:
    rig.files.log_files(rig.app, "0-0")[0].mkdir(parents=True)
    rig.run(rig.grant(shell("true")))
    assert rig.work.states(rig.app)[0].message == f"no log file on worker {WORKER}: Is a directory"


@ONE_STORE
def test_a_long_command_reaches_the_executor_whole(rig: Rig) -> None:
    """As JSON it is longer than a socket's buffer."""
    assert rig.run(rig.grant(shell("\n" * 127_000))).done


def test_a_failing_task_fails_the_app_with_its_exit_code(rig: Rig) -> None:
    note = rig.run(rig.grant(shell("exit 3")))
    state = rig.work.states(rig.app)[0]
    assert (state.state, state.exit_code, state.message) == ("failed", 3, "task 0 ended with exit code 3")
    assert note.reason == "exited"
    assert '"reason":"failed","detail":"task 0 ended with exit code 3"' in rig.inbox()[-1]


@ONE_STORE
def test_a_task_ended_by_a_signal_has_the_shells_exit_code(rig: Rig) -> None:
    rig.run(rig.grant(shell("kill -SEGV $$")))
    state = rig.work.states(rig.app)[0]
    assert (state.exit_code, state.message) == (128 + signal.SIGSEGV, "task 0 was ended by SIGSEGV")


def test_a_failed_task_is_retried_as_often_as_retries_allow(rig: Rig, tmp_path: Path) -> None:
    counter = tmp_path / "runs"
    rig.run(rig.grant(shell(f"echo x >> {counter}; test $(wc -l < {counter}) = 3"), retries=2))
    state = rig.work.states(rig.app)[0]
    assert (state.state, state.attempts) == ("succeeded", 3)


def test_the_last_executor_stays_for_a_task_that_waits_for_its_next_attempt(rig: Rig, tmp_path: Path) -> None:
    """Semantics W10."""
    counter = tmp_path / "runs"
    note = rig.run(rig.grant(shell(f"date +%s%N >> {counter}; test $(wc -l < {counter}) = 2"), retries=1, backoff_s=1))
    first, second = map(int, counter.read_text().split())
    assert note.done
    assert second - first > 10**9
    assert rig.work.states(rig.app)[0].attempts == 2


def test_other_tasks_run_while_one_waits_for_its_next_attempt(rig: Rig, tmp_path: Path) -> None:
    """Semantics W10: the wait keeps no core. The first task succeeds once the other two have ended."""
    script = f"test $FAIRLOG_TASK_INDEX != 0 || test $(ls {tmp_path}/ended | wc -l) = 2 || exit 1"
    (tmp_path / "ended").mkdir()
    script += f"; touch {tmp_path}/ended/$FAIRLOG_TASK_INDEX"
    note = rig.run(rig.grant(shell(script), tasks=3, cores=1, retries=1, backoff_s=1))
    assert note.done
    assert [state.attempts for state in rig.work.states(rig.app)] == [2, 1, 1]


@ONE_STORE
def test_retries_run_out(rig: Rig) -> None:
    rig.run(rig.grant(shell("exit 1"), retries=2))
    state = rig.work.states(rig.app)[0]
    assert (state.state, state.attempts) == ("failed", 3)


@pytest.mark.parametrize("command", ["no-such-program", "/no/such/program", "./nor-this"])
def test_an_executor_that_cannot_start_a_command_returns_its_task_and_says_why(rig: Rig, command: str) -> None:
    """Semantics W9."""
    note = rig.run(rig.grant((command, "-v"), retries=5, tasks=3, cores=1))
    state = rig.work.states(rig.app)[0]
    assert (state.state, state.attempts, state.exit_code, state.tried) == ("queued", 1, 127, WORKER)
    assert state.message == f"command '{command}' does not exist on worker {WORKER}"
    assert (note.reason, note.exit_code, note.done, note.unstartable) == ("failed", 126, False, state.message)
    assert not [command for command in rig.inbox() if "EndApp" in command]
    assert outputs(rig, 1) == [f"fairlog: {state.message}\n"]


@ONE_STORE
def test_what_runs_goes_on_when_another_task_cannot_be_started(rig: Rig, tmp_path: Path) -> None:
    """Semantics W9: the first two tasks of four remove the program and go on."""
    program, begun = tmp_path / "program", tmp_path / "begun"
    begun.mkdir()
    wait = f"while test $(ls {begun} | wc -l) -lt 2; do sleep 0.02; done"
    program.write_text(f"#!/bin/sh\ntouch {begun}/$FAIRLOG_TASK_INDEX\n{wait}\nrm -f $0\nsleep $FAIRLOG_TASK_INDEX\n")
    program.chmod(0o700)
    note = rig.run(rig.grant((str(program),), tasks=4, cores=2))
    assert (note.reason, note.unstartable != "") == ("failed", True)
    assert [state.state for state in rig.work.states(rig.app)].count("succeeded") == 2
    assert rig.work.has_finished(rig.app, f"{rig.app}.0")


@ONE_STORE
@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("#!/bin/sh\n", 0o600, "Permission denied"),
        ("neither program nor script\n", 0o700, "Exec format error"),
        ("#!/no/such/shell\n", 0o700, "its interpreter does not exist"),
    ],
)
def test_a_command_that_cannot_be_executed_fails_saying_why(
    rig: Rig, tmp_path: Path, text: str, mode: int, why: str
) -> None:
    program = tmp_path / "program"
    program.write_text(text)
    program.chmod(mode)
    rig.run(rig.grant((str(program),), retries=5))
    state = rig.work.states(rig.app)[0]
    assert (state.attempts, state.exit_code) == (1, 126)
    assert state.message == f"command '{program}' cannot be run on worker {WORKER}: {why}"


@ONE_STORE
def test_a_task_over_its_time_limit_is_stopped_even_if_it_ignores_sigterm(rig: Rig) -> None:
    rig.run(rig.grant(shell("trap '' TERM; echo begun; while :; do sleep 1; done"), time_limit_s=1))
    state = rig.work.states(rig.app)[0]
    assert state.message == "task 0 exceeded its time limit of 1 s"
    assert outputs(rig, 1)[0].endswith(f"fairlog: {state.message}\n")
    assert not processes_of(rig.app)


@ONE_STORE
def test_tasks_that_use_nothing_are_ended_where_their_company_wants_that(rig: Rig) -> None:
    """Semantics W13: of each task it is said why; it counts as a failed attempt."""
    note = rig.run(rig.grant(shell("exec sleep 600"), tasks=2, idle_end_s=2, end_idle=True, keep_going=True))
    assert (note.reason, note.verdict) == ("exited", "failed"), note
    for state in rig.work.states(rig.app)[:2]:
        assert re.fullmatch(r"task [01] used nothing of its cores for \d+ s", state.message)
        assert state.state == "failed"
    assert unused(rig.connection, rig.keys, 0) == {}, "an executor that is gone holds nothing"


@ONE_STORE
def test_tasks_that_use_nothing_are_told_of_and_go_on_elsewhere(rig: Rig, tmp_path: Path) -> None:
    """Semantics W13."""
    go_on = tmp_path / "go-on"
    grant = rig.grant(shell(f"while [ ! -e {go_on} ]; do sleep 0.5; done"), idle_end_s=2)
    assert rig.launch(grant)
    wait_until(lambda: unused(rig.connection, rig.keys, 0).get(grant.executor), "word of it")
    assert unused(rig.connection, rig.keys, 0)[grant.executor].what == "cores"
    go_on.touch()
    assert rig.end_of(grant).reason == "exited"
    assert rig.work.states(rig.app)[0].state == "succeeded"


HOG = "import time; block = bytearray({mb} << 20); time.sleep(60)"


@ONE_STORE
def test_tasks_above_the_granted_memory_are_stopped_largest_first(rig: Rig) -> None:
    script = f"import os; mb = 300 if os.environ['FAIRLOG_TASK_INDEX'] == '1' else 30; {HOG.format(mb='+mb')}"
    rig.run(rig.grant((sys.executable, "-c", script), tasks=2, memory_mb=256))
    state = rig.work.states(rig.app)[1]
    assert state.state == "failed"
    assert state.message.startswith(f"the tasks of executor {rig.app}.0 used ")
    assert state.message.endswith("MiB; 256 MiB are granted")
    assert not processes_of(rig.app)


SHARED_OR_HOG = """
import os, time
from pathlib import Path
here = Path(os.environ["HERE"])
if os.environ["FAIRLOG_TASK_INDEX"] == "0":
    block = bytearray(110 << 20)
    for _ in "ab":
        os.fork()
    (here / "forked").touch()
    while not (here / "go").exists():
        time.sleep(0.02)
elif (here / "stopped").exists():
    (here / "go").touch()
else:
    (here / "stopped").touch()
    while not (here / "forked").exists():
        time.sleep(0.02)
    block = bytearray(200 << 20)
    time.sleep(600)
"""
"""Task 0 shares 110 MiB among four processes until task 1, which takes 200 MiB, is stopped and retried.

Task 1 is the larger one before both together exceed 300 MiB.
"""


@ONE_STORE
def test_memory_that_forked_processes_share_counts_once(rig: Rig, tmp_path: Path) -> None:
    """Counted four times, task 0 would be the larger one and be stopped."""
    rig.connection.hset(rig.keys.secrets(rig.app), "HERE", str(tmp_path))
    rig.run(rig.grant((sys.executable, "-c", SHARED_OR_HOG), tasks=2, memory_mb=300, retries=1))
    assert [(state.state, state.attempts) for state in rig.work.states(rig.app)] == [("succeeded", 1), ("succeeded", 2)]


@ONE_STORE
def test_processes_that_a_task_leaves_behind_end_with_it(rig: Rig) -> None:
    leave = "setsid sleep 600 & sleep 600 & echo left"
    rig.launch(rig.grant(shell(f"test $FAIRLOG_TASK_INDEX = 1 && exec sleep 601; {leave}"), tasks=2, cores=1))
    wait_until(lambda: rig.work.progress(rig.app)[2:4] == (1, 1), "the second task to begin")
    wait_until(lambda: len(processes_of(rig.app)) == 1, "only the second task to be left")
    assert outputs(rig, 1) == ["left\n"]


def test_stopping_an_executor_stops_all_processes_and_returns_its_tasks(rig: Rig) -> None:
    grant = rig.grant(shell("trap '' TERM; setsid sleep 600 & while :; do sleep 1; done"), tasks=5)
    pid = rig.launch(grant)
    wait_until(lambda: len(processes_of(rig.app)) >= 4, "two tasks and what they start")
    os.kill(pid, signal.SIGTERM)
    note = rig.end_of(grant)
    assert (note.reason, note.done) == ("killed", False)
    assert not processes_of(rig.app)
    assert rig.work.progress(rig.app)[1:3] == (5, 0)


@ONE_STORE
def test_a_stopped_task_may_end_by_itself_within_the_grace_period(rig: Rig, tmp_path: Path) -> None:
    farewell = tmp_path / "farewell"
    grant = rig.grant(shell(f"trap 'echo bye > {farewell}; exit' TERM; echo ready; while :; do sleep 0.05; done"))
    pid = rig.launch(grant, grace_s=600)
    wait_until(lambda: outputs(rig, 1) == ["ready\n"], "the task's trap")
    os.kill(pid, signal.SIGTERM)
    rig.end_of(grant)
    assert farewell.read_text() == "bye\n"


@ONE_STORE
def test_a_killed_executor_leaves_no_process_and_is_reported_failed(rig: Rig) -> None:
    grant = rig.grant(shell("setsid sleep 600 & sleep 600"), tasks=2)
    pid = rig.launch(grant)
    wait_until(lambda: len(processes_of(rig.app)) >= 6, "two tasks and what they start")
    os.kill(pid, signal.SIGKILL)
    note = rig.end_of(grant)
    assert (note.reason, note.exit_code, note.done) == ("failed", 137, False)
    assert not processes_of(rig.app)


@ONE_STORE
def test_executors_end_with_a_forkserver_that_is_killed(lone_rig: Rig) -> None:
    grant = lone_rig.grant(shell("setsid sleep 600 & sleep 600"), tasks=2)
    pid = lone_rig.launch(grant)
    wait_until(lambda: len(processes_of(lone_rig.app)) >= 6, "two tasks and what they start")
    psutil.Process(pid).parent().kill()  # type: ignore[union-attr]
    assert lone_rig.end_of(grant).reason == "killed"
    assert not processes_of(lone_rig.app)


@ONE_STORE
def test_an_agent_sends_heartbeats_while_its_forkserver_takes_long(lone_rig: Rig) -> None:
    first = lone_rig.launch(lone_rig.grant(shell("sleep 600")))
    forkserver = psutil.Process(first).parent()
    assert forkserver is not None
    forkserver.suspend()
    shown: list[int] = []

    def show() -> None:
        shown.append(1)
        forkserver.resume()

    second = lone_rig.forkserver.launch(lone_rig.spec(lone_rig.grant(shell("sleep 600"), number=1)), meanwhile=show)
    assert shown
    assert second is not None
    assert psutil.Process(second).parent() == forkserver


@ONE_STORE
def test_executors_end_at_once_when_their_agent_disconnects(lone_rig: Rig) -> None:
    grant = lone_rig.grant(shell("trap '' TERM; setsid sleep 600 & sleep 600"), tasks=2)
    lone_rig.launch(grant)
    wait_until(lambda: len(processes_of(lone_rig.app)) >= 6, "two tasks and what they start")
    lone_rig.forkserver.close()
    assert lone_rig.end_of(grant).reason == "killed"
    assert not processes_of(lone_rig.app)


@ONE_STORE
def test_executors_that_outlive_their_agent_finish_their_work(store: EmbeddedStore, tmp_path: Path) -> None:
    rig = Rig(store.url, tmp_path / "run", outlive_agent=True)
    go = tmp_path / "go"
    grant = rig.grant(shell(f"while ! test -e {go}; do sleep 0.02; done; echo survived"))
    rig.launch(grant)
    wait_until(lambda: processes_of(rig.app), "the task")
    rig.forkserver.close()
    go.touch()
    assert rig.end_of(grant).done
    assert outputs(rig, 1) == ["survived\n"]
    rig.close()


def test_an_executor_whose_grant_is_revoked_starts_nothing_more(rig: Rig, tmp_path: Path) -> None:
    go = tmp_path / "go"
    grant = rig.grant(shell(f"while ! test -e {go}; do sleep 0.02; done"), tasks=100, cores=1)
    rig.launch(grant)
    wait_until(lambda: tasks_of(rig.app), "the first task")
    rig.connection.hdel(rig.keys.grants(WORKER), grant.executor)
    go.touch()
    assert rig.end_of(grant).reason == "killed"
    assert rig.work.progress(rig.app).running == 0
    assert [state.attempts for state in rig.work.states(rig.app) if state.attempts] == [1]


@ONE_STORE
def test_an_executor_told_to_leave_ends_when_its_tasks_have(rig: Rig, tmp_path: Path) -> None:
    """Semantics E5, gentle: the deadline decides nothing, the tasks that run find it in a file."""
    go = tmp_path / "go"
    grant = rig.grant(shell(f"until [ -e {go} ]; do sleep 0.02; done; cat $FAIRLOG_STOP_AT_FILE"), tasks=3, cores=2)
    rig.launch(grant)
    wait_until(lambda: tasks_of(rig.app) == {0, 1}, "two running tasks")
    rig.files.tell_to_leave(grant.executor, Leaving(deadline=1500))
    go.touch()
    note = rig.end_of(grant)
    assert (note.reason, note.done) == ("killed", False)
    assert [state.state for state in rig.work.states(rig.app)] == ["succeeded", "succeeded", "queued"]
    assert [output.splitlines()[0] for output in outputs(rig, 2)] == ["1.500"] * 2


@ONE_STORE
def test_tasks_of_an_executor_told_to_leave_get_the_signal_of_their_app(rig: Rig, tmp_path: Path) -> None:
    """Semantics E5, gentle: each gets it once, and goes on."""
    trapped = f"trap 'echo told; cat $FAIRLOG_STOP_AT_FILE' USR1; touch {tmp_path}/$FAIRLOG_TASK_INDEX; "
    grant = rig.grant(shell(trapped + f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"), tasks=2, cores=2)
    rig.launch(grant)
    wait_until(lambda: all((tmp_path / name).exists() for name in "01"), "two tasks that trap the signal")
    rig.files.tell_to_leave(grant.executor, Leaving(deadline=1500, signal="USR1"))
    wait_until(lambda: all("told" in text for text in outputs(rig, 2)), "the signal")
    (tmp_path / "go").touch()
    rig.end_of(grant)
    assert [state.state for state in rig.work.states(rig.app)] == ["succeeded", "succeeded"]
    assert [output.splitlines()[:2] for output in outputs(rig, 2)] == [["told", "1.500"]] * 2
    assert [output.count("told") for output in outputs(rig, 2)] == [1, 1]


def test_at_a_firm_deadline_the_tasks_of_a_leaving_executor_go_back(rig: Rig) -> None:
    """Semantics E5, firm: it counts neither as a retry nor as a failure."""
    grant = rig.grant(shell("sleep 600"), tasks=3, cores=2)
    rig.launch(grant)
    wait_until(lambda: tasks_of(rig.app) == {0, 1}, "two running tasks")
    rig.files.tell_to_leave(grant.executor, Leaving(deadline=1500, firm=True, grace_s=1))
    note = rig.end_of(grant)
    assert (note.reason, note.done) == ("killed", False)
    assert [state.state for state in rig.work.states(rig.app)] == ["queued"] * 3
    assert processes_of(rig.app) == []


@ONE_STORE
def test_an_executor_that_need_not_leave_any_more_goes_on(rig: Rig, tmp_path: Path) -> None:
    """Semantics E5: its claim became void while a task of it ran."""
    go = tmp_path / "go"
    grant = rig.grant(shell(f"until [ -e {go} ]; do sleep 0.02; done"), tasks=4, cores=2)
    rig.launch(grant)
    wait_until(lambda: tasks_of(rig.app) == {0, 1}, "two running tasks")
    rig.files.tell_to_leave(grant.executor, Leaving(deadline=1500))
    rig.files.tell_to_leave(grant.executor, None)
    go.touch()
    assert rig.end_of(grant).reason == "exited"
    assert [state.state for state in rig.work.states(rig.app)] == ["succeeded"] * 4


def test_an_executor_that_was_never_granted_starts_nothing(rig: Rig) -> None:
    grant = rig.grant(shell("echo hello"))
    rig.connection.hset(rig.keys.grants(WORKER), grant.executor, "")
    assert rig.run(grant).reason == "killed"
    assert rig.work.progress(rig.app).tasks == 0


@ONE_STORE
def test_a_second_executor_of_the_same_id_is_not_started(rig: Rig) -> None:
    grant = rig.grant(shell("sleep 600"))
    assert rig.launch(grant)
    assert rig.launch(grant) == 0


def test_a_foreign_job_in_the_apps_queue_is_refused_and_removed(lone_rig: Rig, tmp_path: Path) -> None:
    queue = Queue(lone_rig.keys.app_queue(lone_rig.app), connection=lone_rig.connection, serializer=JSONSerializer)
    foreign = queue.enqueue("os.mkdir", str(tmp_path / "made"))
    assert lone_rig.run(lone_rig.grant(shell("echo hello"), tasks=2)).done
    assert not (tmp_path / "made").exists()
    assert not lone_rig.connection.exists(foreign.key)
    assert f"job={foreign.id}" in lone_rig.files.program_log().read_text()


def test_an_executor_that_finds_all_tasks_done_reports_it_again(rig: Rig) -> None:
    rig.run(rig.grant(shell("true"), number=0))
    said = len(rig.inbox())
    rig.run(rig.grant(shell("true"), number=1))
    assert '"reason":"finished"' in rig.inbox()[-1]
    assert len(rig.inbox()) == said + 1


def test_an_executor_of_an_elastic_app_stays_idle_and_reports_the_backlog(rig: Rig, tmp_path: Path) -> None:
    """The rule is semantics L6."""
    flag = tmp_path / "go"
    said: list[str] = []
    grants = []
    for number, idle in ((0, ""), (1, ',"idle":true')):
        grant = rig.grant(shell(f"while ! test -e {flag}; do sleep 0.02; done"), number=number, cores=1)
        rig.launch(grant.model_copy(update={"stays": True, "elastic": True}))
        word = '{"type":"ReportBacklog","executor":"%s","waiting":0,"running":1%s}'
        said.append(word % (grant.executor, idle))
        wait_until(lambda: [*dict.fromkeys(rig.inbox())] == said, "the report")  # some time later it comes again
        grants.append(grant)
    flag.touch()
    for grant in grants:
        rig.end_of(grant)
    assert [text for text in dict.fromkeys(rig.inbox()) if "EndApp" not in text][:2] == said


def run_that_reports_often(spec: ExecutorSpec) -> None:
    """An executor that reports an unchanged backlog again at once."""
    pytest.MonkeyPatch().setattr("workers.executor._BACKLOG_AGAIN_S", 0.2)
    lock = RunDir(spec.run_dir, spec.worker).claim_executor(spec.grant.executor)
    assert lock is not None
    run_executor(spec, lock)


def test_a_backlog_whose_report_was_lost_is_reported_again(rig: Rig, tmp_path: Path) -> None:
    """A failover of the store may drop the inbox with it, and take so short a time that no call fails."""
    grant = rig.grant(shell("sleep 600"), cores=1, tasks=3)
    spec = rig.spec(grant.model_copy(update={"stays": True, "elastic": True}))
    process = Forked(partial(run_that_reports_often, spec), environment=os.environ, log=tmp_path / "log")
    try:
        said = f'{{"type":"ReportBacklog","executor":"{grant.executor}","waiting":2,"running":1}}'
        wait_until(lambda: rig.inbox()[:1] == [said], "the report")
        rig.connection.delete(rig.keys.inbox)
        wait_until(lambda: rig.inbox()[:1] == [said], "the report once more")
    finally:
        process.terminate()
        process.wait(HOPELESS_S)


def test_an_executor_registers_one_rq_worker_and_removes_it(rig: Rig) -> None:
    grant = rig.grant(shell("sleep 600"), cores=8, tasks=8)
    pid = rig.launch(grant)
    place = f"rq:workers:{rig.keys.app_queue(rig.app)}"
    wait_until(lambda: rig.connection.scard(place) == 1, "the RQ worker")
    os.kill(pid, signal.SIGTERM)
    rig.end_of(grant)
    assert rig.connection.scard(place) == 0


@ONE_STORE
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_pinned_executors_get_distinct_cpus(rig: Rig) -> None:
    script = "import os, time; print(sorted(os.sched_getaffinity(0)), flush=True); time.sleep(60)"
    for number in range(2):
        rig.launch(rig.grant((sys.executable, "-c", script), number=number, cores=1, tasks=2), pin=True)
    wait_until(lambda: all(outputs(rig, 2)), "both tasks' CPUs")
    first, second = outputs(rig, 2)
    assert first != second


def test_a_restart_of_the_store_stops_no_task(tmp_path: Path) -> None:
    with EmbeddedStore(tmp_path / "data") as own:
        rig = Rig(own.url, tmp_path / "run")
        script = f"while ! test -e {tmp_path}/go; do sleep 0.02; done; echo x >> {tmp_path}/runs"
        grant = rig.grant(shell(script), tasks=4)
        rig.launch(grant)
        wait_until(lambda: len(tasks_of(rig.app)) == 2, "the first tasks")
        own.stop()
        (tmp_path / "go").touch()
        wait_until((tmp_path / "runs").exists, "a task to end while the store is away")
        own.start()
        assert rig.end_of(grant).done
        assert rig.work.progress(rig.app).succeeded == 4
        assert (tmp_path / "runs").read_text() == "x\n" * 4
        rig.close()
