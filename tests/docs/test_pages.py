"""Every command that README and docs show prints what they show; those that are not run say why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, Page, agrees, failures, leads_somewhere, links, read

READ = [read(path) for path in PAGES]
REASONS = {
    "needs a store that has lost the end of its log",
    "needs a webhook",
    "needs a container engine",
    "needs accounts and Prometheus",
    "needs an archive",
    "needs certificates",
    "prints passwords",
    "the link is another one each time",
    "writes passwords",
    "needs GPUs",
    "needs Java and Spark",
    "needs MPI",
    "needs PyTorch",
    "needs a Redis with jobs",
    "needs an object store",
    "needs docker",
    "needs Kubernetes",
    "needs several machines",
    "needs two clusters",
    "runs the suite",
    "runs until it is stopped",
    "tests/integration/fairlog/test_demo.py runs it",
    "tests/integration/fairlog/test_invited.py types it",
    "tests/integration/fairlog/test_jupyterhub.py types it",
    "tests/integration/fairlog/test_services.py types it",
    "tests/integration/fairlog/test_snakemake.py types it",
    "tests/integration/recovery/test_broken_store.py types it",
    "tests/integration/recovery/test_shorter_log.py types it",
    "tests/integration/recovery/test_earlier_edition.py types it",
}
"""Why a command may stay unrun; a new reason is a decision."""


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in READ if page.steps], ids=lambda page: page.path.name)
def test_every_command_of_a_page_prints_what_the_page_shows(page: Page, tmp_path: Path) -> None:
    assert list(failures(page, tmp_path / "ann")) == []


def test_what_is_not_run_has_a_known_reason() -> None:
    assert {why for page in READ for why in page.not_run} <= REASONS


def test_no_page_shows_a_command_outside_of_a_fence_that_is_read() -> None:
    fences = {page.path.name: page.text.count("\n```console") for page in READ}
    assert fences == {page.path.name: page.fences for page in READ}


@pytest.mark.parametrize(
    ("shown", "printed"),
    [
        ("at 2026-03-01 12:00:00.000\n", "at 2027-11-30 01:02:03.004\n"),
        ("app-0123456789ab killed\n", "app-ba9876543210 killed\n"),
        ("took 3 ms (process 12)\n", "took 12.5 s (process 7)\n"),
        ("A  B\n1  2\n", "A     B\n1     2\n"),
        ("first\n…\nlast\n", "first\nmore\nand more\nlast\n"),
    ],
)
def test_output_may_differ_in_times_ids_and_widths_only(shown: str, printed: str) -> None:
    assert agrees(shown, printed)
    assert not agrees(shown, f"{printed}another line\n")
    assert not agrees(f"a line\n{shown}", printed)


def test_every_link_of_a_page_leads_to_a_file_and_a_heading() -> None:
    dead = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in (*PAGES, ROOT / "CHANGELOG.md")
        for link in links(page)
        if not leads_somewhere(page, link)
    ]
    assert not dead


def test_a_link_to_no_file_or_no_heading_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A `b` (c)\n\n## Twice\n\n## Twice\n\n[x](#a-b-c) [y](#twice-1) [z](#d) [w](no.md) [v](page.md#e)\n"
    )
    assert [link for link in links(page) if not leads_somewhere(page, link)] == ["#d", "no.md", "page.md#e"]


def test_another_number_word_or_line_is_found() -> None:
    assert not agrees("8 cores\n", "9 cores\n")
    assert not agrees("granted\n", "refused\n")
    assert not agrees("one\ntwo\n", "one\n")


def test_a_page_that_shows_something_else_fails(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo one\ntwo\n$ echo three\nthree\n$ false\n```\n")
    found = list(failures(read(page), tmp_path / "ann"))
    assert [line.splitlines()[0] for line in found] == ["`echo one` prints", "`false` prints"]
