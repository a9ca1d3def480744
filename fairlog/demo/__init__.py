"""The guided run on a cluster of its own, which uses the command line as a person would.

It may import every other room; the verb `demo` starts it. No other program may depend on it.
"""
