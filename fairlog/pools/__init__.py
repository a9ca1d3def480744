"""Pools: workers that come with demand and go without it, by commands, as jobs of Slurm or as pods of Kubernetes.

A pool is a client with a token. It may import the API's client and how the command line reads values; nothing here
decides what is granted.
"""
