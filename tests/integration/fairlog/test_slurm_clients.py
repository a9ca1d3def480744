"""Programs that know Slurm run on fairlog unmodified, by its commands. `make test-clients` installs them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.integration.engines_rig import Site, site
from tests.waiting import HOPELESS_S
from workers.sandbox import why_no_cell

CLIENTS = os.environ.get("CLIENTS_PYTHON", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CLIENTS, reason="Slurm's clients are not installed; `make test-clients` runs this"),
]

CLUSTERFUTURES = """
import cfut
if __name__ == "__main__":
    lines = ["export PATH=" + __import__("os").environ["PATH"]]
    with cfut.SlurmExecutor(additional_setup_lines=lines) as pool:
        assert list(pool.map(abs, [-1, -2, 3])) == [1, 2, 3]
"""
DASK = """
from dask.distributed import Client
from dask_jobqueue import SLURMCluster
if __name__ == "__main__":
    asked = dict(cores=1, memory="500MB", account="acme", walltime="00:10:00", interface="lo")
    with SLURMCluster(**asked, log_directory="dask") as cluster, Client(cluster) as client:
        cluster.scale(jobs=2)
        client.wait_for_workers(2)
        assert client.gather(client.map(abs, range(-3, 0))) == [3, 2, 1]
"""
EXECUTORLIB = """
import os
import subprocess
import sys
from executorlib import SlurmClusterExecutor
inside = '''
from executorlib import SlurmJobExecutor
def add(a, b):
    return a + b
if __name__ == "__main__":
    with SlurmJobExecutor(max_workers=2) as pool:
        calls = [pool.submit(add, number, b=1, resource_dict={"cores": 1}) for number in range(4)]
        assert [each.result() for each in calls] == [1, 2, 3, 4]
'''
def add(a, b):
    return a + b
if __name__ == "__main__":
    with SlurmClusterExecutor(cache_directory="cache") as pool:
        calls = [pool.submit(add, number, b=1, resource_dict={"cores": 1}) for number in range(2)]
        assert [each.result() for each in calls] == [1, 2]
    open("inside.py", "w").write(inside)
    asked = ["sbatch", "--wait", "-n", "2", "-t", "5", "--mem", "2G", "-o", "inside.out"]
    done = subprocess.run([*asked, "--wrap", f"{sys.executable} inside.py"])
    assert done.returncode == 0, open("inside.out").read()
"""
FIREWORKS = """
from fireworks.user_objects.queue_adapters.common_adapter import CommonAdapter
adapter = CommonAdapter("SLURM", rocket_launch="sleep 30", ntasks=1, walltime="00:05:00", account="acme")
open("rocket.sh", "w").write(adapter.get_script_str("."))
before = adapter.get_njobs_in_queue("root")
assert int(adapter.submit_to_queue("rocket.sh")) and adapter.get_njobs_in_queue("root") == before + 1
"""
IPYPARALLEL = """
import os
import ipyparallel
cluster = ipyparallel.Cluster(engines="slurm", n=2, controller_ip="127.0.0.1")
cluster.config.SlurmEngineSetLauncher.account = "acme"
with cluster as client:
    assert sorted(client[:].apply_sync(os.getenv, "SLURM_PROCID")) == ["0", "1"]
"""
MAESTRO = """
import pathlib
import subprocess
import sys
open("study.yaml", "w").write('''
description: {name: hello, description: two steps for each of two names}
batch: {type: slurm, host: here, bank: acme, queue: main}
env: {variables: {OUTPUT_PATH: ./out}}
study:
  - name: one
    description: says hello
    run: {cmd: "echo hello $(NAME) > said.txt", procs: 1, nodes: 1, walltime: "00:02:00"}
  - name: two
    description: reads it
    run: {cmd: "$(LAUNCHER) cat $(one.workspace)/said.txt > read.txt", depends: [one], procs: 1, nodes: 1,
          walltime: "00:02:00"}
global.parameters:
  NAME: {values: [a, b], label: NAME.%%}
''')
maestro = pathlib.Path(sys.executable).with_name("maestro")
subprocess.run([maestro, "run", "-y", "-fg", "-s", "1", "study.yaml"], check=True)
assert sorted(path.read_text() for path in pathlib.Path("out").rglob("read.txt")) == ["hello a\\n", "hello b\\n"]
"""
MYQUEUE = """
import os
import subprocess
import sys
import time
from pathlib import Path
mq = Path(sys.executable).with_name("mq")
os.environ["PATH"] = f"{mq.parent}:{os.environ['PATH']}"
subprocess.run([mq, "init"], check=True)
Path(".myqueue/config.py").write_text('''
config = {"scheduler": "slurm", "extra_args": ["--account=acme"],
          "nodes": [("main", {"cores": 4, "memory": "4G", "nodename": "main"})]}
''')
subprocess.run([mq, "submit", "-R", "1:1m", "shell:touch+first"], check=True)
subprocess.run([mq, "submit", "-R", "1:1m", "--dependencies", "shell:touch+first", "shell:cat+first"], check=True)
def states():
    subprocess.run([mq, "kick"], check=True)
    listed = subprocess.run([mq, "ls", "-c", "s"], capture_output=True, text=True, check=True).stdout
    return [line.strip() for line in listed.splitlines() if line.strip() in ("done", "FAILED", "running", "queued")]
