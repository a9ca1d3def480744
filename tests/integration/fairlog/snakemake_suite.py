"""Snakemake's own suite for executor plugins, on fairlog's: `test_snakemake.py` has pytest run it beside Snakemake."""

from __future__ import annotations

from snakemake.common.tests import TestWorkflowsLocalStorageBase
from snakemake_executor_plugin_fairlog import ExecutorSettings


class TestFairlog(TestWorkflowsLocalStorageBase):
    """The workflows of the suite, whose jobs fairlog runs."""

    __test__ = True

    def get_executor(self) -> str:
        """The name by which Snakemake knows the plugin."""
        return "fairlog"

    def get_executor_settings(self) -> ExecutorSettings:
        """The company and the user."""
        return ExecutorSettings(company="acme", user="ann")
