"""The multi-tenant rules, case by case, as an independent reading of them has it (semantics A, C, U, F, O, S, P)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scheduler.rules.simulate import run_scenario

CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("tenant_admission.json").read_text())["cases"]


def test_the_file_holds_cases() -> None:
    assert CASES


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_the_decisions_and_the_final_state_are_exactly_those_of_the_case(case: dict[str, Any]) -> None:
    outcome = run_scenario({"settings": case["settings"], "commands": case["commands"]})
    assert outcome["decisions"] == case["expected"]["decisions"]
    assert outcome["final"] == case["expected"]["final"]
