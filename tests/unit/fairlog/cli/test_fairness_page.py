"""The page of charts: one file without any address of the network, whatever companies are called."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import Any

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


def held(text: str) -> dict[str, Any]:
    """What the page has to draw."""
    (found,) = re.findall(r'<script type="application/json" id="figures">(.+?)</script>', text)
    figures: dict[str, Any] = json.loads(found)
    return figures


def test_the_page_holds_its_figures_its_scripts_and_a_table() -> None:
    text = drawn()
    found = held(text)
    assert [row["company"] for row in found["report"]["rows"]] == [EVIL, "acme", "tiny"]
    assert {"queueLength", "shares"} <= found["report"]["series"][0].keys()
    assert {"acme", "tiny"} <= {wait["company"] for wait in found["waits"]}
    assert "<td>tiny</td>" in text
    assert text.count("<script") == text.count("</script>")


def test_every_script_that_a_script_imports_is_in_the_page() -> None:
    (modules,) = re.findall(r'<script type="importmap">(.+?)</script>', drawn())
    said = {name: b64decode(url.partition(",")[2]).decode() for name, url in json.loads(modules)["imports"].items()}
    imported = {name for text in said.values() for name in re.findall(r'(?:from|import\()\s*"([^"]+)"', text)}
    assert "page/charts.js" in imported
    assert imported <= said.keys()


def test_the_page_loads_nothing() -> None:
    text = drawn()
    assert re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=", text) == []
    assert "default-src 'none'" in text


def test_a_company_named_like_a_tag_is_text() -> None:
    text = drawn()
    assert EVIL not in text
    assert "&lt;/script&gt;" in text
