"""How programs of this user find the API of their cluster, and the token that `fairlog login` keeps for them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fairlog.api.addresses import TOKEN_FILE_VARIABLE, TOKEN_VARIABLE, UNIX, URL_VARIABLE
from fairlog.errors import BadCredentials
from fairlog.folders import config_folder
from fairlog.local.running import find_running
from scheduler.model.errors import NoMaster
from scheduler.service.private import NotPrivate, drafted, private_folder, read_private


class Credentials(NamedTuple):
    """The URLs of API servers, separated by commas, and the token with which they are used, "" for none."""

    api: str
    token: str


def two_places() -> str:
    """Why the environment does not say which cluster is meant, "" if it does: a folder stands beside another place."""
    if not os.environ.get("FAIRLOG_DATA"):
        return ""
    others = [name for name in ("FAIRLOG_STORE", URL_VARIABLE) if os.environ.get(name)]
    return f"{others[0]} and FAIRLOG_DATA name two places; unset one of them" if others else ""


def credentials_file() -> Path:
    """Where `fairlog login` keeps the credentials of this user."""
    return config_folder() / "credentials.json"


def kept() -> Credentials | None:
    """The credentials that the last `fairlog login` has kept. Raises: BadCredentials if others can read them."""
    path = credentials_file()
    try:
        text = read_private(path)
    except FileNotFoundError:
        return None
    except NotPrivate as error:
        raise BadCredentials(str(error)) from None
    try:
        said = json.loads(text)
    except ValueError:
        said = None
    if not isinstance(said, dict) or not all(isinstance(said.get(name), str) for name in Credentials._fields):
        raise BadCredentials(f"{path} holds no credentials; run `fairlog login`")
    return Credentials(said["api"], said["token"])


@contextmanager
def keeping(credentials: Credentials) -> Iterator[None]:
    """Keep the credentials in place of earlier ones unless the block fails; they are on disk before it begins.

    They are also kept if the block raises NoMaster, because they may be valid. Raises: OSError.
    """
    path = credentials_file()
    private_folder(path.parent)
    text = json.dumps(credentials._asdict(), indent=2).encode() + b"\n"
    with drafted(path, text) as draft:
        try:
            yield
        except NoMaster:
            draft.replace(path)
            raise
        draft.replace(path)


def forget() -> None:
    """Remove the credentials that are kept."""
    credentials_file().unlink(missing_ok=True)


def token_named() -> str:
    """The token of FAIRLOG_TOKEN, else that in the file that FAIRLOG_TOKEN_FILE names; "" without both.

    Raises: BadCredentials if the file cannot be read or is empty, or if that is more than one word.
    """
    where, token = f"{TOKEN_VARIABLE} has", os.environ.get(TOKEN_VARIABLE, "").strip()
    if not token and (path := os.environ.get(TOKEN_FILE_VARIABLE, "")):
        where = f"{TOKEN_FILE_VARIABLE} names {path}, which has"
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadCredentials(f"{TOKEN_FILE_VARIABLE} names {path}, which cannot be read: {error}") from None
        if not token:
            raise BadCredentials(f"{where} nothing in it; `fairlog token new` and `fairlog worker invite` print tokens")
    if len(token.split()) > 1:
        raise BadCredentials(f"{where} more than a token in it; a token is one word, and begins with fl_")
    return token


def named(data: Path | None = None) -> Credentials | None:
    """The API that this user's programs use, and the token; None if they use the running `up` as its owner.

    FAIRLOG_API with FAIRLOG_TOKEN, else FAIRLOG_TOKEN at the API of the running `up`, else what `fairlog login` keeps.
    With `data`, the folder of an `up`, only its API is used. Raises: BadCredentials.
    """
    token = token_named()
    urls = os.environ.get(URL_VARIABLE) if data is None else None
    if urls and token:
        return Credentials(urls, token)
    if token and (up := find_running(data)) is not None:
        return Credentials(f"{UNIX}{up.socket}", token)
    known = kept() if data is None else None
    if urls:
        return Credentials(urls, known.token if known is not None and known.api == urls else "")
    if token and known is None:
        raise BadCredentials(f"{TOKEN_VARIABLE} is set, but no API server is named: set {URL_VARIABLE} to its URL")
    return known and known._replace(token=token or known.token)
