"""How `fairlog mpirun` calls mpirun, and what it gives its executors."""

from __future__ import annotations

import errno
import io
import os
import socket
import subprocess
import sys
import threading
import zipfile
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fairlog.engines import mpi, mpi_node
from scheduler.model.staged import SCRIPT, digest_of, script_of_value
from tests.waiting import HOPELESS_S

if TYPE_CHECKING:
    from collections.abc import Iterator

OPEN_MPI, OPEN_MPI_4 = "mpirun (Open MPI) 5.0.11\n", "mpirun (Open MPI) 4.1.4\n"
MPICH = "HYDRA build details:\n    Version:                                 5.0.2\n"


@pytest.mark.parametrize("version", [OPEN_MPI, OPEN_MPI_4])
def test_open_mpi_reaches_hosts_by_the_agent(version: str) -> None:
    words, needs = mpi_node.launch(version, "/x/agent", 2, ["h1", "h2"])
    assert words == ["mpirun", "--leave-session-attached", "--host", "fairlog-0:2,fairlog-1:2", "-n", "4"]
    assert needs["OMPI_MCA_plm_rsh_agent"] == needs["PRTE_MCA_plm_ssh_agent"] == "/bin/sh /x/agent"
    assert "OMPI_MCA_coll" not in needs


def test_executors_on_one_worker_are_hosts_of_their_own() -> None:
    words, needs = mpi_node.launch(OPEN_MPI, "/x/agent", 1, ["h1", "h1", "h2"])
    assert "fairlog-0:1,fairlog-1:1,fairlog-2:1" in words
    assert needs["OMPI_MCA_coll"] == "^han"


def test_mpich_reaches_hosts_by_the_agent_and_passes_no_variables_on() -> None:
    words, needs = mpi_node.launch(MPICH, "/x/agent", 1, ["h1", "h2"])
    assert words[:7] == ["mpirun", "-launcher", "ssh", "-launcher-exec", "/x/agent", "-localhost", "h1"]
    assert words[7:] == ["-genvnone", "-hosts", "fairlog-0:1,fairlog-1:1", "-n", "2"]
    assert needs == {}


@pytest.mark.parametrize(("version", "said"), [("", "nothing"), ("a launcher of lunch\n1.0", "a launcher of lunch")])
def test_an_unknown_mpirun_is_refused(version: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"says '{said}', and only Open MPI and MPICH are known"):
        mpi_node.launch(version, "/x/agent", 1, ["h1", "h2"])


