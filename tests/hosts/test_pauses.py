"""How long nobody could submit, from the times of answers; and what the checker of these runs may know."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import islice
from pathlib import Path

from tests.hosts.faults import FAULTS, order
from tests.hosts.pauses import Answer, Pauses, Span, pauses

ROOT = Path(__file__).parents[2]
SPAN = Span("primary killed", began_s=100, healed_s=110, well_s=120)


def test_the_longest_time_without_an_answer_is_found_for_all_and_for_one_client() -> None:
    answers = [Answer(client, sent_s, sent_s + 0.5) for client in (0, 1) for sent_s in range(90, 130)]
    assert pauses(SPAN, answers) == Pauses(1, 1, 0.5)
    cut_off = [each for each in answers if each.client == 1 or not 103 < each.answered_s < 109]
    assert pauses(SPAN, cut_off) == Pauses(1, 7, 0.5)
    away = [each for each in answers if not 103 < each.answered_s < 109]
    assert pauses(SPAN, away) == Pauses(7, 7, 0.5)


def test_without_any_answer_the_whole_fault_counts() -> None:
    before_and_after = [Answer(0, 95, 96), Answer(0, 119.5, 121)]
    assert pauses(SPAN, before_and_after) == Pauses(20, 20, 1.5)


def test_a_command_counts_for_the_fault_that_met_it() -> None:
    late = [Answer(0, 99.5, 115), Answer(0, 80, 118), *(Answer(0, at_s, at_s + 0.1) for at_s in range(100, 120))]
    assert pauses(SPAN, late).one_command_s == 15.5


def test_all_faults_come_before_one_comes_again_and_a_seed_repeats_their_order() -> None:
    possible = {fault.name for fault in FAULTS if not fault.missing()}
    drawn = [fault.name for fault in islice(order(random.Random(7), ()), 2 * len(possible))]
    assert set(drawn[: len(possible)]) == set(drawn[len(possible) :]) == possible
    assert drawn == [fault.name for fault in islice(order(random.Random(7), ()), 2 * len(possible))]
    assert [fault.name for fault in islice(order(random.Random(7), ("primary deaf",)), 2)] == ["primary deaf"] * 2


def test_the_checker_knows_nothing_of_what_decides_folds_or_audits() -> None:
    story = "import sys, tests.chaos.checker; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", story], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {
        name for name in loaded.stdout.split() if name.split(".")[0] in {"scheduler", "witness", "recovery", "fairlog"}
    }
    assert {name for name in ours if not name.startswith(("scheduler.model", "scheduler.store"))} == {"scheduler"}
