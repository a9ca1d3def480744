"""A real Spark job whose executors fairlog grants. Needs Java and Spark."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.integration.cli_rig import ROOT
from tests.integration.engines_rig import Site, site

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
    pytest.mark.skipif(
        not os.environ.get("SPARK_HOME") and find_spec("pyspark") is None, reason="Spark is not installed"
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site(tmp_path_factory.mktemp("spark")) as found:
        yield found


def test_pi_runs_on_granted_executors_and_the_app_ends_with_its_driver(cluster: Site) -> None:
    """In client mode, with the configuration that `spark env` prints."""
    if "SPARK_HOME" in os.environ:
        cluster.shell.env["SPARK_HOME"] = os.environ["SPARK_HOME"]
    lines = cluster.shell.ok("spark", "env", "--company", "acme", "--user", "ann").splitlines()
    variables = dict(shlex.split(line.removeprefix("export "))[0].split("=", 1) for line in lines)
    environment = {**cluster.shell.env, **variables}
    submit = [f"{variables['SPARK_HOME']}/bin/spark-submit", "--executor-cores", "1", "--executor-memory", "512m"]
    program = str(ROOT / "examples" / "spark_pi.py")
    done = subprocess.run([*submit, program], env=environment, capture_output=True, text=True, check=False)
    assert "Pi is roughly 3.1" in done.stdout, done.stderr[-3000:]
    (app,) = cluster.apps()
    ended = cluster.wait_for_end(app["app"])
    assert (ended["name"], ended["state"], ended["executorsGranted"]) == ("pi", "finished", 2)
    assert variables["SPARK_CONF_DIR"] not in cluster.shell.ok("log", "--json")
    assert "follows its rules" in cluster.audit()
    shutil.rmtree(variables["SPARK_CONF_DIR"])
