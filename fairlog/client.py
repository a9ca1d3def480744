"""How programs talk to a cluster: `from fairlog import Client`."""

from scheduler.service.client import Client, Receipt

__all__ = ["Client", "Receipt"]
