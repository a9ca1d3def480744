"""The measures of the house get no worse, and are counted as they say."""

from __future__ import annotations

from tests.measures import here, measures

BOUNDS = {
    "methods of the class that has most": 40,
    "lines of the longest class": 490,
    "words of semantics.md": 8_000,
    "rules of semantics.md": 85,
    "class names that stand in several modules": 1,
    "conditions by which verbs choose a road": 20,
}


def test_no_measure_is_worse_than_it_was() -> None:
    found = {each.name: each.value for each in here()}
    assert {name: found[name] for name, most in BOUNDS.items() if found[name] > most} == {}


def test_classes_names_and_rules_are_counted_as_they_stand() -> None:
    files = {
        "scheduler/one.py": "class Kept:\n    def a(self): ...\n    def b(self): ...\n",
        "fairlog/cli/two.py": "class _Kept: ...\nif session.api: ...\n",
        "recovery/second_edition/old.py": "class Kept:\n" + "    x = 1\n" * 9,
    }
    found = {each.name: each.value for each in measures(files, "A1. *One.*\nA2. *Two.* A3. Three.\n")}
    assert list(found.values()) == [5, 10, 2, 3, 6, 2, 1, 1]
