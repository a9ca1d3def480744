"""Where masters may archive: the operator of their host names it, since whoever may change a setting cannot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from scheduler.model.commands import Command, ConfigureCluster
from scheduler.model.errors import InvalidSetting

VARIABLE = "FAIRLOG_ARCHIVE_ALLOW"


def check_allowed(url: str, allowed: Sequence[str]) -> None:
    """Raises: InvalidSetting unless `url` is empty, one of the `allowed` URLs, or a folder below one of them."""
    if url and not any(_is_below(url, each) for each in allowed):
        only = f"only {' and '.join(allowed)} and folders below" if allowed else "nothing"
        raise InvalidSetting(
            f"the masters' hosts allow {only} as an archive, not {url}; their operator allows more with `fairlog "
            f"master --archive-allow URL` or {VARIABLE}"
        )


def check_command(command: Command, allowed: Sequence[str]) -> None:
    """Raises: InvalidSetting if the command sets an archive's URL that is not `allowed`."""
    if isinstance(command, ConfigureCluster) and isinstance(url := command.settings.get("archive_url"), str):
        check_allowed(url, allowed)


def _is_below(url: str, allowed: str) -> bool:
    """Whether `url` names the folder `allowed` or one below; on this machine, after following symbolic links."""
    if "::" in url or "\\" in url:
        return False
    try:
        asked, prefix = urlsplit(url), urlsplit(allowed)
    except ValueError:
        return False
    paths = [Path(f"/{unquote(each.path)}") for each in (asked, prefix)]
    if (asked.scheme, asked.netloc) != (prefix.scheme, prefix.netloc) or ".." in paths[0].parts:
        return False
    inner, outer = (path.resolve() for path in paths) if asked.scheme == "file" else paths
    return inner.is_relative_to(outer)
