"""The folders of this user in which fairlog keeps data and settings.

On Linux they are those of the XDG base directories. `platformdirs`, which knows other systems as well, loads more than
a command may take that is started every few seconds.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder() -> Path:
    """Where data of this user are."""
    return _folder("XDG_DATA_HOME", ".local/share", "user_data_path")


def config_folder() -> Path:
    """Where settings of this user are."""
    return _folder("XDG_CONFIG_HOME", ".config", "user_config_path")


def _folder(variable: str, below_home: str, elsewhere: str) -> Path:
    if not sys.platform.startswith("linux"):
        import platformdirs  # noqa: PLC0415 (as above)

        found: Path = getattr(platformdirs, elsewhere)("fairlog")
        return found
    named = os.environ.get(variable, "").strip()
    return (Path(named) if named else Path.home() / below_home) / "fairlog"
