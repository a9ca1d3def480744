"""The use of the cluster and its queue over the last hour."""

from __future__ import annotations

from itertools import groupby

import pytest

from scheduler.model.commands import EndApp
from scheduler.rules.state.cluster import ClusterState
from tests.property.given import Cluster
from tests.unit.recorded import facts
from tests.unit.witness.test_fairness import two_companies
from witness.course import SPAN_MS, STEP_MS, Course, Point


def whole(cluster: Cluster) -> Course:
    course = Course(ClusterState())
    course.hear(facts(cluster))
    return course


def test_the_last_turn_of_each_step_gives_the_point() -> None:
    assert whole(two_companies()).points == [Point(5_000, 16, 16, 0), Point(16_000, 16, 8, 0), Point(37_000, 16, 0, 0)]


def test_what_was_pending_is_counted_and_what_is_older_than_an_hour_is_left_out() -> None:
    cluster = Cluster()
    cluster.company("acme", 16, 65536)
    cluster.worker("w1", 16)
    for app in ("first", "second", "third"):
        cluster.submit(app, 16, company="acme", user="ann")
    full = cluster.state.at
    cluster.turn(EndApp(app="third", reason="failed"), after_s=60)
    cluster.turn(EndApp(app="second", reason="failed"), after_s=SPAN_MS // 1000 - 10)
    points = whole(cluster).points
    assert [(point.used, point.pending) for point in points] == [(16, 2), (16, 1), (16, 0)]
    assert points[0].at == full
    cluster.turn(EndApp(app="first", reason="failed"), after_s=60)
    assert [point.pending for point in whole(cluster).points] == [1, 0, 0]


@pytest.mark.parametrize("turns", [1, 3])
def test_a_course_that_is_gone_on_with_is_the_same(turns: int) -> None:
    cluster = two_companies()
    course = Course(ClusterState())
    heard = [list(turn) for _, turn in groupby(facts(cluster), key=lambda fact: fact.turn)]
    for number in range(0, len(heard), turns):
        course.hear([fact for turn in heard[number : number + turns] for fact in turn])
    assert course.points == whole(cluster).points
    assert all(later.at - point.at > 0 for point, later in zip(course.points, course.points[1:], strict=False))
    assert len({point.at // STEP_MS for point in course.points}) == len(course.points)
