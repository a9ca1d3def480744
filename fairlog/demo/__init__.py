"""The demo: real work on a temporary cluster, two kills, and a check of the log.

It may import every other room. The verb `demo` starts it; nothing else may import it.
"""
