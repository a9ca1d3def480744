"""The terms of an app are the same in its submission, in its registration and in what is shown of it."""

from __future__ import annotations

from typing import get_type_hints

import pytest
from msgspec.structs import fields

from scheduler.model.commands import SubmitApp
from scheduler.model.events import AppRegistered
from scheduler.model.terms import TERMS, AppTerms, ranges_of


@pytest.mark.parametrize("term", TERMS)
def test_a_term_has_one_type_and_one_default_on_its_whole_way(term: str) -> None:
    types = [get_type_hints(kind, include_extras=True)[term] for kind in (SubmitApp, AppRegistered)]
    defaults = [{field.name: field.default for field in fields(kind)}[term] for kind in (SubmitApp, AppRegistered)]
    assert types[0] == types[1]
    assert defaults[0] == defaults[1]


def test_a_submission_and_its_registration_end_with_the_terms_as_the_log_places_them() -> None:
    new = AppTerms.__struct_fields__
    assert SubmitApp.__struct_fields__[-len(new) :] == AppRegistered.__struct_fields__[-len(new) :] == new


def test_a_range_says_what_a_log_breaks_that_is_below_it() -> None:
    known = ranges_of(AppRegistered)
    assert known == ranges_of(SubmitApp)
    assert {name: each.rule for name, each in known.items()} == {
        "executor_limit": "P4",
        "grace_s": "G5",
        "owner_timeout_s": "G4",
        "min_runtime_s": "H7",
        "max_failures": "W5",
    }
    for each in known.values():
        assert each.broken.format(app="a1", value=each.least - 1).count(str(each.least - 1)) == 1
        assert "'a1'" in each.broken.format(app="a1", value=0)
