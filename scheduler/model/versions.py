"""The versions of what fairlog's processes tell each other, and of the log: who has another one is refused by name.

The messages are those between clients, workers, API servers and masters: the header of an HTTP request, and a field of
a message in the inbox. Who states none has the first version. The log's schema stands in the store.
"""

from __future__ import annotations

from scheduler.model.errors import OtherVersion

MESSAGES = 1
"""The version of the messages that this fairlog sends."""
OLDEST_MESSAGES = 1
"""The oldest version that it reads."""
HEADER = "Fairlog-Messages"
"""The header of an HTTP request that states the version."""
SCHEMA = 2
"""The schema of the logs that this fairlog reads and writes."""


def check_messages(stated: str, who: str, here: str) -> None:
    """Raises: OtherVersion, which names who is too old, unless messages of the version `stated` by `who` are read."""
    version = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 10 else 0
    if OLDEST_MESSAGES <= version <= MESSAGES:
        return
    reads = str(MESSAGES) if OLDEST_MESSAGES == MESSAGES else f"{OLDEST_MESSAGES} to {MESSAGES}"
    older = here if version > MESSAGES else who
    raise OtherVersion(
        f"{who} sends messages of version {stated[:20]!r}, and {here} reads version {reads}; upgrade fairlog of {older}"
    )


def check_schema(stated: str, cluster: str) -> None:
    """Raises: OtherVersion unless this fairlog reads logs of the schema `stated`."""
    if stated != str(SCHEMA):
        newer = stated.isascii() and stated.isdigit() and int(stated) > SCHEMA
        what = "upgrade fairlog here" if newer else "keep the version that wrote it to read it"
        found = f"the log of the cluster {cluster} has schema {stated[:20]!r}"
        raise OtherVersion(f"{found}, and this fairlog reads schema {SCHEMA}; {what}")
