"""The verbs that prepare a store: store acl."""

from __future__ import annotations

import re
from pathlib import Path

import click

from fairlog.cli import render
from fairlog.cli.groups import VerbGroup
from fairlog.cli.params import FOLDER, read_text
from fairlog.cli.target import Target, target_options
from scheduler.service.private import private_folder, write_private
from scheduler.store.acl import ROLES, acl_file, hash_of, new_password
from scheduler.store.connection import PASSWORD_FILE

_USERS = {role.user: role for role in ROLES}


@click.group(cls=VerbGroup)
@target_options()
def store() -> None:
    """Prepare the store that masters, API servers and workers use."""


def _given(text: str) -> tuple[str, str]:
    user, _, found = read_text(text).partition("=")
    if user not in _USERS or not re.fullmatch(r"[0-9a-f]{64}", found):
        raise click.BadParameter(f"write USER=SHA256, where USER is one of {', '.join(_USERS)}")
    return user, found


@store.command()
@click.option(
    "--passwords",
    type=FOLDER,
    metavar="DIR",
    help="Folder with a file per user that holds its password. Missing ones are generated.",
)
@click.option(
    "--hash", "given", type=_given, multiple=True, metavar="USER=SHA256", help="Hash of a user's password. Repeatable."
)
@target_options()
@click.pass_obj
def acl(target: Target, *, passwords: Path | None, given: tuple[tuple[str, str], ...]) -> None:
    """Print an ACL file for a store with one cluster.

    The file turns the default user off, which is permitted everything all the same: the server reads its data as that
    user. It has a user for masters, API servers, auditors and replicas, each limited to the keys and commands that it
    needs. Passwords are in it as SHA-256. Without --passwords and --hash they
    are generated and printed once, on stderr. The file has no administrator: add a line of your own if you want one.
    """
    hashes = dict(given)
    for user, role in _USERS.items():
        if user not in hashes:
            password, where = _password(user, passwords)
            hashes[user] = hash_of(password)
            render.say(f"{user} ({role.purpose}): {where}")
    click.echo(acl_file(target.cluster or "default", hashes), nl=False)
    render.say(
        "Save the output as users.acl, readable by the server only, and start the server with --aclfile users.acl. "
        f"Then start masters with FAIRLOG_STORE=rediss://fairlog-master@HOST:6379/0 and {PASSWORD_FILE}=FILE."
    )


def _password(user: str, folder: Path | None) -> tuple[str, str]:
    """The password of the user, and what to tell about it."""
    if folder is None:
        password = new_password()
        return password, f"password {password}"
    path = private_folder(folder) / user
    if not path.exists():
        write_private(path, f"{new_password()}\n")
    password = path.read_text(encoding="utf-8").strip()
    if not password:
        raise click.UsageError(f"{path} is empty; write a password into it, or remove it")
    return password, f"password in {path}"
