"""`python -m fairlog.plugins.jupyterhub_server COMMAND…`: runs a user's server on a free port and tells the hub where.

The spawner has an executor of an app run it; it needs the app's mailbox, and becomes the command. If a server of the
app has told its address before, that one is lost with what its kernels held: none takes its place, and the app ends.
"""

from __future__ import annotations

import os
import socket
import sys
from urllib.parse import urlsplit

from fairlog.engines.mailbox import Mailbox

ADDRESS = "jupyter"
"""The name of the message with the server's host and port."""
_URL = "JUPYTERHUB_SERVICE_URL"
"""Where the server listens, as JupyterHub tells it: scheme, address, port and path."""


def main() -> None:
    """Choose a port, leave `HOST:PORT` in the mailbox, and run the command; or end the app of a server that is lost."""
    host = os.environ.get("FAIRLOG_HOST") or socket.getfqdn()
    url = urlsplit(os.environ[_URL])
    with socket.create_server((url.hostname or "", 0)) as free:
        port = free.getsockname()[1]
    os.environ[_URL] = url._replace(netloc=f"{url.hostname}:{port}").geturl()
    with Mailbox() as mail:
        if mail.wait(ADDRESS, timeout_s=0) is not None:
            sys.exit(0)  # an executor whose program ends well is not replaced, so the app is finished
        mail.publish(ADDRESS, f"{host}:{port}")
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 (what the hub's operator configured)


if __name__ == "__main__":
    main()
