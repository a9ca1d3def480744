"""Which system calls tasks of a cell may not make: doors of the kernel that few programs need and attacks use.

A program for the kernel's filter, as `seccomp(2)` describes it and bubblewrap loads it (`--seccomp`). A process cannot
leave it, nor can its children.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
"""BPF: load a word, jump if it is equal, at least, or has one of these bits; return."""
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
"""Where they are in `struct seccomp_data`; of an argument, its lower half, as these machines are little-endian."""
_ALLOW, _KILL, _FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_NEW_USER = 0x10000000
"""`CLONE_NEWUSER`, a flag of `clone` and `unshare`."""
_X32 = 0x40000000
"""Numbers from here on are those of another way to call on x86-64, which nobody uses."""


class _Calls(NamedTuple):
    """The numbers of system calls, as the processes of one architecture make them."""

    architecture: int
    makes_namespaces: tuple[int, int]
    """`clone` and `unshare`, whose first argument tells whether for users."""
    not_permitted: tuple[int, ...]
    """`userfaultfd`, `bpf`, `add_key`, `request_key`, `keyctl`."""
    x32: bool = False


_ABSENT = (425, 426, 427, 435)
"""`io_uring_setup`, `_enter`, `_register`, and `clone3`, whose flags no filter sees: programs do without where they are
not there. The same numbers everywhere."""
_X86_64 = _Calls(0xC000003E, (56, 272), (323, 321, 248, 249, 250), x32=True)
_I386 = _Calls(0x40000003, (120, 310), (374, 357, 286, 287, 288))
_ARM64 = _Calls(0xC00000B7, (220, 97), (282, 280, 217, 218, 219))
_ARM = _Calls(0x40000028, (120, 337), (388, 386, 309, 310, 311))
_MACHINES = {"x86_64": (_X86_64, _I386), "aarch64": (_ARM64, _ARM)}
"""Processes of which architectures a machine runs. Others are killed."""


def is_known_machine() -> bool:
    """Whether there is a filter for this machine."""
    return platform.machine() in _MACHINES


def filter_file() -> int | None:
    """A file with the filter, to be closed; None on a machine for which there is none."""
    if not is_known_machine():
        return None
    file = os.memfd_create("seccomp")
    os.write(file, program(platform.machine()))
    os.lseek(file, 0, os.SEEK_SET)
    return file


def program(machine: str) -> bytes:
    """The filter for a machine, an array of `struct sock_filter`. Raises: KeyError for one that is not known."""
    return b"".join(struct.pack("=HBBI", *each) for each in _instructions(_MACHINES[machine]))


_Instruction = tuple[int, int, int, int]
"""Code, how many instructions to skip if the condition holds, if it does not, and its value."""


def _instructions(known: Iterable[_Calls]) -> Iterator[_Instruction]:
    yield _LOAD, 0, 0, _ARCHITECTURE
    for calls in known:
        block = list(_block(calls))
        yield _EQUAL, 0, len(block), calls.architecture
        yield from block
    yield _RETURN, 0, 0, _KILL


def _block(calls: _Calls) -> Iterator[_Instruction]:
    """The filter for processes of one architecture; it always returns."""
    yield _LOAD, 0, 0, _NUMBER
    if calls.x32:
        yield from _if(_AT_LEAST, _X32, _FAIL | errno.ENOSYS)
    for number in _ABSENT:
        yield from _if(_EQUAL, number, _FAIL | errno.ENOSYS)
    for number in calls.not_permitted:
        yield from _if(_EQUAL, number, _FAIL | errno.EPERM)
    one, other = calls.makes_namespaces
    yield _EQUAL, 1, 0, one
    yield _EQUAL, 0, 3, other
    yield _LOAD, 0, 0, _FIRST_ARGUMENT
    yield from _if(_HAS_BITS, _NEW_USER, _FAIL | errno.EPERM)
    yield _RETURN, 0, 0, _ALLOW


def _if(condition: int, value: int, answer: int) -> Iterator[_Instruction]:
    yield condition, 0, 1, value
    yield _RETURN, 0, 0, answer
