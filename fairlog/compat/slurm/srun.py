"""`srun`: in a job, runs a program as often as the job has tasks; elsewhere as `fairlog run` does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import IO, Any

from fairlog.compat.slurm import sbatch, times
from fairlog.compat.slurm.batch import node_program
from fairlog.compat.slurm.nodes import hosts_of, node_here
from fairlog.compat.slurm.sbatch import SbatchOptions
from fairlog.compat.slurm.steps import (
    PART,
    StepPart,
    check_processes,
    has_nodes,
    next_of_stdin,
    part_here,
    shared_files,
    spread,
)
from fairlog.compat.slurm.tables import SRUN, VARIABLES
from fairlog.compat.slurm.words import (
    Given,
    SlurmError,
    listed_in_quotes,
    read,
    read_variables,
    width_of,
    without_effect,
)
from fairlog.engines.passed_on import PassedOn
from scheduler.service.addresses import URL_VARIABLE

_IS_JOB = "SLURM_STEP_IS_JOB"
"""Variable of a step that is a job of its own: the job has its limit of time."""
KILL_WAIT_S = 30
"""As Slurm's KillWait: so long after its SIGTERM a process is killed."""
_PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGCONT,
)


def run(words: list[str]) -> int:
    """Run the program, and exit with the largest code of its processes."""
    given, command = read(SRUN, words, mixed=False)
    sbatch.check_memory(given)
    job = os.environ.get("SLURM_JOB_ID")
    given = [*read_variables(SRUN, VARIABLES["step" if job else "srun"]), *given]
    asked = SbatchOptions(given)
    begun = _IS_JOB in os.environ or PART in os.environ
    if job:
        of_nodes = has_nodes() or PART in os.environ
        given = [each for each in given if each[0].name != "nodelist" or not (of_nodes or _is_here(each[1]))]
    note = without_effect("srun", given, [*sbatch.parts_without_effect(asked), *(_of_job(given) if job else ())])
    if not command:
        raise SlurmError("No command given to execute.")
    if ":" in command[:-1]:
        raise SlurmError("a step runs one program; start each of those between the `:` with an srun of its own")
    if (named := asked.get("jobid")) not in (None, job):
        raise SlurmError(
            f"job {str(named)[:40]} cannot be entered; `fairlog exec ID -- CMD` runs a command beside its tasks"
        )
    if job and not begun and not has_nodes():
        check_node(asked)
    if note and "quiet" not in asked and not begun:
        sbatch.say(note)
    if not job:
        check_several(asked)
        return _outside(asked, words[: len(words) - len(command)], command)
    return SrunStep(asked, command, words).run()


_OF_JOBS = frozenset(
    [
        "account",
        "job-name",
        "begin",
        "comment",
        "constraint",
        "dependency",
        "hold",
        "pty",
        "gres",
        "gpus",
        "gpus-per-node",
        "gpus-per-task",
        "cpus-per-gpu",
        "mem",
        "mem-per-cpu",
        "mem-per-gpu",
    ]
)
"""Options that say what a job has, of which a step in it has all."""


def _of_job(given: Given) -> Iterator[str]:
    """The options of a step without effect: they are about its job."""
    return (f"--{option.name}" for option, _ in given if option.name in _OF_JOBS)


def check_several(asked: SbatchOptions) -> None:
    """Raises: Refused for what a job of several nodes cannot do."""
    if (nodes := sbatch.nodes_of(asked)) == 1:
        return
    if asked.number("ntasks", nodes) < nodes:
        raise SlurmError(f"there are fewer processes than nodes, which are {nodes}; give --ntasks={nodes} or more")
    for name in ("pty", "kill-on-bad-exit", "gpus", "cpus-per-gpu", "mem-per-gpu"):
        if name in asked:
            raise SlurmError(f"--{name} is refused with several nodes; leave it out, or give --nodes=1")
    for name in ("output", "error"):
        named = asked.get(name) or "none"
        if named not in ("none", "all") and not named.isdecimal() and "%t" not in named:
            raise SlurmError(f"--{name} needs a %t with several nodes, so that each process has a file of its own")


