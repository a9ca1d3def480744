"""The command line: it parses, calls and prints.

It may import every other room; only the demo imports it. Work that a program could want too does not belong here.
"""
