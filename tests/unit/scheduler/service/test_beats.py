"""How often workers send heartbeats and masters leave marks."""

from __future__ import annotations

import pytest

from scheduler.service.heartbeats import LONGEST_BEAT_MS, MARKS_A_TIMEOUT, SHORTEST_MARK_MS, _pause_ms, beat_after_ms
from workers.api_door import WAIT_S
from workers.servers import ANSWER_S

TIMEOUTS_MS = [4_000, 5_000, 6_000, 10_000, 15_000, 60_000, 3_600_000]


def beat_ms(timeout_ms: int) -> float:
    return max(1000 * WAIT_S, beat_after_ms(timeout_ms))


@pytest.mark.parametrize("timeout_ms", TIMEOUTS_MS)
def test_no_worker_is_lost_for_what_a_reloaded_store_has_forgotten(timeout_ms: int) -> None:
    mark_ms = max(SHORTEST_MARK_MS, timeout_ms // MARKS_A_TIMEOUT)
    assert mark_ms + _pause_ms(timeout_ms) + beat_ms(timeout_ms) < timeout_ms


@pytest.mark.parametrize("timeout_ms", [each for each in TIMEOUTS_MS if each >= 5_000])
def test_a_worker_whose_server_dies_finds_another_one_before_it_is_lost(timeout_ms: int) -> None:
    assert beat_ms(timeout_ms) + 1000 * ANSWER_S < timeout_ms


def test_no_question_stays_open_for_longer_than_a_server_permits() -> None:
    assert [beat_after_ms(timeout_ms) for timeout_ms in (15_000, 3_600_000)] == [5_000, LONGEST_BEAT_MS]