until = time.monotonic() + 60
while states() != ["done", "done"]:
    assert time.monotonic() < until, states()
    time.sleep(0.5)
assert "4096M" in subprocess.run([mq, "config", "slurm"], capture_output=True, text=True, check=True).stdout
subprocess.run([mq, "daemon", "stop"], check=True)
"""
NIPYPE = """
import os
import nipype.pipeline.engine as pe
from nipype.interfaces.utility import Function
def more(given):
    return given + 1
if __name__ == "__main__":
    first, second = (pe.Node(Function(["given"], ["out"], more), name=name) for name in ("first", "second"))
    first.inputs.given = 3
    flow = pe.Workflow("flow", base_dir=os.getcwd())
    flow.connect(first, "out", second, "given")
    flow.config["execution"] = {"poll_sleep_duration": 1}
    flow.run(plugin="SLURM", plugin_args={"sbatch_args": "-A acme --mem=500M"})
    assert os.path.exists("flow/second/result_second.pklz")
"""
PARSL = """
import os
import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SrunLauncher
from parsl.providers import SlurmProvider
provider = SlurmProvider(
    partition=None, account="acme", cores_per_node=2, mem_per_node=1, walltime="00:10:00", exclusive=False,
    launcher=SrunLauncher(), worker_init="export PATH=" + os.environ["PATH"],
)
@parsl.python_app
def squared(number):
    import os
    return number**2, os.environ["SLURM_JOB_ID"].isdecimal()
with parsl.load(Config(executors=[HighThroughputExecutor(address="127.0.0.1", provider=provider)])):
    assert [squared(number).result() for number in range(3)] == [(0, True), (1, True), (4, True)]
"""
PSIJ = """
import datetime
from pathlib import Path
from psij import Job, JobAttributes, JobExecutor, JobSpec, JobState, ResourceSpecV1
executor = JobExecutor.get_instance("slurm")
def job(line, **more):
    asked = JobSpec("/bin/sh", ["-c", line], directory=Path.cwd(), stdout_path=Path("psij.out").absolute(), **more)
    asked.attributes = JobAttributes(account="acme", duration=datetime.timedelta(minutes=5))
    made = Job(asked)
    executor.submit(made)
    return made
well, failed = job("echo well"), job("exit 7")
assert (well.wait().state, failed.wait().exit_code) == (JobState.COMPLETED, 7)
ranks = job("echo $SLURM_PROCID", resources=ResourceSpecV1(process_count=2), launcher="srun")
assert ranks.wait().state is JobState.COMPLETED and sorted(Path("psij.out").read_text().split()) == ["0", "1"]
late = job("sleep 600")
late.wait(target_states=[JobState.ACTIVE])
late.cancel()
assert late.wait().state is JobState.CANCELED
"""
PYSQA = """
import os
from pysqa import QueueAdapter
queue = QueueAdapter(queue_type="SLURM")
script = "#!/bin/sh\\n#SBATCH -A acme -J {{job_name}} --get-user-env=L --mem={{memory_max}}G\\n{{command}}\\n"
job = queue.submit_job(
    job_name="sqa", working_directory=os.getcwd(), cores=1, memory_max=1, run_time_max=300, command="sleep 600",
    submission_template=script,
)
assert queue.get_status_of_job(job) in ("pending", "running")
queue.delete_job(job)
assert queue.get_status_of_job(job) is None
"""
QBATCH = """
import subprocess
import sys
import time
from pathlib import Path
Path("commands").write_text("".join(f"echo {number} > {number}.out\\n" for number in range(3)))
qbatch = Path(sys.executable).with_name("qbatch")
subprocess.run([qbatch, "-b", "slurm", "--ppj", "1", "-c", "2", "-w", "0:05:00", "commands"], check=True)
subprocess.run([qbatch, "-b", "slurm", "--depend", "commands", "-w", "0:05:00", "--", "cat", "2.out"], check=True)
until = time.monotonic() + 60
while len(list(Path().glob("*.out"))) < 3:
    assert time.monotonic() < until
    time.sleep(0.2)
