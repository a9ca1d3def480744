"""The program log: structured, one line per event, on stderr, with passwords masked."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING, Literal, cast

from scheduler.model.text import printable
from scheduler.service.advice import of_this_cluster
from scheduler.service.lossy import outlive_full_disks

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, Processor

LogFormat = Literal["console", "json"]
FORMAT_VARIABLE = "FAIRLOG_LOG_FORMAT"
"""Environment variable that passes the log format to child processes."""
_IN_URL = re.compile(r"(\w://[^\s/:@'\"]*):[^\s'\"]*@")
_IN_QUERY = re.compile(r"(\bpassword=)[^&\s'\"]+")


def masked(text: str) -> str:
    """The text with the passwords in its URLs replaced by `***`."""
    return _IN_QUERY.sub(r"\1***", _IN_URL.sub(r"\1:***@", text))


def log_to_stderr(log_format: LogFormat | None = None) -> None:
    """Log to stderr, here and in child processes, for people or programs; by default in the parent process's format.

    A disk that takes nothing more of it stops no program.
    """
    import structlog  # noqa: PLC0415 (slow to import; the command line needs only `masked`)

    wanted = log_format or cast("LogFormat", os.environ.get(FORMAT_VARIABLE, "console"))
    os.environ[FORMAT_VARIABLE] = wanted
    outlive_full_disks(as_json=wanted == "json")
    processors: list[Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
    ]
    if wanted == "json":
        processors += [structlog.processors.format_exc_info, _mask, structlog.processors.JSONRenderer(default=str)]
    else:
        processors += [_mask, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    coloured = getattr(sys.stderr, "raw", sys.stderr)  # the values are printable already
    structlog.configure(processors=processors, logger_factory=structlog.PrintLoggerFactory(coloured))


def program_log() -> FilteringBoundLogger:
    """The logger of this process. Unconfigured, it still writes to stderr: stdout is for a verb's answer."""
    import structlog  # noqa: PLC0415 (as in `log_to_stderr`)

    logger: FilteringBoundLogger
    if structlog.is_configured():
        logger = structlog.get_logger()
    else:
        logger = structlog.wrap_logger(structlog.PrintLogger(sys.stderr))
    return logger


def _mask(_logger: object, _method: str, event: EventDict) -> EventDict:
    said = {name: value for name, value in event.items() if isinstance(value, str)}
    return {**event, **{name: of_this_cluster(masked(printable(value))) for name, value in said.items()}}
