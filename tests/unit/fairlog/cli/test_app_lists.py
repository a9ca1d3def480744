"""Lists of apps: they are printed as they come."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from fairlog.cli.app_lists import AppFilter, Columns, show_apps
from fairlog.cli.choice import Filter

if TYPE_CHECKING:
    from fairlog.cli.sources import Source

AT = 1_700_000_000_000


def app(name: str, company: str = "acme") -> dict[str, Any]:
    times = {"submittedAt": AT, "admittedAt": None, "endedAt": None}
    return {"app": name, "company": company, "user": "ann", "name": "", "state": "pending", "onHold": False, **times}


def of(parts: Iterator[list[dict[str, Any]]]) -> Source:
    """A cluster that has these apps."""
    known = {"companies": [{"company": "acme"}, {"company": "globex"}]}
    return cast(
        "Source", SimpleNamespace(parts=lambda *_, **__: parts, ask=known.__getitem__, now_ms=lambda: AT, past=False)
    )


def test_each_part_is_printed_before_the_next_one_comes(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def parts() -> Iterator[list[dict[str, Any]]]:
        for part in ([app("a-long-one"), app("b")], [app("c", "globex")], [], [app("an-even-longer-one")]):
            yield part
            seen.append(capsys.readouterr().out)

    show_apps(of(parts()), AppFilter(Filter()), Columns(("app", "company")), as_json=False)
    assert seen == [
        "APP         COMPANY\na-long-one  acme\nb           acme\n",
        "c           globex\n",
        "",
        "an-even-longer-one  acme\n",
    ]


@pytest.mark.parametrize(
    ("for_program", "out", "err"), [(False, "No app matches.\n", ""), (True, "", "No app matches.")]
)
def test_a_list_without_apps_says_so(
    capsys: pytest.CaptureFixture[str], *, for_program: bool, out: str, err: str
) -> None:
    wanted, columns = AppFilter(Filter(company="globex")), Columns(("app",), bare=for_program, for_program=for_program)
    show_apps(of(iter([[app("a")], [app("b")]])), wanted, columns, as_json=False)
    said = capsys.readouterr()
    assert (said.out, said.err.strip()) == (out, err)


def test_what_is_sorted_waits_for_all(capsys: pytest.CaptureFixture[str]) -> None:
    columns = Columns(("app",), sort="-app", bare=True)
    show_apps(of(iter([[app("a")], [app("c")], [app("b")]])), AppFilter(Filter()), columns, as_json=False)
    assert capsys.readouterr().out.split() == ["c", "b", "a"]
