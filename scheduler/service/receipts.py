"""Receipts: what a master has answered, signed by its key, so that a log that says otherwise is found out.

A signature covers the answers of one turn: cluster, the log's end after the turn with its digest, the time of the turn,
and the root of a tree of digests whose leaves are the answers and their senders. A receipt is an answer with the path
from its leaf to the root, so a turn with many answers costs one signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct

from scheduler.model.errors import InvalidCommand
from scheduler.model.sender import By
from scheduler.service.keyring import Keyring, is_signed
from scheduler.store.framing import framed

if TYPE_CHECKING:
    from pathlib import Path

_to_json = msgspec.json.Encoder().encode
_KIND = "fairlog receipt 1"


class Answer(NamedTuple):
    """An answer as JSON, and the sender of the message; NOBODY if its commands had been carried out before."""

    text: str
    by: By


class SignedReceipt(Struct, frozen=True, forbid_unknown_fields=True):
    """An answer and its proof: `seq` and `digest` are those of the log's end, `at` is in ms, `path` in hex."""

    cluster: str
    answer: dict[str, Any]
    by: By
    at: int
    seq: int
    digest: str
    path: tuple[str, ...]
    key: str
    signature: str

    def is_by(self, public: str) -> bool:
        """Whether the key with this public half (hex) signed it."""
        root = _leaf(Answer(_to_json(self.answer).decode(), self.by))
        try:
            for other in self.path:
                root = _node(root, bytes.fromhex(other))
        except ValueError:
            return False
        return is_signed(public, self.signature, _signed(self.cluster, self.seq, self.digest, self.at, root))

    def outcomes(self) -> Iterator[tuple[str, int]]:
        """The commands that it says were carried out, and the position of the last event of each, 0 if it had none."""
        identity = str(self.answer.get("id"))
        if "seq" in self.answer:
            yield identity, self.answer["seq"]
        for number, each in enumerate(self.answer.get("answers", ())):
            if "seq" in each:
                yield f"{identity}.{number}", each["seq"]


class Receipt(NamedTuple):
    """A command was carried out: `seq` is the position of its last event, 0 if it had none.

    `signed` is the master's signed answer, that of the whole batch for a part of one; None if it has no key.
    """

    command_id: str
    seq: int
    signed: SignedReceipt | None = None


def signed_answers(  # noqa: PLR0917 - what is signed, in order
    ring: Keyring, cluster: str, seq: int, digest: str, at: int, answers: Sequence[Answer]
) -> list[str]:
    """The answers of a turn that was committed, as JSON, each with its receipt."""
    root, paths = _tree([_leaf(answer) for answer in answers])
    signature = ring.sign(_signed(cluster, seq, digest, at, root))
    signed = []
    for answer, path in zip(answers, paths, strict=True):
        by = [answer.by.account, answer.by.token, answer.by.role, answer.by.door]
        proof = {"cluster": cluster, "by": by, "at": at, "seq": seq, "digest": digest, "path": path}
        proof |= {"key": ring.master, "signature": signature}
        signed.append(f'{answer.text[:-1]},"receipt":{_to_json(proof).decode()}}}')
    return signed


def receipt_of(answer: dict[str, Any]) -> SignedReceipt | None:
    """The receipt of a decoded answer, which is left without it; None if the master has no key."""
    proof = answer.pop("receipt", None)
    return None if proof is None else msgspec.convert({"answer": answer, **proof}, SignedReceipt)


def write_receipts(path: Path, receipts: Iterable[SignedReceipt]) -> None:
    """Append the receipts to a file, a line of JSON each."""
    with path.open("ab") as file:
        file.write(b"".join(_to_json(receipt) + b"\n" for receipt in receipts))


def read_receipts(lines: Iterable[bytes]) -> Iterator[SignedReceipt]:
    """The receipts of these lines. Raises: InvalidCommand naming a line that holds none."""
    for number, line in enumerate(lines, 1):
        try:
            yield msgspec.json.decode(line, type=SignedReceipt)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidCommand(f"line {number} is no receipt: {error}") from None


def _signed(cluster: str, seq: int, digest: str, at: int, root: bytes) -> bytes:
    return framed(_KIND, cluster, seq, digest, at, root)


def _leaf(answer: Answer) -> bytes:
    return blake2b(framed("answer", _to_json(answer.by), answer.text), digest_size=32).digest()


def _node(one: bytes, other: bytes) -> bytes:
    return blake2b(framed("pair", *sorted((one, other))), digest_size=32).digest()


def _tree(leaves: Sequence[bytes]) -> tuple[bytes, list[list[str]]]:
    """The root, and of each leaf the digests on its path to the root."""
    paths: list[list[str]] = [[] for _ in leaves]
    level = [(leaf, [number]) for number, leaf in enumerate(leaves)]
    while len(level) > 1:
        above = []
        for (one, left), (other, right) in zip(level[::2], level[1::2], strict=False):
            for number in left:
                paths[number].append(other.hex())
            for number in right:
                paths[number].append(one.hex())
            above.append((_node(one, other), left + right))
        level = above + (level[-1:] if len(level) % 2 else [])
    return level[0][0], paths
