"""`fairlog.Executor` on a real cluster: calls, exceptions, lost workers, executors, masters and owners."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Future, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from fairlog import Executor
from fairlog.engines import functions
from fairlog.engines.function_worker import dumped
from fairlog.engines.functions import WorkerLost, _Future, _PendingCall
from fairlog.errors import CommandRejected
from tests.integration import engines_rig as calls
from tests.integration.cli_rig import ROOT
from tests.integration.engines_rig import Site, site
from tests.waiting import HOPELESS_S, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("functions")) as found:
        yield found


def test_calls_come_back_with_results_and_exceptions(cluster: Site) -> None:
    with Executor(**cluster.asks, cores=2, initializer=calls.set_state, initargs=("ready",)) as pool:
        assert pool.submit(pow, 2, 10).result() == 1024
        assert list(pool.map(calls.nap, range(40), [0.0] * 40)) == list(range(40))
        assert list(pool.map(pow, range(100), [2] * 100, chunksize=7)) == [number**2 for number in range(100)]
        factor = 21
        assert pool.submit(lambda number: number * factor, 2).result() == 42
        assert set(map(tuple, (pool.submit(calls.get_state).result() for _ in range(5)))) == {("ready",)}
        with pytest.raises(ZeroDivisionError) as raised:
            pool.submit(calls.divide, 1, 0).result()
        assert "return a / b" in str(raised.value.__cause__)
        with pytest.raises(TypeError, match="pickle"):
            pool.submit(threading.Lock).result()
        assert len(set(pool.map(calls.where, range(20)))) <= 2
    ended = cluster.wait_for_end(pool.app)
    assert (ended["state"], ended["executorCores"]) == ("finished", 2)
    with pytest.raises(RuntimeError, match="after shutdown"):
        pool.submit(pow, 1, 1)


def test_every_call_is_answered_while_workers_executors_and_the_master_are_killed(
    cluster: Site, tmp_path: Path
) -> None:
    with Executor(**cluster.asks, cores=2, executors=2) as pool:
        first = pool.submit(calls.where).result()
        futures = [pool.submit(calls.note, str(tmp_path), number) for number in range(120)]

        def some_done(number: int) -> None:
            wait_until(lambda: sum(future.done() for future in futures) >= number, f"{number} calls")

        some_done(10)
        os.kill(first, signal.SIGKILL)
        some_done(30)
        cluster.shell.ok("kill", "--executor", f"{pool.app}.0")
        some_done(60)
        cluster.kill_master()
        assert [future.result() for future in futures] == list(range(120))
        made = {int(path.name.partition(".")[0]) for path in tmp_path.iterdir()}
        assert made == set(range(120))
        assert len(list(tmp_path.iterdir())) <= 120 + 3  # only what ran at a kill was made again
    assert cluster.wait_for_end(pool.app)["state"] == "finished"
    assert "follows its rules" in cluster.audit()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [(os._exit, (1,)), (os._exit, (0,)), (os.execv, ("/bin/true", ["true"])), (os.closerange, (3, 256))],
)
def test_a_call_that_ends_its_worker_fails_whatever_the_exit_code(
    cluster: Site, function: Callable[..., object], arguments: tuple[Any, ...]
) -> None:
    """The next call finds another worker."""
    with Executor(**cluster.asks, cores=1, retries=0) as pool:
        for _ in range(2):
            with pytest.raises(BrokenProcessPool):
                pool.submit(function, *arguments).result(HOPELESS_S)
            assert pool.submit(pow, 2, 2).result(HOPELESS_S) == 4
    assert cluster.wait_for_end(pool.app)["state"] == "finished"


@pytest.mark.parametrize("chunksize", [1, 3])
def test_map_reads_only_so_far_ahead_as_its_buffer_says(cluster: Site, chunksize: int) -> None:
    """As in Python 3.14."""
    read: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(30):
            read.append(number)
            yield number

    with Executor(**cluster.asks, cores=1) as pool:
        found = pool.map(pow, numbers(), [2] * 30, buffersize=2, chunksize=chunksize)
        assert len(read) == 2 * chunksize
        assert next(found) == 0
        assert len(read) == 3 * chunksize
        assert list(found) == [number**2 for number in range(1, 30)]
        with pytest.raises(ValueError, match="buffersize must be None or > 0"):
            pool.map(pow, [1], [1], buffersize=0)
        with pytest.raises(TypeError, match="buffersize must be an integer or None"):
            pool.map(pow, [1], [1], buffersize="2")  # type: ignore[arg-type]


SCRIPT = """
import multiprocessing, sys
from concurrent.futures import ProcessPoolExecutor
from fairlog import Executor