"""
QTOOLKIT = """
import subprocess
from qtoolkit.core.data_objects import QResources, QState
from qtoolkit.io.slurm import SlurmIO
slurm = SlurmIO()
def told(command, parse):
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    return parse(done.returncode, done.stdout, done.stderr)
asked = QResources(processes_per_node=2, nodes=1, memory_per_thread=100, time_limit=600, account="acme", job_name="q")
open("q.sh", "w").write(slurm.get_submission_script("srun sleep 600", asked))
job = told(slurm.get_submit_cmd("q.sh"), slurm.parse_submit_output).job_id
about = told(slurm.get_job_cmd(job), slurm.parse_job_output)
assert (about.name, about.info.cpus, about.info.time_limit) == ("q", 2, 600)
assert job in [each.job_id for each in told(slurm.get_jobs_list_cmd([job], None), slurm.parse_jobs_list_output)]
assert told(slurm.get_cancel_cmd(job), slurm.parse_cancel_output).job_id == job
assert told(slurm.get_job_cmd(job), slurm.parse_job_output).state in (QState.FAILED, QState.RUNNING)
"""
REFRAME = """
import subprocess
import sys
from pathlib import Path
environs = {"environs": ["builtin"], "access": ["-A acme"]}
parts = [
    {"name": "accounted", "scheduler": "slurm", "launcher": "srun", **environs},
    {"name": "queued", "scheduler": "squeue", "launcher": "local", **environs},
]
system = {"name": "fairlog", "hostnames": [".*"], "partitions": parts}
Path("site.py").write_text(f"site_configuration = {{'systems': [{system}]}}")
Path("checks.py").write_text('''
import reframe as rfm
import reframe.utility.sanity as sn
@rfm.simple_test
class Echo(rfm.RunOnlyRegressionTest):
    valid_systems, valid_prog_environs = ["*"], ["*"]
    executable, executable_opts, num_tasks, time_limit = "echo", ["rank", "$SLURM_PROCID"], 2, "5m"
    @sanity_function
    def printed(self):
        return sn.assert_found("rank", self.stdout)
''')
subprocess.run([Path(sys.executable).with_name("reframe"), "-C", "site.py", "-c", "checks.py", "-r"], check=True)
"""
REPORTSEFF = """
import subprocess
import sys
from pathlib import Path
asked = ["sbatch", "--parsable", "-W", "-t", "5", "-o", "/dev/null", "--wrap", "true"]
job = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
words = [Path(sys.executable).with_name("reportseff"), "--no-color", "--format", "+Partition,AllocTRES", job]
_, line = subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip().splitlines()
assert line.split()[:2] == [job, "COMPLETED"] and "main" in line and "cpu=1" in line, line
"""
SIGNAC = """
import subprocess
import sys
import time
import signac
open("project.py", "w").write('''
from flow import FlowProject
class Project(FlowProject):
    pass
@Project.post.isfile("done.txt")
@Project.operation(directives={"np": 1, "walltime": 0.05})
def go(job):
    open(job.fn("done.txt"), "w").write(str(job.sp.a))
if __name__ == "__main__":
    Project().main()
''')
project = signac.init_project()
jobs = [project.open_job({"a": number}) for number in range(3)]
for job in jobs:
    job.init()
subprocess.run([sys.executable, "project.py", "submit"], check=True)
until = time.monotonic() + 100
while not all(job.isfile("done.txt") for job in jobs):
    assert time.monotonic() < until
    time.sleep(0.2)
