"""Slurm's commands, for the programs and scripts that send them: each asks the API for what is meant by it.

They are started often and for a moment, so these modules load little: the standard library's lightest, and no click.
"""
