"""What tests with real processes need."""

from __future__ import annotations

import pytest

from tests.integration.disks import disks
from tests.integration.forked import forked_elsewhere

__all__ = ["disks"]


@pytest.fixture(autouse=True, scope="session")
def _forked_elsewhere() -> None:
    """Agents and forkservers within a test's process have their processes forked from another one."""
    pytest.MonkeyPatch().setattr("workers.forkserver.Forked", forked_elsewhere)
