"""The standard library's own tests of executors, those that apply, run against `fairlog.Executor`.

They lie in `test.test_concurrent_futures`, which not every Python has. Those left out start processes by
`multiprocessing`, read private parts of a process pool, or expect a pool to break with its first lost worker.
"""

from __future__ import annotations

import pickle
import unittest
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import nullcontext
from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import pytest

from fairlog import Executor
from tests.integration.engines_rig import site

NAME = "test.test_concurrent_futures"
if find_spec("test") is None or find_spec(NAME) is None:
    pytest.skip("this Python comes without the tests of its standard library", allow_module_level=True)


def _library(part: str, name: str) -> Any:
    """A class of the tests: from 3.12 on they are a package, before one module."""
    whole = find_spec(NAME)
    packed = whole is not None and whole.submodule_search_locations is not None
    return getattr(import_module(f"{NAME}.{part}" if packed else NAME), name)


captured_stderr = import_module("test.support").captured_stderr


class Pool(Executor):
    """As the tests make one."""

    api: ClassVar[str] = ""

    def __init__(self, max_workers: int = 2, **asked: Any) -> None:
        super().__init__(company="acme", user="ann", cores=max_workers, memory_mb=1024, api=self.api, **asked)


@pytest.fixture(scope="module", autouse=True)
def _cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with site(tmp_path_factory.mktemp("library")) as found:
        Pool.api = found.api
        yield
        if Shared.pool is not None:
            Shared.pool.shutdown()


class Shared:
    """One pool for many tests; another one once a test has shut it down."""

    worker_count = 4
    executor_type = Pool
    pool: ClassVar[Pool | None] = None

    def setUp(self) -> None:
        if Shared.pool is None or Shared.pool._pool._closing:
            Shared.pool = Pool(self.worker_count)
            Shared.pool.submit(pow, 2, 2).result()
        self.executor = Shared.pool

    def tearDown(self) -> None:
        del self.executor


class TestExecutor(Shared, _library("executor", "ExecutorTest"), unittest.TestCase):  # type: ignore[misc]
    test_max_workers_negative = None


class TestWait(Shared, _library("test_wait", "WaitTests"), unittest.TestCase):  # type: ignore[misc]
    pass


class TestAsCompleted(Shared, _library("test_as_completed", "AsCompletedTests"), unittest.TestCase):  # type: ignore[misc]
    pass


class TestShutdown(Shared, _library("test_shutdown", "ExecutorShutdownTest"), unittest.TestCase):  # type: ignore[misc]
    test_cancel_futures = None  # expects that some of the calls have begun
    test_interpreter_shutdown = None
    test_submit_after_interpreter_shutdown = None
    test_hang_gh83386 = None
    test_hang_gh94440 = None


class TestInitializer(_library("test_init", "InitializerMixin"), unittest.TestCase):  # type: ignore[misc]
    executor_type = Pool


class TestDeadlock(Shared, _library("test_deadlock", "ExecutorDeadlockTest"), unittest.TestCase):  # type: ignore[misc]
    """Calls and results that end a process, or cannot be pickled, are answered; where a process pool breaks, too."""

    test_shutdown_deadlock = None
    test_shutdown_deadlock_pickle = None

    def _check_crash(
        self, error: type[BaseException], call: Callable[..., object], *args: object, ignore_stderr: bool = False
    ) -> None:
        answers = (BrokenExecutor, SystemExit, pickle.UnpicklingError) if issubclass(error, BrokenExecutor) else error
        with captured_stderr() if ignore_stderr else nullcontext(), pytest.raises(answers):
            self.executor.submit(call, *args).result()
        assert self.executor.submit(pow, 2, 2).result() == 4


class TestChunks(Shared, unittest.TestCase):
    test_map_chunksize = _library("test_process_pool", "ProcessPoolExecutorTest").test_map_chunksize
