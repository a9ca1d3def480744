"""The alert rules and the dashboard: every metric that they name exists, with the labels that they use."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fakeredis
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from fairlog.watch.conditions import CONDITIONS
from fairlog.watch.metrics import Metrics
from fairlog.watch.surroundings import BackedUp
from fairlog.watch.tally import Tally
from tests.unit.fairlog.watch.test_conditions import a_state
from tests.unit.fairlog.watch.test_metrics import AROUND, KEYS, of_a_master

if TYPE_CHECKING:
    from prometheus_client.core import Metric

ROOT = Path(__file__).parents[3]
RULES = ROOT / "deploy" / "prometheus" / "fairlog.rules.yml"
TRIED = Path(__file__).with_name("fairlog.rules.test.yml")
DASHBOARD = ROOT / "deploy" / "grafana" / "fairlog.json"
PAGE = (ROOT / "docs" / "operations.md").read_text()
PROMTOOL = shutil.which("promtool")
_KEPT = {"le", "instance"}
"""Labels that histograms and Prometheus itself add."""


@pytest.fixture(scope="module")
def scraped() -> list[str]:
    """What an API server and a master answer."""
    fake, state, tally = fakeredis.FakeRedis(server=fakeredis.FakeServer()), a_state(apps=2), Tally()
    fake.set(KEYS.backed_up, json.dumps(BackedUp(1, 1)._asdict()))
    tally.granted["acme"] = tally.ended["acme", "exited"] = tally.events["MasterElected"] = 1
    metrics = Metrics(fake, KEYS, tally, read=lambda look: look(state), around=lambda: AROUND)
    return [metrics.text()[0].decode(), of_a_master().decode()]


@pytest.fixture(scope="module")
def exported(scraped: list[str]) -> list[Metric]:
    """Everything that is exported."""
    return [family for text in scraped for family in text_string_to_metric_families(text)]


@pytest.fixture(scope="module")
def known(exported: list[Metric]) -> dict[str, set[str]]:
    """Sample -> its labels."""
    return {sample.name: set(sample.labels) for family in exported for sample in family.samples}


def expressions(found: Any) -> Iterator[str]:
    """Every PromQL expression of the file."""
    if isinstance(found, dict):
        if isinstance(found.get("expr"), str):
            yield found["expr"]
        for each in found.values():
            yield from expressions(each)
    elif isinstance(found, list):
        for each in found:
            yield from expressions(each)


RULE_EXPRESSIONS = list(expressions(yaml.safe_load(RULES.read_text())))
PANEL_EXPRESSIONS = list(expressions(json.loads(DASHBOARD.read_text())))


@pytest.mark.parametrize("expression", [*RULE_EXPRESSIONS, *PANEL_EXPRESSIONS])
def test_every_metric_and_label_that_is_named_exists(expression: str, known: dict[str, set[str]]) -> None:
    named = re.findall(r"\bfairlog_\w+", expression)
    assert named
    for name in named:
        assert name in known, name
    labels = set(re.findall(r"(\w+)\s*(?:!=|=~|!~|=)\s*\"", expression))
    labels |= {label for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in re.split(r",\s*", group)}
    assert labels <= set.union(*(known[name] for name in named)) | _KEPT


@pytest.mark.parametrize("expression", [*RULE_EXPRESSIONS, *PANEL_EXPRESSIONS])
def test_every_condition_that_is_named_exists(expression: str) -> None:
    named = re.findall(r'condition(?:!~|=~|=|!=)"([^"]+)"', expression)
    assert {each for group in named for each in group.split("|")} <= {condition.name for condition in CONDITIONS}


def test_the_rules_tell_of_everything_that_the_cluster_alerts_of() -> None:
    text = RULES.read_text()
    names = [rule["alert"] for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]
    assert len(set(names)) == len(names) > 10
    for group in yaml.safe_load(text)["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("warning", "critical")
            assert rule["annotations"]["summary"].endswith(".") or rule["annotations"]["summary"].endswith("disk.")


def test_every_rule_is_tried() -> None:
    """By `promtool test rules`, where it fires and where it does not."""
    tried = [each for test in yaml.safe_load(TRIED.read_text())["tests"] for each in test["alert_rule_test"]]
    for group in yaml.safe_load(RULES.read_text())["groups"]:
        for rule in group["rules"]:
            assert {"exp_alerts" in each for each in tried if each["alertname"] == rule["alert"]} == {True, False}, rule


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
@pytest.mark.parametrize(
    "arguments",
    [["check", "rules", "--lint=all", "--lint-fatal", RULES], ["test", "rules", TRIED]],
    ids=["form", "tries"],
)
def test_promtool_takes_the_rules(arguments: list[str | Path]) -> None:
    checked = subprocess.run([str(PROMTOOL), *arguments], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed")
def test_promtool_finds_nothing_to_say_of_the_metrics(scraped: list[str]) -> None:
    for text in scraped:
        checked = subprocess.run(
            [str(PROMTOOL), "check", "metrics"], input=text, capture_output=True, text=True, check=False
        )
        assert (checked.returncode, checked.stderr) == (0, "")


def test_the_dashboard_uses_its_own_data_source_and_places_panels_side_by_side() -> None:
    board = json.loads(DASHBOARD.read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        assert panel["datasource"]["uid"] == "${datasource}"
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_the_page_lists_every_metric_and_every_condition_and_no_other(exported: list[Metric]) -> None:
    names = {f"{family.name}_total" if family.type == "counter" else family.name for family in exported}
    assert set(re.findall(r"`(fairlog_\w+)`", PAGE)) == names
    listed = re.findall(r"^\| `(\w+)` \| (warning|critical) \|", PAGE, re.MULTILINE)
    assert listed == [(condition.name, condition.severity) for condition in CONDITIONS]
