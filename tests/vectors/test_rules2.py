"""The rules, case by case, as an independent reading has them, and what greedy tenants must not achieve."""

from __future__ import annotations

from typing import Any

import pytest

from tests.vectors.rules2 import broken_promise, cases, difference


def parameters(file: str) -> list[Any]:
    return [pytest.param(case, id=case["name"]) for case in cases(file)]


@pytest.mark.parametrize("case", parameters("rules2.json"))
def test_decisions_and_final_state_are_those_of_the_case(case: dict[str, Any]) -> None:
    assert difference(case) == ""


@pytest.mark.parametrize("case", parameters("greedy.json"))
def test_a_greedy_tenant_gets_no_more_than_it_may(case: dict[str, Any]) -> None:
    assert broken_promise(case) == ""