subprocess.run([sys.executable, "project.py", "status"], check=True)
"""
SIMPLE_SLURM = """
import time
from pathlib import Path
from simple_slurm import Slurm
about = dict(account="acme", cpus_per_task=1)
array = Slurm(array=range(3, 6), output=f"one-{Slurm.JOB_ARRAY_ID}.out", **about).sbatch("echo $SLURM_ARRAY_TASK_ID")
Slurm(dependency=dict(afterok=array), output="after.out", wait=True, **about).sbatch("cat one-*.out")
assert Path("after.out").read_text().split() == ["3", "4", "5"]
"""
SLURM2SQL = """
import sqlite3
import subprocess
import sys
from pathlib import Path
asked = ["sbatch", "--parsable", "-W", "-o", "/dev/null", "-J", "counted", "--wrap", "exit 3"]
job = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
subprocess.run([Path(sys.executable).with_name("slurm2sql"), "jobs.db", "--", "-a", "-S", "today"], check=True)
rows = sqlite3.connect("jobs.db").execute("select State, NCPUS from slurm where JobName = 'counted'").fetchall()
assert rows == [("FAILED", 1)], rows
"""
SUBMITIT = """
import time
import submitit
def add(a, b):
    print("adding")
    return a + b
executor = submitit.AutoExecutor(folder="submitit/%j", cluster="slurm")
executor.update_parameters(timeout_min=4, mem_gb=0.2, cpus_per_task=1, slurm_array_parallelism=2)
one = executor.submit(add, 1, 2)
assert one.result() == 3 and "adding" in one.stdout()
assert [job.result() for job in executor.map_array(add, range(4), range(4))] == [0, 2, 4, 6]
assert executor.submit(int, "x").exception() is not None
def place():
    here = submitit.JobEnvironment()
    return here.global_rank, here.node, here.local_rank, here.num_nodes, here.num_tasks, len(here.hostnames)
executor.update_parameters(nodes=2, tasks_per_node=2)
assert executor.submit(place).results() == [(rank, rank // 2, rank % 2, 2, 4, 2) for rank in range(4)]
assert executor.submit(int, "x").exception() is not None
executor.update_parameters(nodes=1, tasks_per_node=1)
late = executor.submit(time.sleep, 600)
while late.watcher.get_state(late.job_id, mode="force") != "RUNNING":
    time.sleep(0.2)
late.cancel()
while not late.watcher.get_state(late.job_id, mode="force").startswith("CANCELLED"):
    time.sleep(0.2)
"""
TOIL = """
import os
from toil.common import Toil
from toil.job import Job
def one(job, number):
    return number**2
def all_of_them(job):
    return [job.addChildJobFn(one, number, cores=1, memory="100M", disk="10M").rv() for number in range(3)]
if __name__ == "__main__":
    asked = Job.Runner.getDefaultOptions(os.path.abspath("jobs"))
    asked.batchSystem, asked.statePollingWait, asked.disableAutoDeployment = "slurm", 1, True
    asked.batch_logs_dir = os.getcwd()
    with Toil(asked) as toil:
        assert toil.start(Job.wrapJobFn(all_of_them, cores=1, memory="200M", disk="10M")) == [0, 1, 4]
"""
TURM = """
import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
asked = ["sbatch", "--parsable", "-J", "watched", "-o", "/dev/null", "--wrap", "sleep 600"]
job = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
here, there = pty.openpty()
fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 140, 0, 0))
turm = subprocess.Popen([Path(sys.executable).with_name("turm")], stdin=there, stdout=there, stderr=there)
shown, until = b"", time.monotonic() + 60
while b"watched" not in shown:
    assert time.monotonic() < until and turm.poll() is None, shown
    shown += os.read(here, 1 << 16) if select.select([here], [], [], 1)[0] else b""
turm.kill()
subprocess.run(["scancel", job], check=True)
"""
PROGRAMS = {name.lower(): text for name, text in globals().items() if name.isupper() and isinstance(text, str)}
del PROGRAMS["clients"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    share = [str(Path(CLIENTS).parents[1]), str(Path(CLIENTS).resolve().parents[1]), str(ROOT)]
    with site(tmp_path_factory.mktemp("slurm"), cells=not why_no_cell(), share=share) as found:
        yield found
        found.audit()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_knows_slurm_runs_unmodified(cluster: Site, tmp_path: Path, name: str) -> None:
    shell = cluster.shell
    theirs = f"{shell.ok('slurm', 'path').strip()}:{Path(CLIENTS).parent}:{shell.env['PATH']}"
    about = {"PATH": theirs, "SBATCH_ACCOUNT": "acme", "SLURM_ACCOUNT": "acme", "TOIL_SLURM_ARGS": "-A acme"}
    env = {**shell.env, **about, "USER": "root", "LOGNAME": "root"}
    program = tmp_path / f"run_{name}.py"
    program.write_text(PROGRAMS[name])
    done = subprocess.run(
        [CLIENTS, program], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=HOPELESS_S, check=False
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
