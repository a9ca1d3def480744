"""How API servers and tokens are named to their clients."""

UNIX = "http+unix:"
"""What the URL of an API on a Unix socket begins with; its path follows."""
URL_VARIABLE, TOKEN_VARIABLE, TOKEN_FILE_VARIABLE = "FAIRLOG_API", "FAIRLOG_TOKEN", "FAIRLOG_TOKEN_FILE"
MAILBOX_VARIABLE = "FAIRLOG_MAILBOX"
"""The URL at which what runs for an app finds the app's mailbox."""


def is_api(address: str) -> bool:
    """Whether the address names API servers, and not a store."""
    return address.startswith((UNIX, "http://", "https://"))


def unreached(why: object) -> str:
    """Why a server is not reached; of a certificate whose authority is not known, also how to name that."""
    said = str(why)
    return f"{said}; SSL_CERT_FILE names the file of an authority of yours" if "VERIFY_FAILED" in said else said
