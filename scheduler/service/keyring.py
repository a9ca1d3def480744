"""The keys of a cluster, in a file of its operator's.

- *Door keys* (HMAC-SHA256) sign messages in the inbox. API servers hold them, and masters, which check. Those whose
  ids begin with `worker-` sign for workers only; workers that use the store themselves hold these.
- *Masters' keys* (Ed25519) sign receipts and seals. Only masters hold them; the log names the public halves.
- *The key of app secrets* (AES-256) encrypts the values of apps' variables. API servers and workers hold it.

The last key of a kind signs; the earlier ones are still accepted. A master's key has the first 16 hex digits of the
SHA-256 of its public half as its id, so an id that was written down proves the key.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.model.errors import FairlogError
from scheduler.service.private import NotPrivate, drafted, read_private

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEYS_VARIABLE = "FAIRLOG_KEYS"
"""The environment variable that names the file."""
KEYS_FILE = "keys.json"
"""The file in the data folder of an `up`."""
KEY_BYTES = 32
OF_WORKERS = "worker-"
"""How the ids of door keys begin that sign for workers only."""
_KINDS = ("doors", "masters")


class BadKeys(FairlogError):
    """The file of keys cannot be used."""


class Keyring(NamedTuple):
    """Door keys and masters' private keys by id, the oldest first, and the key of app secrets, "" if it is withheld."""

    doors: Mapping[str, bytes]
    masters: Mapping[str, bytes]
    apps: bytes

    def __repr__(self) -> str:
        return f"Keyring(doors={[*self.doors]}, masters={[*self.masters]})"

    @classmethod
    def new(cls) -> Keyring:
        """A keyring with one new key of each kind."""
        return cls(_new_doors(), dict([_new_master()]), secrets.token_bytes(KEY_BYTES))

    @classmethod
    def create(cls, path: Path) -> Keyring:
        """Write a new keyring to the new file `path`. Raises: BadKeys if it exists or cannot be written."""
        made = cls.new()
        made.write(path)
        return made

    @classmethod
    def load(cls, path: Path) -> Keyring:
        """The keyring in the file `path`. Raises: BadKeys if others may read it, or it is missing or malformed."""
        try:
            text = read_private(path)
        except NotPrivate as error:
            raise BadKeys(str(error)) from None
        except FileNotFoundError:
            raise BadKeys(f"{path} does not exist; `fairlog keys new {path}` makes keys") from None
        except OSError as error:
            raise BadKeys(f"{path} cannot be read: {error.strerror}") from error
        try:
            return cls.of_json(text)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadKeys(f"{path} is not a file of keys ({error}); `fairlog keys new FILE` makes one") from None

    @classmethod
    def of_json(cls, text: str | bytes) -> Keyring:
        """The keyring that `as_json` has written. Raises: ValueError, KeyError, TypeError or AttributeError."""
        values: Any = json.loads(text)
        doors, masters = ({name: _key(text) for name, text in values[kind].items()} for kind in _KINDS)
        if unknown := values.keys() - {*_KINDS, "apps"}:
            raise ValueError(f"unknown entry {min(unknown)!r}")
        for name, key in masters.items():
            if name != master_id(public_of(key)):
                raise ValueError(f"the id {name!r} is not that of its key")
        return cls(doors, masters, _key(values["apps"]) if values["apps"] else b"")

    def write(self, path: Path, *, anew: bool = False) -> None:
        """Write the keys to `path`, readable by its owner only; `anew` replaces an existing file. Raises: BadKeys."""
        try:
            with drafted(path, self.as_json().encode() + b"\n") as draft:
                if anew:
                    draft.replace(path)
                else:
                    path.hardlink_to(draft)
        except FileExistsError:
            raise BadKeys(
                f"{path} exists already; choose another name, or add keys with `fairlog keys rotate`"
            ) from None
        except OSError as error:
            raise BadKeys(f"{path} cannot be written: {error.strerror}") from error

    def as_json(self) -> str:
        """The keys as JSON."""
        doors, masters = ({name: key.hex() for name, key in keys.items()} for keys in (self.doors, self.masters))
        return json.dumps({"doors": doors, "masters": masters, "apps": self.apps.hex()}, indent=2)

    def rotated(self) -> Keyring:
        """These keys with new door keys and, if it holds such, a new master's key; these sign from now on.

        The key of app secrets stays: what is encrypted by it is not encrypted anew.
        """
        master = dict([_new_master()]) if self.masters else {}
        return Keyring({**self.doors, **_new_doors()}, {**self.masters, **master}, self.apps)

    def without_masters(self) -> Keyring:
        """The keys that API servers hold."""
        return self._replace(masters={})

    def for_workers(self) -> Keyring:
        """The keys of workers that use the store themselves. Raises: BadKeys if none of them signs for workers only."""
        doors = {name: key for name, key in self.doors.items() if name.startswith(OF_WORKERS)}
        if not doors:
            raise BadKeys("none of these keys signs for workers only; `fairlog keys rotate FILE` adds one")
        return Keyring(doors, {}, self.apps)

    @property
    def door(self) -> str:
        """The id of the door key that signs, one for workers only if there is no other; "" without one."""
        return ["", *self.doors, *(name for name in self.doors if not name.startswith(OF_WORKERS))][-1]

    def may_sign(self, door: str, role: str) -> bool:
        """Whether the ring has that door key, and it signs for the role."""
        return door in self.doors and (role == "worker" or not door.startswith(OF_WORKERS))

    @property
    def master(self) -> str:
        """The id of the master's key that signs; "" without one."""
        return ["", *self.masters][-1]

    def mac(self, door: str, framed: bytes) -> str:
        """Hex HMAC-SHA256 of `framed` by that door key. Raises: KeyError if it is unknown."""
        return hmac.digest(self.doors[door], framed, "sha256").hex()

    def sign_read(self, text: bytes) -> tuple[str, str]:
        """The door key that signs, and its MAC of an entry of the reads (`scheduler.store.reads`)."""
        return self.door, self.mac(self.door, text)

    def is_signed(self, text: bytes, key: str, mac: str) -> bool:
        """Whether an API server signed the text: by a door key of this ring that signs for more than workers."""
        return self.may_sign(key, "") and hmac.compare_digest(self.mac(key, text).encode(), mac.encode())

    def sign(self, framed: bytes, master: str = "") -> str:
        """Hex Ed25519 signature of `framed`, by the master's key that signs or the one named."""
        return _private(self.masters[master or self.master]).sign(framed).hex()

    def public(self, master: str) -> str:
        """The public half of a master's key, in hex."""
        return public_of(self.masters[master])