def _size(asked: SbatchOptions) -> list[str]:
    """The options of `fairlog run` that say how large the job is. Raises: Refused."""
    nodes, (tasks, per_task) = sbatch.nodes_of(asked), sbatch.processes_of(asked)
    of_node = sbatch.shares(tasks, nodes)[0]
    cores, memory = of_node * per_task, sbatch.memory_of(asked, of_node, per_task)
    if nodes == 1:
        words = ["--cores", str(cores), "--cores-per-task", str(cores)]
        words += ["--memory-per-task", f"{memory}M"] if memory else []
        kind_option = "--task-resource"
    else:
        words = ["--gang", "--executor-program", "--executors", str(nodes), "--executor-cores", str(cores)]
        words += ["--executor-memory", f"{memory or sbatch.CORE_MB * cores}M"]
        words += ["--ended-by", f"{os.path.dirname(_this_program())}/scancel"]  # noqa: PTH120 (pathlib is slow to load)
        kind_option = "--executor-resource"
    kinds = sbatch.gpus_of(asked, of_node)
    return [*words, *(word for kind, number in kinds.items() for word in (kind_option, f"{kind}={number}"))]


def check_node(asked: SbatchOptions) -> None:
    """Raises: Refused for several nodes in a job that has one."""
    if (nodes := sbatch.nodes_of(asked)) > 1:
        raise SlurmError(
            "Requested node configuration is not available: this job has one node; give --nodes=1, or submit its "
            f"script with `sbatch --nodes={nodes}`"
        )


def _this_program() -> str:
    return os.path.abspath(sys.argv[0])  # noqa: PTH100 (likewise)


def _is_here(names: str) -> bool:
    """Whether a list of nodes names that of this job alone."""
    return set(hosts_of(names)) <= {node_here(), "localhost", *hosts_of(os.environ.get("SLURM_JOB_NODELIST", ""))}


def _outside(asked: SbatchOptions, options: list[str], command: list[str]) -> int:
    """Run it as a job of its own, in which this command starts the processes, in the place of this process."""
    from fairlog.compat.slurm import batch  # noqa: PLC0415 (in a job, nothing is submitted)
    from fairlog.compat.slurm.road import ApiRoad, Me  # noqa: PLC0415 (likewise)

    road = ApiRoad()
    me = Me(road)
    tasks, per_task = sbatch.processes_of(asked)
    of_node = sbatch.shares(tasks, sbatch.nodes_of(asked))[0]
    about: dict[str, Any] = {
        "company": sbatch.company(asked, road, me),
        "user": me.user,
        "name": asked.get("job-name") or os.path.basename(command[0]) or "srun",  # noqa: PTH119 (pathlib is slow to load)
        "cwd": os.getcwd(),  # noqa: PTH109 (likewise)
        "memory_per_task_mb": sbatch.memory_of(asked, of_node, per_task),
        "task_resources": {kind: str(number) for kind, number in sbatch.gpus_of(asked, of_node).items()},
    }
    words = ["run", "--quiet", "--numbered", "--no-prefix", *_size(asked)]
    for name in ("name", "company", "user"):
        words += [f"--{name}", about[name]]
    words += ["--comment", comment] if (comment := asked.get("comment")) else []
    seconds = times.read_limit(asked.get("time") or "infinite")
    words += [] if seconds is None else ["--max-runtime", f"{seconds}s"]
    words += _waits(asked)
    for label in sbatch.read_constraint(asked.get("constraint") or "") if "constraint" in asked else ():
        words += ["--require", label]
    for name, value in sbatch.told(asked, about, tasks, per_task).items():
        words += ["--env", f"{name}={value}"]
    words += ["--env", f"{_IS_JOB}=1"]
    words += ["--tty"] if "pty" in asked else ["--stdin"]
    if not _is_given_input(asked) and "pty" not in asked:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    inner = [_this_program(), *(word for word in options if word != "--pty"), *command]
    words += ["--export", "ALL", "--", batch.shell(), "-c", f'{batch.VARIABLES}exec "$@"', "srun", *inner]
    env = {**os.environ, "_FAIRLOG_SPEAKER": "srun"}  # `fairlog.cli.printed`
    if not road.token:
        env.pop("FAIRLOG_DATA", None)
        env[URL_VARIABLE] = road.urls[0]  # the store, which it would find by itself, takes a second more to load
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, "-m", "fairlog", *words], env)  # noqa: S606 (it is this program's other half)


