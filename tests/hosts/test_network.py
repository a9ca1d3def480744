"""The network of several hosts: what is dropped is lost in that direction alone, and everything is well afterwards."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.hosts.network import missing
from tests.waiting import HOPELESS_S

STORY = '''
import socket, subprocess
from tests.hosts.network import Network

network = Network(["desk", "a", "b"])
assert socket.gethostname() == "desk"
ECHO = """
import socket
ear = socket.socket(2, 2)
ear.bind(("", 9))
print(flush=True)
while True: print(ear.recv(9), flush=True)
"""
ears = {
    name: subprocess.Popen(network.on(name, ["python3", "-c", ECHO]), stdout=subprocess.PIPE, text=True)
    for name in ("a", "b")
}


def send(by, to, word):
    say = f"import socket; socket.socket(2, 2).sendto({word!r}, ('{network.address(to)}', 9))"
    subprocess.run(network.on(by, ["python3", "-c", say]), check=True)


def heard(name):
    return ears[name].stdout.readline().strip()


assert [heard(name) for name in ears] == ["", ""]
with network.dropped(["a"], ["b"]):
    send("a", "b", b"lost")
    send("b", "a", b"back")
    assert heard("a") == "b'back'"
with network.apart(["a"], ["b", "desk"]):
    send("b", "a", b"lost")
    send("a", "b", b"lost")
for by, to in (("a", "b"), ("b", "a")):
    send(by, to, b"well")
    assert heard(to) == "b'well'"
for ear in ears.values():
    ear.kill()
'''


@pytest.mark.skipif(bool(missing()), reason=missing() or "there is such a network")
def test_what_one_host_sends_is_lost_and_what_it_is_sent_arrives() -> None:
    ended = subprocess.run([sys.executable, "-c", STORY], timeout=HOPELESS_S, check=False)
    assert ended.returncode == 0
