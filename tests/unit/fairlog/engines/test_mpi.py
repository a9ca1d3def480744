"""How `fairlog mpirun` calls mpirun, and what it gives its executors."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from fairlog.engines import mpi, mpi_node
from scheduler.model.staged import SCRIPT, digest_of, script_of_value

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
