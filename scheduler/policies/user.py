"""Which of a company's users is admitted from next (semantics U)."""

from __future__ import annotations

from collections.abc import Callable

UserKey = tuple[int, int, str]


def longest_wait(user: str, last_selected: int, oldest_pending: int) -> UserKey:
    """The user selected longest ago first (semantics U1).

    `last_selected` is the log position of the user's last admission, 0 = never; those never selected
    come first, among them the one whose oldest pending app was submitted first (`oldest_pending` is
    its log position), then by name.
    """
    return last_selected, 0 if last_selected else oldest_pending, user


UserPolicy = Callable[[str, int, int], UserKey]
USER_POLICIES: dict[str, UserPolicy] = {"longest-wait": longest_wait}
