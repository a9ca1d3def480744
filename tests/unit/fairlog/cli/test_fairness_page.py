"""The page of charts: one file without any address of the network, whatever companies are called."""

from __future__ import annotations

import re

from fairlog.cli.fairness_page import page
from recovery.replay.window import measure
from tests.unit.recorded import facts
from tests.unit.witness.test_fairness import two_companies
from witness.fairness import Fairness

EVIL = "</script><script>alert(1)</script>"


def drawn() -> str:
    cluster = two_companies()
    cluster.company(EVIL)
    cluster.submit("last", company=EVIL)
    cluster.turn()
    cluster.worker("w2", 8)
    meter = Fairness()
    state, span = measure(facts(cluster), meter)
    return page({"log": span.as_json(), **meter.report(state)}, meter.waits(span.last_at))


def test_the_page_has_a_chart_of_shares_of_the_queue_and_of_waits_and_a_table() -> None:
    text = drawn()
    assert [name for name in ("shares", "queue", "waits") if f'id="{name}"' in text] == ["shares", "queue", "waits"]
    assert "<td>tiny</td>" in text
    assert text.count("<script") == text.count("</script>")


def test_the_page_loads_nothing() -> None:
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=", drawn()) == []


def test_no_button_sends_a_chart_anywhere() -> None:
    """Each chart's options, as the library reads them."""
    options = re.findall(r'\{"displaylogo":[^}]*\}', drawn().replace(" ", ""))
    assert len(options) == 3
    assert all('"modeBarButtonsToRemove":["sendChartToCloud"]' in each for each in options)


def test_a_company_named_like_a_tag_is_text() -> None:
    text = drawn()
    assert EVIL not in text
    assert "&lt;/script&gt;" in text
