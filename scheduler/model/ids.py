"""Ids of executors, `<app>.<n>`, and of drivers, `<app>.driver-<n>`; only this module makes and reads them."""

from __future__ import annotations

_DRIVER = "driver-"


def executor_id(app: str, number: int) -> str:
    """The id of the app's executor of that number; numbers count up from 0 and are not reused (semantics P6)."""
    return f"{app}.{number}"


def driver_id(app: str, number: int) -> str:
    """The id of the app's driver of that number, counted like executors."""
    return f"{app}.{_DRIVER}{number}"


def app_of(allocation: str) -> str:
    """The app of that executor or driver; "" if the text is neither."""
    return allocation.rpartition(".")[0]


def number_of(executor: str) -> int:
    """The number of that executor within its app. Raises: ValueError if the text is not an executor's id."""
    return int(executor.rpartition(".")[2])


def is_driver(allocation: str) -> bool:
    """Whether the id is a driver's and not an executor's."""
    return allocation.rpartition(".")[2].startswith(_DRIVER)