def test_the_copy_needs_the_standard_library_alone(tmp_path: Path) -> None:
    own, digest = mpi.variables()
    content = script_of_value(own[SCRIPT])
    assert digest_of(content) == digest == digest_of(mpi.copied())
    program = tmp_path / mpi_node.PROGRAM
    program.write_bytes(content)
    assert "fairlog/engines/wire.py" in zipfile.ZipFile(io.BytesIO(content)).namelist()
    environment = {"FAIRLOG_RANK": "0", "FAIRLOG_HOSTS": "h1,h2", "FAIRLOG_MASTER_PORT": "0", "PATH": str(tmp_path)}
    command = [sys.executable, "-I", "-S", str(program), "1", "true"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 127
    assert done.stderr == (
        "fairlog: mpirun cannot be run on this worker: No such file or directory; give its folder by --env PATH=…\n"
    )


class Listener(socket.socket):
    """The socket of rank 0, which raises these first, then takes that many connections, and is closed."""

    def begin(self, troubles: list[OSError], number: int) -> None:
        """Listen on a free port of this host."""
        self.troubles, self.number = troubles, number
        self.bind(("127.0.0.1", 0))
        self.listen(8)

    def accept(self) -> tuple[socket.socket, Any]:
        """As a socket does, besides."""
        if self.troubles:
            raise self.troubles.pop()
        if not self.number:
            self.close()
        self.number -= 1
        return super().accept()


@contextmanager
def rank_0(monkeypatch: pytest.MonkeyPatch, *troubles: OSError, number: int) -> Iterator[Listener]:
    """The socket of rank 0, and in the variables of this process the way to it."""
    own, _ = mpi.variables()
    monkeypatch.setattr(mpi_node, "AGAIN_S", 0.0)
    with Listener() as server:
        server.begin([*troubles], number)
        about = {"FAIRLOG_MASTER_ADDR": "127.0.0.1", "FAIRLOG_MASTER_PORT": str(server.getsockname()[1])}
        for name, value in {**own, **about}.items():
            monkeypatch.setenv(name, value)
        yield server


def run_there(codes: list[int]) -> None:
    """Ask rank 1 by way of rank 0 to run a command, and note its code."""
    codes.append(mpi_node.main(["agent", "fairlog-1", "exit 7"]))


def rank_1() -> None:
    """Run the one command that rank 0 wants run here."""
    with closing(mpi_node.call_first(rank=1)) as line:
        line.say(code=mpi_node._run(line.hear()["run"]))


def codes_of(server: Listener) -> list[int]:
    """The codes of one command that is run on rank 1, while its socket is served here to the end."""
    codes = list[int]()
    others = [threading.Thread(target=rank_1), threading.Thread(target=run_there, args=(codes,))]
    for each in others:
        each.daemon = True
        each.start()
    ranks = mpi_node.OtherRanks()
    ranks.serve(server)
    assert server.number < 0
    for each in others:
        each.join(HOPELESS_S)
    for line in ranks._lines.values():
        line.close()
    return codes


def test_ranks_are_served_after_one_could_not_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    troubles = [OSError(number, os.strerror(number)) for number in (errno.EMFILE, errno.ECONNABORTED)]
    with rank_0(monkeypatch, *troubles, number=2) as server:
        assert codes_of(server) == [7]


def test_a_rank_comes_again_for_whom_there_was_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    begin, refused = threading.Thread.start, list[str]()

    def start(thread: threading.Thread) -> None:
        if "_welcome" in thread.name and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(mpi_node, "_HANDSHAKES", 2)
    with rank_0(monkeypatch, number=3) as server:
        assert codes_of(server) == [7]
    assert len(refused) == 1


def test_connections_beyond_those_that_may_be_silent_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mpi_node, "_HANDSHAKES", 1)
    monkeypatch.setattr(mpi_node, "FIRST_WORDS_S", HOPELESS_S)
    with rank_0(monkeypatch, number=1 << 20) as server:
        where, others = server.getsockname(), mpi_node.OtherRanks()
        threading.Thread(target=others.serve, args=(server,), daemon=True).start()
        with socket.create_connection(where), socket.create_connection(where, HOPELESS_S) as second:
            assert second.recv(1) == b""
        served = threading.Thread(target=rank_1, daemon=True)  # until the first is known to be gone, it comes again
        served.start()
        codes = list[int]()
        run_there(codes)
        served.join(HOPELESS_S)
        assert codes == [7]
        server.shutdown(socket.SHUT_RDWR)  # whoever waits for a connection goes on


def test_who_was_not_heard_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    greet, dropped = mpi_node.OtherRanks._greet, list[dict[str, Any]]()

    def forgetful(others: mpi_node.OtherRanks, *about: Any) -> Any:
        line, said = greet(others, *about)
        if len(dropped) < 2:
            dropped.append(said)
            line.close()
            raise OSError(errno.ECONNRESET, "dropped")
        return line, said

    monkeypatch.setattr(mpi_node.OtherRanks, "_greet", forgetful)
    with rank_0(monkeypatch, number=4) as server:
        assert codes_of(server) == [7]
    assert len(dropped) == 2


def test_rank_0_ends_well_once_all_others_have_come_and_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with rank_0(monkeypatch, number=1 << 20) as server:
        others = mpi_node.OtherRanks()
        threading.Thread(target=others.serve, args=(server,), daemon=True).start()
        dismissing = threading.Thread(target=others.dismiss, args=(0, 2), daemon=True)
        dismissing.start()
        lines = [mpi_node.call_first(rank=rank) for rank in (1, 2)]
        assert dismissing.is_alive(), "it waits for who is there"
        assert [line.hear() for line in lines[:1]] == [{"end": 0}]
        lines[0].close()
        assert lines[1].hear() == {"end": 0}
        lines[1].close()
        dismissing.join(HOPELESS_S)
        assert not dismissing.is_alive()
        server.shutdown(socket.SHUT_RDWR)  # whoever waits for a connection goes on
