"""The values of an app's secret variables, sealed for the store.

Clients seal them and workers open them with a key that the store never has. A value is sealed with AES-256-GCM and
bound to its cluster, app and variable. The nonce is derived from the value and its context by a key of its own, so a
repeated submission stores the same bytes, and different values have different nonces.

A sealed value: a zero byte, which no variable can contain, the format, the id of the key, the nonce, the ciphertext.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from scheduler.model.errors import FairlogError
from scheduler.model.text import in_bytes, of_bytes
from scheduler.store.framing import framed

KEY_BYTES = 32
_MAGIC = b"\0s1"
_ID_BYTES = 4
_NONCE_BYTES = 12


class UnreadableSecrets(FairlogError):
    """The secrets of an app cannot be opened."""


def seal(key: bytes | None, cluster: str, app: str, secrets: Mapping[str, str]) -> dict[bytes, bytes]:
    """What the store holds of the secrets of `app`: variable -> sealed value; without a key, the value itself."""
    plain = {in_bytes(name): in_bytes(value) for name, value in secrets.items()}
    if not key:
        return plain
    return {name: _sealed(key, _context(cluster, app, name), value) for name, value in plain.items()}


def unseal(key: bytes | None, cluster: str, app: str, stored: Mapping[bytes, bytes]) -> dict[str, str]:
    """The secrets that `seal` made `stored` of. Raises: UnreadableSecrets naming what is wrong."""
    try:
        return {
            of_bytes(name): of_bytes(_opened(key, _context(cluster, app, name), name, value))
            for name, value in stored.items()
        }
    except UnreadableSecrets as error:
        raise UnreadableSecrets(f"cannot read the secrets of {app}: {error}") from None


def _sealed(key: bytes, context: bytes, value: bytes) -> bytes:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 (slow to import)

    nonce = _derived(key, "nonce", framed(context, value))[:_NONCE_BYTES]
    return _MAGIC + _id_of(key) + nonce + AESGCM(_derived(key, "seal")).encrypt(nonce, value, context)


def _opened(key: bytes | None, context: bytes, name: bytes, stored: bytes) -> bytes:
    if not stored.startswith(_MAGIC):
        if not key:
            return stored
        raise UnreadableSecrets(f"the value of {of_bytes(name)} is not sealed; submit the app again")
    identity, rest = _split(stored[len(_MAGIC) :], _ID_BYTES)
    if not key:
        raise UnreadableSecrets(f"they are sealed with the key {identity.hex()}, and this host has no key for secrets")
    if identity != _id_of(key):
        raise UnreadableSecrets(f"they are sealed with the key {identity.hex()}, this host has {_id_of(key).hex()}")
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 (as in `_sealed`)
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 (likewise)

    nonce, sealed = _split(rest, _NONCE_BYTES)
    try:
        return AESGCM(_derived(key, "seal")).decrypt(nonce, sealed, context)
    except (InvalidTag, ValueError):
        raise UnreadableSecrets(f"the value of {of_bytes(name)} was altered") from None


def _split(text: bytes, at: int) -> tuple[bytes, bytes]:
    return text[:at], text[at:]


def _context(cluster: str, app: str, name: bytes) -> bytes:
    return framed(cluster.encode(), app.encode(), name)


def _derived(key: bytes, purpose: str, text: bytes = b"") -> bytes:
    """32 bytes from the key, for one purpose."""
    if len(key) != KEY_BYTES:
        raise UnreadableSecrets(f"the key for secrets must have {KEY_BYTES} bytes, not {len(key)}")
    return hmac.digest(key, framed(b"fairlog secrets", purpose.encode(), text), hashlib.sha256)


def _id_of(key: bytes) -> bytes:
    """Tells keys apart, without telling anything about them."""
    return _derived(key, "id")[:_ID_BYTES]