def _waits(asked: SbatchOptions) -> list[str]:
    """The options of our verb that say for what the job waits. Raises: Refused."""
    from fairlog.compat.slurm.as_options import dependencies  # noqa: PLC0415 (in a job, nothing is submitted)

    words = [*dependencies(asked), *(["--hold"] if "hold" in asked else [])]
    if (begin := asked.get("begin")) is not None:
        at = times.read_moment(begin, "begin", ahead=True) / 1000
        words += ["--begin", time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(at))]
    return words


def _is_given_input(asked: SbatchOptions) -> bool:
    """Whether the processes are to read what this one is given: a file or a pipe."""
    named = asked.get("input") or "all"
    if named != "all" and not named.isdecimal():
        return False
    import stat  # noqa: PLC0415 (in a job, nobody asks)

    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


class SrunStep:
    """The processes of a step of this job: those of this node, and what reaches each of its other nodes."""

    def __init__(self, asked: SbatchOptions, command: list[str], words: list[str]) -> None:
        self.asked, self.command, self._words = asked, command, words
        begun = part_here()
        self._others: list[tuple[int, int]] = []
        """The other nodes of the step: which of its nodes each is, and its rank in the job."""
        self._is_here = True
        """Whether this node has processes of it."""
        self.limit_s = None
        if begun is not None:
            self.part = begun
        elif os.environ.pop(_IS_JOB, ""):
            self.part = _part_of_job(asked)
        else:
            self.limit_s = times.read_limit(asked.get("time") or "infinite")
            self.part = self._on_nodes() if has_nodes() else _part_on_node(asked)
        self.tasks = self.part.tasks
        self.ranks = self.part.ranks if self._is_here else range(0)
        """The numbers of the processes here."""
        self._has_begun_it = begun is None
        self._signals = PassedOn()
        self.processes = self._signals.processes
        self._emptied: set[str] = set()
        self._lock = threading.Lock()

    def _on_nodes(self) -> StepPart:
        """The part of this node in a step on several; the others are noted. Raises: Refused."""
        ranks, shares, names = spread(self.asked)
        here = int(os.environ.get("SLURM_NODEID") or 0)
        self._others = [(node, rank) for node, rank in enumerate(ranks) if rank != here]
        self._is_here = here in ranks
        return StepPart(ranks.index(here) if self._is_here else 0, shares, names, _next_number())

    def run(self) -> int:
        """Start the processes, pass signals on to them, and wait for them; the largest exit code."""
        self._signals.listen(_PASSED_ON)
        mark = self._mark() if self._has_begun_it else ""
        threads: list[threading.Thread] = []
        try:
            for rank in self.ranks:
                threads += self._start(rank)
            for node, rank in self._others:
                self._send(node, rank)
            self._signals.all_have_begun()
            self._feed()
            with self._limited():
                codes = self._wait()
            for thread in threads:
                thread.join()
        finally:
            if mark:
                os.unlink(mark)  # noqa: PTH108 (pathlib is slow to load)
        return max(codes, default=0)

    @contextmanager
    def _limited(self) -> Iterator[None]:
        """End the processes once the step has run as long as it may: by SIGTERM, after a grace by SIGKILL."""
        if self.limit_s is None:
            yield
            return
        clocks = [
            threading.Timer(self.limit_s, self._expire),
            threading.Timer(self.limit_s + KILL_WAIT_S, self._signals.send, (signal.SIGKILL,)),
        ]
        for clock in clocks:
            clock.daemon = True
            clock.start()
        try:
            yield
        finally:
            for clock in clocks:
                clock.cancel()

    def _expire(self) -> None:
        job = os.environ["SLURM_JOB_ID"]
        sbatch.say(f"srun: error: *** STEP {job}.{self.part.number} CANCELLED DUE TO TIME LIMIT ***")
        self._signals.send(signal.SIGTERM)

    def _mark(self) -> str:
        """The file that tells the job's first process of this one, which is to get signals; "" if there is no place."""
        folder = os.environ.get("SLURM_STEPS", "")
        path = f"{folder}/step.{os.getpid()}"
        try:
            with open(path, "w", encoding="ascii"):  # noqa: PTH123 (as above)
                return path
        except OSError:
            return ""

    def _start(self, rank: int) -> list[threading.Thread]:
        """Start a process; what carries its output if that is labelled. Raises: Refused if it cannot be started."""
        with ExitStack() as its_own:
            process = self._process(rank, its_own)
        self.processes.append(process)
        pipes = ((process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer))
        threads = [
            threading.Thread(target=self._label, args=(source, rank, target)) for source, target in pipes if source
        ]
        for thread in threads:
            thread.start()
        return threads

    def _send(self, node: int, rank: int) -> None:
        """Have another node of the job run its part of the step. Raises: Refused if it cannot be begun."""
        shared = shared_files(self.asked)
        part = self.part._replace(node=node, elsewhere=(*shared, "label") if "output" in shared else shared)
        whole = "lines" if "label" in self.asked else "bytes"
        program = [*node_program("reach"), str(rank), whole, _this_program(), *self._words]
        first = part.ranks.start
        with ExitStack() as its_own:
            streams: list[int | IO[bytes] | None] = []
            for name in ("output", "error"):
                named = self.asked.get(name) or (self.asked.get("output") if name == "error" else None)
                is_file = name in shared and named is not None
                streams.append(its_own.enter_context(self._opened(named, first)) if named and is_file else None)
            named = self.asked.get("input")
            reads = named is not None and named.isdecimal() and len(named) < 10 and int(named) in part.ranks
            given = self._shared_input() if named in (None, "all") else None if reads else subprocess.DEVNULL
            env = os.environ | {PART: json.dumps(part)}
            try:
                process = subprocess.Popen(program, stdin=given, stdout=streams[0], stderr=streams[1], env=env)  # noqa: S603 (its own)
            except OSError as error:
                self._end()
                raise SlurmError(f"{part.names[node]} cannot be reached: {error.strerror}", error.errno or 1) from None
        self.processes.append(process)

    def _process(self, rank: int, its_own: ExitStack) -> subprocess.Popen[bytes]:
        """Start a process with files of its own, which this one closes afterwards. Raises: Refused."""
        labelled = "label" in self.asked and "label" not in self.part.elsewhere
        streams: list[int | IO[bytes] | None] = []
        for name in ("output", "error"):
            named = self._mode(name, rank) or (self._mode("output", rank) if name == "error" else None)
            same = (
                name == "error"
                and streams[0] is not None
                and self.asked.get("error") in (None, self.asked.get("output"))
            )
            if named and not same:
                streams.append(its_own.enter_context(self._opened(named, rank)))
            elif same:
                streams.append(subprocess.STDOUT)
            else:
                streams.append(subprocess.PIPE if labelled else None)
        stdin = self._mode("input", rank)
        try:
            given = its_own.enter_context(open(stdin, "rb")) if stdin else self._shared_input()  # noqa: PTH123, SIM115 (as above)
            return subprocess.Popen(  # noqa: S603 (the user's program)
                self.command,
                stdin=given,
                stdout=streams[0],
                stderr=streams[1],
                env=self._environment(rank),
                cwd=self.asked.get("chdir"),
            )
        except OSError as error:
            self._end()
            raise SlurmError(f"task {rank}: execve(): {self.command[0]}: {error.strerror}", error.errno or 1) from None

    def _mode(self, name: str, rank: int) -> str | None:
        """The file of this process; None for what is the step's own: `all`, or the number of this process."""
        named = self.asked.get(name)
        if named is None or named == "all" or name in self.part.elsewhere:
            return None
        if named == "none" or (named.isdecimal() and len(named) < 10 and int(named) < self.tasks):
            return None if named == str(rank) else os.devnull
        return named

    def _shared_input(self) -> int | None:
        """The stdin of a process that reads what the step is given: all of several processes read all of it."""
        return subprocess.PIPE if self.tasks > 1 and self.asked.get("input") in (None, "all") else None

    def _feed(self) -> None:
        """Pass the step's stdin on to each process, those that read no more left out."""
        pipes = [process.stdin for process in self.processes if process.stdin]

        def pass_on() -> None:
            while pipes and (part := next_of_stdin()):
                for pipe in list(pipes):
                    try:
                        pipe.write(part)
                        pipe.flush()
                    except OSError:
                        pipes.remove(pipe)
            for pipe in pipes:
                with suppress(OSError):
                    pipe.close()

        if pipes:
            threading.Thread(target=pass_on, daemon=True).start()

    def _opened(self, text: str, rank: int) -> IO[bytes]:
        """The file of a process's output. Raises: Refused."""
        folder = os.environ.get("SLURM_SUBMIT_DIR", ".") if not text.startswith("/") else "/"
        name = os.path.join(self.asked.get("chdir") or os.getcwd() or folder, self._named(text, rank))  # noqa: PTH109, PTH118 (as above)
        again = (self.asked.get("open-mode") or os.environ.get("SLURM_OPEN_MODE") or "truncate").startswith("a")
        fresh = not again and name not in self._emptied
        self._emptied.add(name)
        how = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0)
        try:
            return os.fdopen(os.open(name, how, 0o666), "ab", buffering=0)
        except OSError as error:
            self._end()
            raise SlurmError(f"Could not open {name}: {error.strerror}") from None

    def _named(self, text: str, rank: int) -> str:
        job, index = os.environ["SLURM_JOB_ID"], os.environ.get("SLURM_ARRAY_TASK_ID", "")
        known = {
            "%": "%",
            "A": os.environ.get("SLURM_ARRAY_JOB_ID", job),
            "a": index or "4294967294",
            "J": f"{job}.{self.part.number}",
            "j": f"{job}_{index}" if index else job,
            "N": os.environ.get("SLURMD_NODENAME", ""),
            "n": str(self.part.node),
            "s": str(self.part.number),
            "t": str(rank),
            "u": os.environ.get("SLURM_JOB_USER", ""),
            "x": os.environ.get("SLURM_JOB_NAME", ""),
        }
        done, rest = "", text
        while rest:
            before, percent, rest = rest.partition("%")
            done += before
            if percent:
                digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
                letter, rest = rest[len(digits) : len(digits) + 1], rest[len(digits) + 1 :]
                if letter not in known:
                    raise SlurmError(f"the name of a file has %{letter}, which stands for nothing here")
                done += known[letter].zfill(width_of(digits)) if letter not in "xuN" else known[letter]
        return done

    def _environment(self, rank: int) -> dict[str, str]:
        said = self.asked.get("export")
        found = dict(os.environ)
        if said is not None and "ALL" not in said.upper().split(","):
            kept = ("SLURM", "FAIRLOG_")
            base = {name: value for name, value in found.items() if name.startswith(kept) or name in ("PATH", "HOME")}
            named = [each for each in listed_in_quotes(said) if "=" not in each and each in found]
            found = base | {name: found[name] for name in named}
        for each in listed_in_quotes(said or ""):
            name, equals, value = each.partition("=")
            found |= {name: value} if equals else {}
        part = self.part
        each, local = sbatch.times_each(part.shares), rank - part.ranks.start
        about: dict[str, object] = {
            "PROCID": rank,
            "LOCALID": local,
            "NODEID": part.node,
            "GTIDS": ",".join(map(str, part.ranks)),
            "NTASKS": self.tasks,
            "NPROCS": self.tasks,
        }
        about |= {"STEP_ID": part.number, "STEPID": part.number, "STEP_NUM_TASKS": self.tasks}
        about |= {"STEP_NUM_NODES": len(part.shares), "STEP_TASKS_PER_NODE": each, "TASKS_PER_NODE": each}
        about |= {"STEP_NODELIST": ",".join(part.names)}
        found |= {f"SLURM_{name}": str(value) for name, value in about.items()}
        if (cores := self.asked.get("cpus-per-task")) is not None:
            found["SLURM_CPUS_PER_TASK"] = cores
        return found

    def _label(self, source: IO[bytes], rank: int, target: IO[bytes]) -> None:
        width = len(str(self.tasks - 1))
        with source:
            for line in source:
                with self._lock:
                    target.write(b"%*d: %b" % (width, rank, line if line.endswith(b"\n") else line + b"\n"))
                    target.flush()

    def _wait(self) -> list[int]:
        """Wait for all; the exit code of each, after which it is told on stderr if it is not 0."""
        codes: list[int] = []
        node = os.environ.get("SLURMD_NODENAME", "localhost")
        ends = "kill-on-bad-exit" in self.asked and self.asked.get("kill-on-bad-exit") != "0"
        going = {process.pid: place for place, process in enumerate(self.processes)}
        while going:
            place = going.pop(self._next_end(going))  # the first that ends may end the others
            code = self.processes[place].wait()
            codes.append(code if code >= 0 else 128 - code)
            if code:
                how = f"Exited with exit code {code}" if code > 0 else signal.strsignal(-code) or f"signal {-code}"
                if place < len(self.ranks):  # the others have said so themselves
                    sys.stderr.write(f"srun: error: {node}: task {self.ranks[place]}: {how}\n")
                if ends:
                    self._end()
        return codes

    def _next_end(self, going: Collection[int]) -> int:
        """The id of the next process of these that has ended: who sends a signal to one may have heard of that."""
        while not (known := [each.pid for each in self.processes if each.returncode is not None and each.pid in going]):
            with suppress(ChildProcessError):
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                if ended is not None and ended.si_pid in going:
                    return ended.si_pid
                if ended is not None:  # the shell has left it to this process, as that of `srun sh < <(command)`
                    os.waitpid(ended.si_pid, 0)
        return known[0]

    def _end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()


