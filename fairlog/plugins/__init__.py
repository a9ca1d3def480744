"""Plugins for other programs, each loaded by its program alone: an executor of Snakemake, a spawner of JupyterHub.

They are clients of the API. Nothing here decides, and nothing else of fairlog imports it.
"""