STATE, SEEN = None, []

def begin(value):
    global STATE
    STATE = value
    SEEN.append(value)

def state():
    return STATE, SEEN

def remember(value):
    SEEN.append(value)

def plus(number):
    return number + STATE

def in_a_pool():
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(plus, range(3)))

def in_forked_processes():
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(plus, range(3))

if __name__ == "__main__":
    with Executor(company="acme", user="ann", api=sys.argv[1], initializer=begin, initargs=(7,)) as pool:
        print(*pool.submit(state).result())
        print(pool.submit(lambda: STATE + 1).result())
        pool.submit(remember, 8).result()
        print(pool.submit(in_a_pool).result(), pool.submit(in_forked_processes).result())
        print(*pool.submit(state).result())
        STATE = 9
        print(*pool.submit(state).result())

        def plus(number):
            return -number

        print(pool.submit(in_a_pool).result())
"""


def test_what_a_script_leaves_in_its_globals_on_a_worker_its_calls_find_there(cluster: Site, tmp_path: Path) -> None:
    """As with a process pool, whose processes are forked off the script; what the script changes is sent, too."""
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "script.py"), cluster.api]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["7 [7]", "8", "[7, 8, 9] [7, 8, 9]", "7 [7, 8]", "9 [7, 8]", "[0, -1, -2]"], (
        done.stderr
    )


def test_a_call_that_kills_its_worker_is_made_again_so_often_and_no_more(cluster: Site) -> None:
    with Executor(**cluster.asks, cores=1, retries=1) as pool:
        with pytest.raises(WorkerLost, match="the call's worker was lost 2 times; it was killed by SIGKILL"):
            pool.submit(calls.die).result()
        assert pool.submit(pow, 2, 2).result() == 4


@pytest.mark.parametrize(
    ("function", "argument", "how"),
    [(signal.raise_signal, signal.SIGSEGV, "was killed by SIGSEGV"), (os._exit, 3, "exited with code 3")],
)
def test_a_lost_worker_is_said_to_have_ended_as_it_did(
    cluster: Site, function: Callable[[int], object], argument: int, how: str
) -> None:
    lost = pytest.raises(WorkerLost, match=f"the call's worker was lost once; it {how}$")
    with Executor(**cluster.asks, retries=0) as pool, lost:
        pool.submit(function, int(argument)).result(HOPELESS_S)


def test_a_call_that_runs_can_be_cancelled_and_its_worker_has_a_successor(
    cluster: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: a worker that is ended so has not died."""
    monkeypatch.setattr(functions, "_BACK_WITHIN_S", HOPELESS_S)
    with Executor(**cluster.asks, retries=0) as pool:
        for number in range(25):
            future = pool.submit(calls.hold, str(tmp_path), number)
            wait_until((tmp_path / str(number)).exists, "the call")
            assert not future.cancel()
            assert future.cancel(running=True)
            assert future.cancelled()
        assert pool.submit(pow, 2, 2).result(HOPELESS_S) == 4
        done = pool.submit(pow, 2, 3)
        assert done.result(HOPELESS_S) == 8
        assert not done.cancel(running=True)
    assert cluster.wait_for_end(pool.app)["state"] == "finished"


