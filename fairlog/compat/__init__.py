"""Doors for the tools that people have already: what speaks another scheduler's language to its unmodified clients.

Each package speaks one language, and asks the API for what is meant, in the name of who asks. Nothing here decides.
"""
