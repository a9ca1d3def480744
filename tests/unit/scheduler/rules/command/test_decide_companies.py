"""Given events, when a company or a setting is added, changed or removed, then events."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from scheduler.model.commands import ChangeCompany, ConfigureCluster, RegisterCompany, RemoveCompany
from scheduler.model.errors import CompanyInUse, DuplicateCompany, InvalidCommand, InvalidSetting, UnknownCompany
from scheduler.model.events import (
    AppRemoved,
    ClusterConfigured,
    CompanyChanged,
    CompanyRegistered,
    CompanyRemoved,
    ExecutorRemoved,
)
from scheduler.model.resources import Resources
from scheduler.rules.command.decide import decide
from scheduler.rules.view.views import companies
from tests.property.given import ACME, Cluster, entered, fold, granted, joined, queued


def test_a_company_is_registered_with_amounts_a_part_or_neither() -> None:
    """Semantics C2."""
    state = fold([])
    assert decide(state, RegisterCompany(company="acme", cores=64, memory_mb=32768)) == [
        CompanyRegistered(company="acme", amounts=Resources(64, 32768))
    ]
    assert decide(state, RegisterCompany(company="acme", part="25%")) == [CompanyRegistered(company="acme", part="1/4")]
    assert decide(state, RegisterCompany(company="acme")) == [CompanyRegistered(company="acme")]


def test_a_company_is_registered_once() -> None:
    with pytest.raises(DuplicateCompany, match=r"^company 'acme' is registered already"):
        decide(fold([ACME]), RegisterCompany(company="acme", part="1/2"))


@pytest.mark.parametrize(
    ("quota", "sentence"),
    [
        ({"cores": 64}, "a quota in amounts needs both --cores and --memory"),
        ({"memory_mb": 4096}, "a quota in amounts needs both --cores and --memory"),
        ({"cores": 64, "memory_mb": 4096, "part": "1/2"}, "a quota is either --cores with --memory, or --part"),
        ({"cores": -1, "memory_mb": 4096}, "a quota's cores must be between 0 and"),
        ({"cores": 4, "memory_mb": -1}, "a quota's memory, in MiB, must be between 0 and"),
        ({"part": "0%"}, "a part of the cluster must be above 0% and at most 100%, not '0%'"),
        ({"part": "101%"}, "a part of the cluster must be above 0% and at most 100%, not '101%'"),
        ({"part": "much"}, "a part of the cluster is written like 25% or 1/4, not 'much'"),
    ],
)
@pytest.mark.parametrize("kind", [RegisterCompany, ChangeCompany])
def test_a_quota_that_cannot_be_is_refused(
    kind: type[RegisterCompany | ChangeCompany], quota: dict[str, Any], sentence: str
) -> None:
    company = "initech" if kind is RegisterCompany else "acme"
    with pytest.raises(InvalidCommand) as raised:
        decide(fold([ACME]), convert({"company": company, **quota}, kind))
    assert str(raised.value).startswith(sentence)


def test_a_quota_may_be_nothing() -> None:
    """Semantics C4: a company that bought nothing is admitted nothing."""
    nothing = [CompanyRegistered(company="acme", amounts=Resources(0, 0))]
    assert decide(fold([]), RegisterCompany(company="acme", cores=0, memory_mb=0)) == nothing


@pytest.mark.parametrize("name", ["", "a\tb", " acme", "x" * 129])
def test_a_company_needs_a_name_that_can_be_shown(name: str) -> None:
    with pytest.raises(InvalidCommand, match=r"^the company must"):
        decide(fold([]), RegisterCompany(company=name))


def test_a_changed_quota_is_stated_in_full_and_the_same_again_changes_nothing() -> None:
    """Semantics C2."""
    state = fold([CompanyRegistered(company="acme", amounts=Resources(64, 32768))])
    assert decide(state, ChangeCompany(company="acme", cores=64, memory_mb=32768)) == []
    events = decide(state, ChangeCompany(company="acme", part="50%"))
    assert events == [CompanyChanged(company="acme", part="1/2")]
    assert decide(fold(events, state), ChangeCompany(company="acme", part="1/2")) == []
    assert decide(state, ChangeCompany(company="acme", part="none")) == [CompanyChanged(company="acme")]
    assert decide(state, ChangeCompany(company="acme")) == [CompanyChanged(company="acme")], "as in earlier logs"


def test_borrowing_changes_alone_or_with_the_quota_and_stays_unless_stated() -> None:
    """Semantics C6."""
    state = fold([CompanyRegistered(company="acme", amounts=Resources(64, 32768))])
    events = decide(state, ChangeCompany(company="acme", borrow=True))
    assert events == [CompanyChanged(company="acme", amounts=Resources(64, 32768), borrow=True)]
    fold(events, state)
    assert decide(state, ChangeCompany(company="acme", borrow=True)) == []
    assert decide(state, ChangeCompany(company="acme", part="1/2")) == [
        CompanyChanged(company="acme", part="1/2", borrow=True)
    ]
    assert decide(state, ChangeCompany(company="acme", part="1/2", borrow=False)) == [
        CompanyChanged(company="acme", part="1/2", borrow=False)
    ]
    assert decide(state, RegisterCompany(company="initech", borrow=True)) == [
        CompanyRegistered(company="initech", borrow=True)
    ]


def test_ending_what_is_unused_changes_alone_and_stays_unless_stated() -> None:
    """Semantics W13."""
    cluster = Cluster()
    cluster.turn(RegisterCompany(company="acme", part="1/2", end_idle=True))
    assert cluster.turn(ChangeCompany(company="acme", borrow=True))
    assert cluster.state.companies["acme"].spec == CompanyRegistered(
        company="acme", part="1/2", borrow=True, end_idle=True
    )
    cluster.turn(ChangeCompany(company="acme", end_idle=False))
    assert cluster.state.companies["acme"].spec == CompanyRegistered(company="acme", part="1/2", borrow=True)
    assert [each.end_idle for each in companies(cluster.state)] == [False]


def test_an_unknown_company_can_neither_be_changed_nor_removed() -> None:
    for command in (ChangeCompany(company="initech"), RemoveCompany(company="initech")):
        with pytest.raises(UnknownCompany, match=r"^no company 'initech' is registered"):
            decide(fold([ACME]), command)


def test_a_company_is_removed_once_all_that_its_apps_held_is_back() -> None:
    state = fold([ACME, joined(), queued(), entered(), granted(), queued("a2")])
    with pytest.raises(CompanyInUse, match=r"^company 'acme' still has 2 apps"):
        decide(state, RemoveCompany(company="acme"))
    fold([AppRemoved(app="a1", reason="killed"), AppRemoved(app="a2", reason="killed")], state)
    with pytest.raises(CompanyInUse, match=r"^company 'acme' still has 1 app;"):
        decide(state, RemoveCompany(company="acme"))
    fold([ExecutorRemoved(app="a1", executor="a1.0", worker="w1", reason="killed")], state)
    assert decide(state, RemoveCompany(company="acme")) == [CompanyRemoved(company="acme")]


def test_a_company_that_comes_back_starts_with_nothing() -> None:
    state = fold([ACME, joined(), queued(), entered(), AppRemoved(app="a1", reason="finished")])
    fold([CompanyRemoved(company="acme"), ACME], state)
    assert state.companies["acme"].last_selected == 0
    assert state.companies["acme"].users == {}


def test_settings_change_by_an_event_that_states_them_all() -> None:
    assert decide(fold([]), ConfigureCluster(settings={"placement": "pack"})) == [ClusterConfigured(placement="pack")]


def test_settings_that_stay_as_they_are_change_nothing() -> None:
    assert decide(fold([]), ConfigureCluster(settings={})) == []
    assert decide(fold([]), ConfigureCluster(settings={"placement": "spread"})) == []


def test_a_refused_setting_takes_the_others_of_its_command_with_it() -> None:
    with pytest.raises(
        InvalidSetting, match=r"^placement cannot be 'heap': use one of spread, pack, classic-spread, classic-pack$"
    ):
        decide(fold([]), ConfigureCluster(settings={"default_cores": 4, "placement": "heap"}))