def test_a_callback_of_the_pools_own_thread_does_not_wait_for_a_call_to_end(
    cluster: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would wait for itself."""
    monkeypatch.setattr(functions, "_BACK_WITHIN_S", HOPELESS_S)
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    told: list[bool] = []
    with Executor(**cluster.asks, cores=2, retries=0) as pool:
        lasting, first = (pool.submit(calls.hold, str(folder), 0) for folder in (there, here))
        wait_until(lambda: (here / "0").exists() and (there / "0").exists(), "both calls")
        first.add_done_callback(lambda _: told.append(lasting.cancel(running=True)))
        (here / "go").touch()
        with pytest.raises(CancelledError):
            lasting.result(HOPELESS_S)
    assert told == [False]


@pytest.mark.parametrize("show", [True, False])
def test_what_calls_print_is_kept_and_shown(cluster: Site, capsys: pytest.CaptureFixture[str], *, show: bool) -> None:
    with Executor(**cluster.asks, show=show) as pool:
        pool.submit(print, "one line").result(HOPELESS_S)
        pool.submit(calls.complain, "no line").result(HOPELESS_S)
    assert capsys.readouterr() == ("one line\nno line" if show else "", "")
    cluster.wait_for_end(pool.app)
    wait_until(lambda: cluster.shell.ok("logs", pool.app, "--executor", "0") == "one line\nno line", "what was kept")


def test_a_call_may_print_from_handlers_and_what_is_collected(
    cluster: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    with Executor(**cluster.asks, retries=0) as pool:
        assert pool.submit(calls.print_anywhere, 3_000).result(HOPELESS_S) == "printed"
        assert pool.submit(pow, 2, 3).result(HOPELESS_S) == 8
    shown = capsys.readouterr().out
    assert {"late", "collected", "line 2999"} <= set(shown.splitlines())


def test_what_is_printed_between_calls_is_shown_with_the_next(
    cluster: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Executor(**cluster.asks, retries=0) as pool:
        for turn in range(5):
            (folder := tmp_path / str(turn)).mkdir()
            pool.submit(calls.print_afterwards, str(folder)).result(HOPELESS_S)
            (folder / "over").touch()
            wait_until((folder / "printed").exists, "the print")
            assert pool.submit(pow, 2, 3).result(HOPELESS_S) == 8
    assert capsys.readouterr().out.splitlines().count("afterwards") == 5


def test_a_stdout_that_nobody_reads_holds_up_no_call(cluster: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as unread, monkeypatch.context() as here:
        here.setattr("sys.stdout", unread)
        here.setattr(functions, "_PRINTED_WITHIN_S", 0.1)
        with Executor(**cluster.asks) as pool:
            pool.submit(print, "x" * 200_000).result(HOPELESS_S)
            assert pool.submit(pow, 2, 3).result(HOPELESS_S) == 8
        os.close(reads)
        with contextlib.suppress(BrokenPipeError):
            unread.close()


def test_what_a_cancelled_call_has_started_ends_with_it(
    cluster: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(functions, "_BACK_WITHIN_S", HOPELESS_S)
    with Executor(**cluster.asks) as pool:
        before = len(cluster.processes_of(pool.app)) if pool.submit(pow, 2, 3).result(HOPELESS_S) else 0
        future = pool.submit(calls.burn, str(tmp_path), 0)
        wait_until((tmp_path / "0").exists, "the call")
        wait_until(lambda: len(cluster.processes_of(pool.app)) > before, "the process that it starts")
        assert future.cancel(running=True)
        assert pool.submit(pow, 2, 3).result(HOPELESS_S) == 8
        wait_until(lambda: len(cluster.processes_of(pool.app)) == before, "the end of that process")


def test_memory_beyond_the_grant_is_named_with_both_numbers(cluster: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine tells of the executor's end later than a pool waits for it."""
    monkeypatch.setattr(functions, "_TOLD_WITHIN_S", HOPELESS_S)
    with Executor(**cluster.asks, cores=1, retries=0, memory_mb=128) as pool:
        with pytest.raises(WorkerLost, match=r"used \d+ MiB, above the 128 MiB granted"):
            pool.submit(calls.eat, 400).result()
        assert pool.submit(pow, 2, 2).result() == 4


def test_the_number_of_executors_follows_the_calls(cluster: Site, tmp_path: Path) -> None:
    with Executor(**cluster.asks, cores=1, elastic=(0, 3), idle_s=0.5) as pool:
        assert cluster.app(pool.app)["executorLimit"] == 0
        assert len(set(pool.map(calls.where, range(3)))) >= 1
        futures = [pool.submit(calls.hold, str(tmp_path), number) for number in range(12)]
        wait_until(lambda: len(cluster.app(pool.app)["executors"]) == 3, "three executors")
        (tmp_path / "go").touch()
        assert [future.result() for future in futures] == list(range(12))
        wait_until(lambda: not cluster.app(pool.app)["executors"], "no executor without a call")
        assert cluster.app(pool.app)["requestedCores"] == 0
        assert pool.submit(pow, 3, 2).result() == 9


def test_a_call_that_needs_more_cores_has_them_for_itself(cluster: Site, tmp_path: Path) -> None:
    with Executor(**cluster.asks, cores=4, memory_mb=1024) as pool:
        wide, roomy = pool.needing(cores=3), pool.needing(memory_mb=400)
        futures = []
        for _ in range(10):
            futures += [pool.submit(calls.span, 1), roomy.submit(calls.span, 2), wide.submit(calls.span, 3)]
        futures += [pool.submit(calls.span, 1) for _ in range(10)]
        spans = [future.result(HOPELESS_S) for future in futures]
        assert list(wide.map(calls.span, [3] * 3, buffersize=1))[2][2] == 3
        beside = [each.submit(calls.hold, str(tmp_path), number) for number, each in enumerate((wide, pool))]
        wait_until(lambda: (tmp_path / "0").exists() and (tmp_path / "1").exists(), "both, on all four cores")
        (tmp_path / "go").touch()
        assert [future.result(HOPELESS_S) for future in beside] == [0, 1]
    for moment, _, _ in spans:
        assert sum(cores for began, ended, cores in spans if began <= moment < ended) <= 4


def test_later_calls_do_not_hold_up_one_that_needs_more_cores(cluster: Site, tmp_path: Path) -> None:
    for name in ("first", "later"):
        (tmp_path / name).mkdir()
    with Executor(**cluster.asks, cores=2) as pool:
        first = pool.submit(calls.hold, str(tmp_path / "first"), 0)
        wait_until((tmp_path / "first" / "0").exists, "the first call")
        wide = pool.needing(cores=2).submit(calls.where)
        cancelled = pool.needing(cores=2).submit(calls.where)
        later = [pool.submit(calls.hold, str(tmp_path / "later"), number) for number in range(2)]
        assert cancelled.cancel()
        (tmp_path / "first" / "go").touch()
        assert first.result(HOPELESS_S) == 0
        assert wide.result(HOPELESS_S)  # the later ones wait for a word that nobody has given yet
        wait_until((tmp_path / "later" / "1").exists, "both later calls")
        (tmp_path / "later" / "go").touch()
        assert [future.result(HOPELESS_S) for future in later] == [0, 1]


def test_a_wide_call_is_made_again_where_its_worker_dies(cluster: Site, tmp_path: Path) -> None:
    with Executor(**cluster.asks, cores=2, elastic=(0, 3), retries=1) as pool:
        wide = pool.needing(cores=2)
        futures = [wide.submit(calls.hold, str(tmp_path), number) for number in range(3)]
        wait_until(lambda: all((tmp_path / str(number)).exists() for number in range(3)), "three calls at once")
        assert len(cluster.app(pool.app)["executors"]) == 3
        (tmp_path / "go").touch()
        assert [future.result(HOPELESS_S) for future in futures] == [0, 1, 2]
        with pytest.raises(WorkerLost, match="lost 2 times; it was killed by SIGKILL"):
            wide.submit(calls.die).result(HOPELESS_S)
        running = wide.submit(calls.burn, str(tmp_path), 9)
        wait_until((tmp_path / "9").exists, "the call")
        wait_until(lambda: running.cancel(running=True), "its end")
        assert wide.submit(pow, 2, 3).result(HOPELESS_S) == 8


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"cores": 0}, "at least 1 core, not 0"),
        ({"cores": 3}, "has 2 cores, so no call can have 3"),
        ({"memory_mb": 0}, "has 1024 MiB, so no call can have 0"),
        ({"memory_mb": 2000}, "has 1024 MiB, so no call can have 2000"),
    ],
)
def test_a_call_cannot_need_more_than_an_executor_has(cluster: Site, asked: dict[str, int], why: str) -> None:
    with Executor(**cluster.asks, cores=2) as pool, pytest.raises(ValueError, match=why):
        pool.needing(**asked)


