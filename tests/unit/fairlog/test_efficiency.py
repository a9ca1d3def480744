"""What was used of what was granted: in sums by app, user and company, and in words."""

from __future__ import annotations

from typing import Any

from fairlog.efficiency import efficiency, in_words

HOUR_MS = 3_600_000


def spent(cores: int, told: int, used: float, peak: int = 0, of: int = 0) -> dict[str, Any]:
    """What an app was granted, of which so much is told, in core-hours; its memory for as many hours."""
    return {
        "coreMs": cores * HOUR_MS,
        "toldCoreMs": told * HOUR_MS,
        "cpuMs": round(used * HOUR_MS),
        "toldMemoryMs": of * HOUR_MS,
        "usedMemoryMs": peak * HOUR_MS,
        "peakMemory": peak,
        "peakOfMemory": of,
    }


def app(name: str, user: str, company: str = "acme", **more: Any) -> dict[str, Any]:
    """An app in a list."""
    return {"app": name, "name": f"{name}!", "user": user, "company": company, **more}


APPS = [
    app("a", "ann", spent=spent(10, 8, 2, 310, 4096)),
    app("b", "ann", spent=spent(1, 1, 1, 512, 512)),
    app("c", "bob", spent=spent(5, 0, 0)),
    app("d", "bob", company="tiny", spent=spent(4, 4, 3, 100, 1024)),
    app("e", "eve"),
]


def test_who_wasted_most_comes_first() -> None:
    assert [(row["company"], row["user"], row["apps"]) for row in efficiency(APPS)] == [
        ("acme", "ann", 2),
        ("tiny", "bob", 1),
        ("acme", "bob", 1),
    ]
    assert [row["app"] for row in efficiency(APPS, "app")] == ["a", "d", "b", "c"]


def test_what_was_granted_is_used_wasted_or_unknown() -> None:
    for by in ("app", "user", "company"):
        rows = efficiency(APPS, by)
        assert sum(row["coreMs"] for row in rows) == 20 * HOUR_MS
        for row in rows:
            assert row["coreMs"] == row["cpuMs"] + row["wastedCoreMs"] + row["unknownCoreMs"]
    acme = efficiency(APPS, "company")[0]
    assert (acme["company"], acme["cpuPart"]) == ("acme", round(3 / 9, 4))
    assert acme["memoryPart"] == round(822 / 4608, 4)
    assert (acme["peakMemory"], acme["peakOfMemory"]) == (512, 512)


def test_more_cpu_time_than_was_granted_is_no_waste() -> None:
    (row,) = efficiency([app("a", "ann", spent=spent(1, 1, 1.5))])
    assert (row["wastedCoreMs"], row["cpuPart"]) == (0, 1.5)


def test_of_what_nothing_is_known_no_part_is_told() -> None:
    (row,) = efficiency(APPS[2:3], "app")
    assert (row["cpuPart"], row["memoryPart"]) == (None, None)
    assert in_words(APPS[2]["spent"]) == "not known of 5.000 core-h"


def test_words_say_how_much_of_what() -> None:
    assert in_words(APPS[0]["spent"]) == (
        "2.000 of 8.000 core-h, 25%; at most 310 MiB of 4 GiB of an executor; as their workers say; not known of 2.000 "
        "core-h more"
    )