def keyring_of_environment() -> Keyring | None:
    """The keyring that `FAIRLOG_KEYS` names, None without. Raises: as `Keyring.load`."""
    path = os.environ.get(KEYS_VARIABLE)
    return Keyring.load(Path(path)) if path else None


def keyring_at(path: Path) -> Keyring:
    """The keyring at `path`, created if there is none. Raises: as `Keyring.load`."""
    return Keyring.load(path) if path.exists() else Keyring.create(path)


def public_of(private: bytes) -> str:
    """The public half of an Ed25519 key, in hex."""
    return _private(private).public_key().public_bytes_raw().hex()


def master_id(public: str) -> str:
    """The id of the master's key with that public half."""
    return sha256(bytes.fromhex(public)).hexdigest()[:16]


def is_signed(public: str, signature: str, framed: bytes) -> bool:
    """Whether `signature` (hex) is that of `framed` by the key with the public half `public` (hex)."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 (most clients need none of it)
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 (likewise)

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), framed)
    except (InvalidSignature, ValueError):
        return False
    return True


@lru_cache(maxsize=16)
def _private(key: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 (most clients need none of it)

    return ed25519.Ed25519PrivateKey.from_private_bytes(key)


def _new_doors() -> dict[str, bytes]:
    names = f"{OF_WORKERS}{secrets.token_hex(4)}", secrets.token_hex(4)
    return {name: secrets.token_bytes(KEY_BYTES) for name in names}


def _new_master() -> tuple[str, bytes]:
    key = secrets.token_bytes(KEY_BYTES)
    return master_id(public_of(key)), key


def _key(text: Any) -> bytes:  # noqa: ANN401 - JSON
    key = bytes.fromhex(text)
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
    return key
