"""What tests of executors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.workers.worker_rig import WORKER
from workers.forkserver import Forkserver
from workers.rundir import RunDir


@pytest.fixture(scope="module")
def forkserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forkserver]:
    files = RunDir(tmp_path_factory.mktemp("forkserver"), WORKER)
    files.make()
    forkserver = Forkserver(files, outlive_agent=False)
    yield forkserver
    forkserver.close()
