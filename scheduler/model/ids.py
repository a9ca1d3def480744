"""Ids of executors, `<app>.<n>`, and of drivers, `<app>.driver-<n>`: made and read here and nowhere else."""

from __future__ import annotations

_DRIVER = "driver-"


def executor_id(app: str, number: int) -> str:
    """The id of the app's executor of that number; they count up from 0 and are never used again (semantics P6)."""
    return f"{app}.{number}"


def driver_id(app: str, number: int) -> str:
    """The id of the app's driver of that number, counted like executors."""
    return f"{app}.{_DRIVER}{number}"


def app_of(allocation: str) -> str:
    """The app of that executor or driver; "" if the text is no such id."""
    return allocation.rpartition(".")[0]


def number_of(executor: str) -> int:
    """The number of that executor within its app. Raises: ValueError if it is a driver's id or none."""
    return int(executor.rpartition(".")[2])


def is_driver(allocation: str) -> bool:
    """Whether the id is a driver's and not an executor's."""
    return allocation.rpartition(".")[2].startswith(_DRIVER)
