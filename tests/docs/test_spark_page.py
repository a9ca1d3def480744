"""The page for people who come from Spark names nothing that is not there."""

from __future__ import annotations

import re
from pathlib import Path

from fairlog.engines.spark.driver import OPTIONS
from scheduler.model.events import ClusterConfigured
from scheduler.rules.entities.fleet import WORKER_SELECTIONS

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()

DEPLOY = """recoveryMode recoveryMode.factory recoveryDirectory recoveryCompressionCodec recoveryTimeout zookeeper.url
zookeeper.dir retainedApplications retainedDrivers maxExecutorRetries spreadOutDrivers spreadOutApps
workerSelectionPolicy defaultCores maxDrivers appNumberModulo appIdPattern driverIdPattern"""
"""What Spark 4 reads as `spark.deploy.*`, one by one."""


def test_every_property_of_sparks_own_master_is_on_the_page() -> None:
    assert [name for name in DEPLOY.split() if f"`spark.deploy.{name}`" not in PAGE] == []


SUBMIT = """--master --deploy-mode --class --name --jars --packages --exclude-packages --repositories --py-files --files
--archives --conf -c --properties-file --load-spark-defaults --driver-memory --driver-java-options --driver-library-path
--driver-class-path --executor-memory --proxy-user --help -h --verbose -v --version --remote --driver-cores --supervise
--kill --status --total-executor-cores --executor-cores --num-executors --principal --keytab --queue"""
"""What `spark-submit --help` of Spark 4 lists."""


def test_the_table_of_spark_submits_options_is_what_fairlog_does_with_each() -> None:
    said = {"passed": "as Spark's", "property": "acts", "read": "acts", "refused": "refused"}
    rows = [
        f"| `{name}` | {said[option.does]} | {f'`{option.meaning}`' if option.does == 'property' else option.meaning} |"
        for name, option in OPTIONS.items()
    ]
    assert "\n".join(["| option | here | |", "|---|---|---|", *rows, ""]) in PAGE
    assert set(OPTIONS) == set(SUBMIT.split())


def test_every_setting_on_the_page_exists() -> None:
    rows = [row.split("|")[2] for row in PAGE.splitlines() if row.startswith("| ") and "setting" in row.split("|")[2]]
    named = {name for row in rows for name in re.findall(r"`([a-z_]+_[a-z_]+)`", row)}
    assert named
    assert named <= set(ClusterConfigured.__struct_fields__)


def test_every_order_of_workers_is_on_the_page() -> None:
    assert [order for order in WORKER_SELECTIONS if f"`{order}`" not in PAGE] == []
