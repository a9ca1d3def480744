"""Completion in the shell of what the cluster knows: apps, companies, workers, settings."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from click.shell_completion import CompletionItem

from fairlog.cli.target import Target

if TYPE_CHECKING:
    import click

WAIT_S = 2.0
"""How long completion waits for the cluster; then it offers nothing."""


def complete(what: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """A completion of `app`, `company`, `worker`, `setting` or `account`, for `shell_complete` of click."""

    def offered(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = ctx.params.get(param.name or "") or ()
        taken = given if isinstance(given, tuple) else ()
        return [item for item in _known(ctx, what) if item.value.startswith(incomplete) and item.value not in taken]

    return offered


def _known(ctx: click.Context, what: str) -> list[CompletionItem]:
    """All of them with what tells them apart; none if the cluster cannot be asked."""
    with suppress(Exception):
        from fairlog.cli.session import opened  # noqa: PLC0415 (help and wrong usage need no store)

        session = opened(ctx.find_object(Target) or Target(), timeout_s=WAIT_S)
        try:
            return [CompletionItem(name, help=text) for name, text in _ask(session, what)]
        finally:
            session.close()
    return []


def _ask(session: Any, what: str) -> list[tuple[str, str]]:  # noqa: ANN401 (a Session, which is slow to import)
    if what == "app":
        return [(app["app"], f"{app['name']}, {app['state']}") for app in session.ask("apps", everything=False)]
    if what == "setting":
        return [(f"{name}=", f"now {value}") for name, value in session.ask("settings").items()]
    views = {"company": "companies", "worker": "workers", "account": "accounts"}
    return [(each[what], "") for each in session.ask(views[what])]
