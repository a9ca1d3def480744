"""How programs talk to a cluster: `from fairlog import Client`."""

from scheduler.client import Client, Receipt

__all__ = ["Client", "Receipt"]
