"""The filter of system calls, run as the kernel would, for each machine and architecture."""

from __future__ import annotations

import errno
import re
import struct
from pathlib import Path

import pytest

from workers.seccomp import program

ALLOWED, KILLED, FAILS = 0x7FFF0000, 0x80000000, 0x00050000
X86_64, I386, ARM64, ARM = 0xC000003E, 0x40000003, 0xC00000B7, 0x40000028
NEW_USER = 0x10000000
CALLS = {
    X86_64: {
        "clone": 56,
        "unshare": 272,
        "userfaultfd": 323,
        "bpf": 321,
        "add_key": 248,
        "request_key": 249,
        "keyctl": 250,
    },
    I386: {
        "clone": 120,
        "unshare": 310,
        "userfaultfd": 374,
        "bpf": 357,
        "add_key": 286,
        "request_key": 287,
        "keyctl": 288,
    },
    ARM64: {
        "clone": 220,
        "unshare": 97,
        "userfaultfd": 282,
        "bpf": 280,
        "add_key": 217,
        "request_key": 218,
        "keyctl": 219,
    },
    ARM: {
        "clone": 120,
        "unshare": 337,
        "userfaultfd": 388,
        "bpf": 386,
        "add_key": 309,
        "request_key": 310,
        "keyctl": 311,
    },
}
MACHINES = [("x86_64", X86_64), ("x86_64", I386), ("aarch64", ARM64), ("aarch64", ARM)]
HEADERS = {X86_64: "unistd_64.h", I386: "unistd_32.h"}


def answer(machine: str, architecture: int, number: int, argument: int = 0) -> int:
    """What the filter returns for a call."""
    code = [struct.unpack_from("=HBBI", program(machine), at) for at in range(0, len(program(machine)), 8)]
    data = struct.pack("<iIQ6Q", number, architecture, 0, argument, 0, 0, 0, 0, 0)
    word = place = 0
    while True:
        kind, then, otherwise, value = code[place]
        place += 1
        if kind == 0x06:
            return int(value)
        if kind == 0x20:
            (word,) = struct.unpack_from("<I", data, value)
            continue
        holds = {0x15: word == value, 0x35: word >= value, 0x45: bool(word & value)}[kind]
        place += then if holds else otherwise


@pytest.mark.parametrize(("machine", "architecture"), MACHINES)
def test_calls_that_attacks_use_fail_and_others_do_not(machine: str, architecture: int) -> None:
    calls = CALLS[architecture]
    for name in ("userfaultfd", "bpf", "add_key", "request_key", "keyctl"):
        assert answer(machine, architecture, calls[name]) == FAILS | errno.EPERM, name
    for number in (425, 426, 427, 435):
        assert answer(machine, architecture, number) == FAILS | errno.ENOSYS, number
    for name in ("clone", "unshare"):
        assert answer(machine, architecture, calls[name], NEW_USER | 0x11) == FAILS | errno.EPERM
        assert answer(machine, architecture, calls[name], 0x6C020011) == ALLOWED  # other namespaces need rights
    withheld = {*calls.values(), 425, 426, 427, 435}
    assert {answer(machine, architecture, number, NEW_USER) for number in range(600) if number not in withheld} == {
        ALLOWED
    }


def test_other_ways_to_call_do_not_lead_around_it() -> None:
    assert answer("x86_64", X86_64, 0x40000000 + 56, NEW_USER) == FAILS | errno.ENOSYS
    assert answer("x86_64", ARM64, 1) == answer("aarch64", X86_64, 1) == KILLED


@pytest.mark.parametrize("architecture", HEADERS)
def test_the_numbers_are_those_of_the_kernels_headers(architecture: int) -> None:
    header = Path("/usr/include/x86_64-linux-gnu/asm") / HEADERS[architecture]
    if not header.exists():
        pytest.skip("the kernel's headers are not installed")
    numbers = dict(re.findall(r"#define __NR_(\w+) (\d+)", header.read_text()))
    assert {name: int(numbers[name]) for name in CALLS[architecture]} == CALLS[architecture]