def test_an_initializer_that_fails_breaks_the_pool(cluster: Site) -> None:
    with Executor(**cluster.asks, initializer=calls.divide, initargs=(1, 0)) as pool:
        with pytest.raises(BrokenExecutor, match="division by zero"):
            pool.submit(pow, 1, 1).result()
        with pytest.raises(BrokenExecutor):
            pool.submit(pow, 1, 1)


def test_calls_that_did_not_begin_can_be_cancelled(cluster: Site, tmp_path: Path) -> None:
    """Of long calls, one lies at a worker at a time."""
    pool = Executor(**cluster.asks)
    pool.submit(calls.nap, 0).result()
    futures = [pool.submit(calls.hold, str(tmp_path), number) for number in range(5)]
    wait_until(futures[0].running, "the first call")
    assert futures[4].cancel()
    pool.shutdown(wait=False, cancel_futures=True)
    (tmp_path / "go").touch()
    assert futures[0].result() == 0
    assert all(future.cancelled() for future in futures[2:])


def test_of_calls_that_lie_at_a_worker_those_that_did_not_begin_can_be_cancelled(
    cluster: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After short calls, several are sent to a worker at once. `cancel` gives up if they are not back in time."""
    monkeypatch.setattr(functions, "_BACK_WITHIN_S", HOPELESS_S)
    with Executor(**cluster.asks) as pool:
        list(pool.map(calls.nap, range(200), [0.0] * 200))
        futures = [pool.submit(calls.hold, str(tmp_path), number) for number in range(8)]
        wait_until((tmp_path / "0").exists, "the first call")
        assert not futures[0].cancel()
        assert all(future.cancel() for future in futures[1:])
        (tmp_path / "go").touch()
        assert futures[0].result() == 0
        assert pool.submit(pow, 2, 2).result() == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "go"]


def test_a_shutdown_that_cancels_lets_a_call_run_again_whose_worker_was_lost(cluster: Site) -> None:
    pool = Executor(**cluster.asks, retries=0)
    pool.submit(pow, 2, 2).result()
    pool._pool.calls.add(call := _PendingCall(_Future(), dumped((pow, (3, 2), {}))))
    assert call.future.set_running_or_notify_cancel()
    pool.shutdown(cancel_futures=True)
    assert call.future.result() == 9


def test_a_pool_has_as_many_workers_as_it_is_told(cluster: Site) -> None:
    with Executor(4, **cluster.asks, cores=2) as pool:
        assert pool.submit(pow, 2, 2).result() == 4
        assert cluster.app(pool.app)["executorLimit"] == 2


def test_a_killed_app_breaks_the_pool(cluster: Site, tmp_path: Path) -> None:
    with Executor(**cluster.asks) as pool:
        futures: list[Future[int]] = [pool.submit(calls.hold, str(tmp_path), 0)]
        wait_until(futures[0].running, "the call")
        cluster.shell.ok("kill", pool.app, "--reason", "the room is needed")
        with pytest.raises(BrokenExecutor, match=f"app {pool.app} is killed: the room is needed"):
            futures[0].result()


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"executors": 0}, r"a pool needs at least 1 executor, not 0; elastic=\(0, N\) begins with none"),
        ({"elastic": (0, 0)}, r"elastic is \(MIN, MAX\), with .* at least 1 as MAX, not \(0, 0\)"),
        ({"elastic": (3, 1)}, r"elastic is \(MIN, MAX\), .* not \(3, 1\)"),
        ({"elastic": (1,)}, r"elastic is \(MIN, MAX\), .* not \(1,\)"),
        ({"retries": -1}, "retries is at least 0, not -1"),
        ({"max_workers": 0}, "max_workers must be greater than 0"),
        ({"max_workers": 3, "cores": 2}, "max_workers is a multiple of cores, 2, not 3"),
        ({"max_workers": 3, "elastic": (0, 1)}, "max_workers says how many .*, and so does elastic; leave one out"),
    ],
)
def test_a_pool_that_could_never_make_a_call_is_refused(cluster: Site, asked: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"^{why}$"):
        Executor(**cluster.asks, **asked)


def test_an_argument_that_there_is_not_is_named(cluster: Site) -> None:
    with pytest.raises(TypeError, match=r"Executor has no argument 'mp_context'; docs/python\.md lists those"):
        Executor(**cluster.asks, mp_context=None)


def test_a_cluster_that_refuses_the_app_says_why(cluster: Site) -> None:
    with pytest.raises(CommandRejected, match="no company 'nobody' is registered"):
        Executor(company="nobody", user="ann", api=cluster.api)


OWNER = """
import sys, time
from fairlog import Executor
from tests.integration import engines_rig as calls
pool = Executor(company="acme", user="ann", api=sys.argv[1], cores=2, owner_timeout_s=10)
assert list(pool.map(calls.nap, range(4))) == [0, 1, 2, 3]
print(pool.app, flush=True)
if sys.argv[2] == "leaves":
    future = pool.submit(calls.nap, 7, 0.3)
    future.add_done_callback(lambda done: print("answered", done.result(), flush=True))
else:
    time.sleep(600)
"""


def owner(cluster: Site, what: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OWNER, cluster.api, what]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_what_a_killed_owner_held_is_free_within_the_lease(cluster: Site) -> None:
    with owner(cluster, "stays") as process:
        assert process.stdout is not None
        app = process.stdout.readline().strip()
        assert cluster.processes_of(app)
        process.kill()
    ended = cluster.wait_for_end(app)
    assert (ended["state"], ended["detail"]) == ("failed", "its owner gave no sign of life for 10 s")
    wait_until(lambda: not cluster.processes_of(app), "the end of its processes")


def test_an_interpreter_that_ends_waits_for_its_calls(cluster: Site) -> None:
    """As with the executors of the standard library."""
    with owner(cluster, "leaves") as process:
        out, _ = process.communicate()
    app, *answers = out.splitlines()
    assert (process.returncode, answers) == (0, ["answered 7"])
    assert cluster.wait_for_end(app)["state"] == "finished"


def test_a_pool_that_nobody_refers_to_ends_its_app(cluster: Site) -> None:
    pool = Executor(**cluster.asks)
    app, future = pool.app, pool.submit(calls.nap, 1, 0.2)
    del pool
    wait([future])
    assert cluster.wait_for_end(app)["state"] == "finished"
