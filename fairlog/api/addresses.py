"""How API servers and tokens are named to their clients."""

from scheduler.service.addresses import TOKEN_VARIABLE, UNIX, URL_VARIABLE

__all__ = ["TOKEN_VARIABLE", "UNIX", "URL_VARIABLE"]
