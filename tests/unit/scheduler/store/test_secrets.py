"""The values of secret variables: what the store holds of them, and who can open it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.errors import DuplicateApp
from scheduler.service.client import CommandClient
from scheduler.store.keys import Keys
from scheduler.store.secrets import KEY_BYTES, UnreadableSecrets, seal, unseal
from scheduler.store.task_queue import Worklist
from tests.property.given import submission

if TYPE_CHECKING:
    from redis import Redis

KEY, OTHER = bytes(range(KEY_BYTES)), bytes(KEY_BYTES)
SECRETS = {"TOKEN": "hush-hush", "EMPTY": "", "ODD": "\udcff=ä\n"}

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.dictionaries(texts, texts), st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES))
def test_what_is_sealed_is_opened_by_the_same_key(secrets: dict[str, str], key: bytes) -> None:
    sealed = seal(key, "c", "app-3", secrets)
    assert unseal(key, "c", "app-3", sealed) == secrets
    assert sealed == seal(key, "c", "app-3", secrets), "a repeated submission stores the same"


def test_the_store_sees_no_value_and_no_two_are_sealed_alike() -> None:
    sealed = [seal(KEY, cluster, app, {name: "hush-hush"}) for cluster in "cd" for app in "ab" for name in ("N", "M")]
    assert not any(b"hush" in value for each in sealed for value in each.values())
    assert len({value for each in sealed for value in each.values()}) == len(sealed)


def test_without_a_key_values_are_stored_as_they_are() -> None:
    plain = seal(None, "c", "a", SECRETS)
    assert plain[b"TOKEN"] == b"hush-hush"
    assert unseal(None, "c", "a", plain) == SECRETS


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        (OTHER, "they are sealed with the key [0-9a-f]{8}, this host has [0-9a-f]{8}"),
        (None, "they are sealed with the key [0-9a-f]{8}, and this host has no key for secrets"),
        (b"short", "the key for secrets must have 32 bytes, not 5"),
    ],
)
def test_another_key_is_named_in_a_sentence(key: bytes | None, sentence: str) -> None:
    with pytest.raises(UnreadableSecrets, match=f"^cannot read the secrets of app-3: {sentence}$"):
        unseal(key, "c", "app-3", seal(KEY, "c", "app-3", SECRETS))


def test_a_value_cannot_be_moved_altered_or_replaced() -> None:
    sealed = seal(KEY, "c", "app-3", SECRETS)
    moved = {b"TOKEN": sealed[b"ODD"]}
    for cluster, app, stored in (("c", "app-4", sealed), ("d", "app-3", sealed), ("c", "app-3", moved)):
        with pytest.raises(UnreadableSecrets, match="was altered"):
            unseal(KEY, cluster, app, stored)
    value = sealed[b"TOKEN"]
    for place in range(7, len(value)):
        bent = value[:place] + bytes([value[place] ^ 1]) + value[place + 1 :]
        with pytest.raises(UnreadableSecrets, match="the value of TOKEN was altered"):
            unseal(KEY, "c", "app-3", {b"TOKEN": bent})
    for cut in range(7, len(value)):
        with pytest.raises(UnreadableSecrets, match="the value of TOKEN was altered"):
            unseal(KEY, "c", "app-3", {b"TOKEN": value[:cut]})
    with pytest.raises(UnreadableSecrets, match="the value of TOKEN is not sealed"):
        unseal(KEY, "c", "app-3", {b"TOKEN": b"planted"})


def test_clients_seal_and_workers_open(fake: Redis) -> None:
    client = CommandClient(fake, "c", timeout_s=0.05, secret_key=KEY)
    app = submission("a")
    assert client.put_aside(app, SECRETS)
    fake.rename(Keys("c").unclaimed("a", app.company, app.user), Keys("c").secrets("a"))
    assert Worklist(fake, "c", secret_key=KEY).secrets("a") == SECRETS
    assert b"hush-hush" not in repr(fake.hgetall(Keys("c").secrets("a"))).encode()
    client.put_aside(app, SECRETS)
    with pytest.raises(DuplicateApp):
        client.submit(submission("a"), {"TOKEN": "another"})
