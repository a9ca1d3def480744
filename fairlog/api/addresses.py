"""How API servers and tokens are named to their clients."""

from scheduler.service.addresses import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, UNIX, URL_VARIABLE

__all__ = ["TOKEN_FILE_VARIABLE", "TOKEN_VARIABLE", "UNIX", "URL_VARIABLE"]