def _part_of_job(asked: SbatchOptions) -> StepPart:
    """The part of this node in a step that is a job of its own. Raises: Refused."""
    nodes, node = sbatch.nodes_of(asked), int(os.environ.get("SLURM_NODEID") or 0)
    names = hosts_of(os.environ.get("SLURM_JOB_NODELIST", ""))
    shares = sbatch.shares(asked.number("ntasks", sbatch.processes_of(asked)[0]), nodes)
    return StepPart(node if nodes > 1 else 0, shares, names, _next_number())


def _part_on_node(asked: SbatchOptions) -> StepPart:
    """The step of a job on one node. Raises: Refused."""
    usual = int(os.environ.get("SLURM_NTASKS") or 1)
    tasks = asked.number("ntasks", asked.number("ntasks-per-node", usual))
    most = max(int(os.environ.get(name) or 1) for name in ("SLURM_NTASKS", "SLURM_CPUS_ON_NODE"))
    check_processes(asked, tasks, most)
    return StepPart(0, [tasks], hosts_of(os.environ.get("SLURM_JOB_NODELIST", "")), _next_number())


def _next_number() -> int:
    """The number of this step: one more than those of the job that have begun."""
    folder = os.environ.get("SLURM_STEPS", "")
    number = 0
    while folder:
        try:
            os.close(os.open(f"{folder}/number.{number}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            number += 1
        except OSError:
            break
        else:
            break
    return number
