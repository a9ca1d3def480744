"""The file of a cluster's keys, and what they sign."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scheduler.service.keyring import (
    BadKeys,
    Keyring,
    is_signed,
    keyring_at,
    keyring_of_environment,
    master_id,
)
from scheduler.store.framing import framed


def test_a_keyring_is_read_as_it_was_created(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made = Keyring.create(path)
    assert Keyring.load(path) == made == keyring_at(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert {made.door, made.for_workers().door} == made.doors.keys()
    assert made.masters.keys() == {made.master}


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made = Keyring.create(path)
    with pytest.raises(BadKeys, match="exists already"):
        Keyring.create(path)
    assert Keyring.load(path) == made


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o644])
def test_keys_that_others_may_read_are_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys.json"
    Keyring.create(path)
    path.chmod(mode)
    with pytest.raises(BadKeys, match=f"has mode {mode:04o}; run `chmod 600 {path}`"):
        Keyring.load(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"doors":[],"masters":{},"apps":""}',
        '{"doors":{"a":"00"},"masters":{},"apps":""}',
        f'{{"doors":{{}},"masters":{{"a":"{"00" * 32}"}},"apps":""}}',
        '{"doors":{},"masters":{},"apps":"","more":1}',
    ],
)
def test_what_is_no_file_of_keys_is_refused_in_a_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys.json"
    path.touch(mode=0o600)
    path.write_text(text)
    with pytest.raises(BadKeys, match=f"{path} is not a file of keys"):
        Keyring.load(path)


def test_a_missing_file_of_keys_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert keyring_of_environment() is None
    monkeypatch.setenv("FAIRLOG_KEYS", str(tmp_path / "none"))
    with pytest.raises(BadKeys, match=r"none does not exist; `fairlog keys new"):
        keyring_of_environment()


def test_rotated_keys_sign_with_the_new_ones_and_accept_the_old_ones(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    old = Keyring.create(path)
    old.rotated().write(path, anew=True)
    new = Keyring.load(path)
    assert new.door != old.door
    assert new.master != old.master
    assert new.mac(old.door, b"x") == old.mac(old.door, b"x") != new.mac(new.door, b"x")
    assert new.apps == old.apps
    assert [*tmp_path.iterdir()] == [path]


def test_doors_get_a_keyring_without_the_keys_of_masters(tmp_path: Path) -> None:
    made = Keyring.new()
    path = tmp_path / "door.json"
    made.without_masters().write(path)
    assert Keyring.load(path) == made._replace(masters={})
    assert json.loads(path.read_text())["masters"] == {}
    assert Keyring.load(path).master == ""


def test_workers_get_keys_that_sign_for_workers_only() -> None:
    made = Keyring.new().rotated()
    shared = made.for_workers()
    assert shared.masters == {}
    assert not made.door.startswith("worker-")
    assert shared.door.startswith("worker-")
    assert made.may_sign(shared.door, "worker")
    assert not made.may_sign(shared.door, "operator")
    assert made.may_sign(made.door, "operator")
    assert not made.may_sign("unknown", "worker")
    with pytest.raises(BadKeys, match="keys rotate"):
        Keyring({"a": b""}, {}, b"").for_workers()


def test_a_signature_is_by_one_key_over_one_text() -> None:
    ring, other = Keyring.new(), Keyring.new()
    signature, public = ring.sign(b"text"), ring.public(ring.master)
    assert master_id(public) == ring.master
    assert is_signed(public, signature, b"text")
    assert not is_signed(public, signature, b"another")
    assert not is_signed(other.public(other.master), signature, b"text")
    assert not is_signed(public, "not hex", b"text")
    assert not is_signed("00", signature, b"text")


def test_different_fields_are_never_framed_alike() -> None:
    assert framed("a", "bc") == b"1:a2:bc" != framed("ab", "c")
    assert framed("é", 12, b"\xff") == b"2:\xc3\xa92:121:\xff"
