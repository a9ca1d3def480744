"""A connection to a store whose machine is cut off is noticed, also while it is only listened to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.waiting import HOPELESS_S

STORY = """
import ctypes, fcntl, os, socket, struct, subprocess, sys, threading
from redis.exceptions import RedisError
from fairlog.local.store import bundled_server
from scheduler.store import connection
from tests.waiting import wait_until

NEWUSER, NEWNET, SIOCSIFFLAGS, UP, NONE = 0x10000000, 0x40000000, 0x8914, 1, 77
connection.ANSWER_S = 100_000  # only the kernel tells

if ctypes.CDLL(None).unshare(NEWNET | (NEWUSER if os.geteuid() else 0)):
    sys.exit(NONE)


def loopback(flags):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        fcntl.ioctl(asking, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags))


def ask(*command):
    try:
        store.execute_command(*command)
    except RedisError as error:
        found.append(type(error).__name__)


def answers():
    try:
        return store.ping()
    except RedisError:
        return False


loopback(UP)
found = []
command = [bundled_server(), "--port", "6379", "--save", "", "--dir", "/tmp"]
die = lambda: ctypes.CDLL(None).prctl(1, 9)  # with the one that started it
server = subprocess.Popen(command, stdout=subprocess.DEVNULL, preexec_fn=die)
try:
    store = connection.connect("redis://127.0.0.1:6379/0")
    wait_until(answers, "the store")
    listening = threading.Thread(target=ask, args=("BLPOP", "key", 0))
    listening.start()
    wait_until(lambda: store.info("clients")["blocked_clients"], "the one that listens")
    loopback(0)
    ask("PING")
    listening.join()
finally:
    server.kill()
assert len(found) == 2, found
"""
"""In a network of its own, which is taken down while one connection is idle and another one waits for an answer."""


def test_a_connection_to_a_machine_that_is_cut_off_is_lost_without_an_answer() -> None:
    ended = subprocess.run([sys.executable, "-c", STORY], timeout=HOPELESS_S, check=False)
    if ended.returncode == 77:
        pytest.skip("this machine permits no network of one's own")
    assert ended.returncode == 0
