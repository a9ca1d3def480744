"""What Snakemake finds as the package `snakemake_executor_plugin_fairlog`, of which the wheel makes this file the top.

Snakemake knows plugins by the name of a top-level package alone, and asks for these three names.
"""

from __future__ import annotations

from fairlog.plugins.snakemake import Executor, ExecutorSettings, common_settings

__all__ = ["Executor", "ExecutorSettings", "common_settings"]
