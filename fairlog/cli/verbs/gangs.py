"""`torchrun`, `mpirun`: a gang whose programs are the nodes of one run of PyTorch or MPI (semantics G8)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import click

from fairlog.cli.decorators import on_cluster
from fairlog.cli.job_files import JobCommand
from fairlog.cli.params import flag, range_option
from fairlog.cli.verbs.submit import AppOptions, job_options, send_app
from fairlog.engines.mpi_node import PROGRAM

if TYPE_CHECKING:
    from fairlog.cli.session import Session

_NODE = (
    'exec torchrun --nnodes "$FAIRLOG_WORLD" --node-rank "$FAIRLOG_RANK" --master-addr "$FAIRLOG_MASTER_ADDR" '
    '--master-port "$FAIRLOG_MASTER_PORT" "$@"'
)
"""What each executor runs; options of torchrun that the submitter gives come later, and are stronger."""


class NodesOfGang(JobCommand):
    """A command that describes a gang whose programs give CMD to a launcher, which knows them as its nodes."""

    node: ClassVar[tuple[str, ...]]
    """What each executor runs, before the words of CMD."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As `JobCommand`, of a gang of programs."""
        if not ctx.resilient_parsing:
            command = self.make_parser(ctx).parse_args(list(args))[0].get("command")
            words = len(command) if isinstance(command, tuple | list) else 0
            begin = len(args) - words
            node = ["--", *self.node] if words else []
            own = args[:begin]
            args = ["--gang", "--executor-program", *(own[:-1] if own[-1:] == ["--"] else own), *node, *args[begin:]]
        return super().parse_args(ctx, args)


class NodesOfTorchrun(NodesOfGang):
    """Executors that run torchrun."""

    node = ("sh", "-c", _NODE, "torchrun")


class NodesOfMpi(NodesOfGang):
    """Executors of which one runs mpirun."""

    node = ("python3", PROGRAM)


def _named(job: AppOptions, name: str, **more: object) -> AppOptions:
    """The app by this name, unless its submitter states one, and with these fields.

    Raises: click.UsageError for a script that is to be copied.
    """
    if job.fields.get("script"):
        raise click.UsageError(f"--script copies what an executor runs, which is {name} here; name the script in CMD")
    stated = job.fields["name"] if job.fields["name"] != job.fields["command"][0] else name
    return job._replace(fields={**job.fields, "name": stated, **more})


@click.command(cls=NodesOfTorchrun, context_settings={"allow_interspersed_args": False})
@job_options
@flag("--wait", "-w", help="Wait until the app ends, and exit with the code of the last program that failed, or 1.")
@on_cluster
def torchrun(session: Session, *, job: AppOptions, wait: bool) -> int:
    """Submit a gang whose executors are the nodes of one torchrun.

    CMD is what torchrun is given: options of its own, behind a --, then the script with its arguments. Each of
    --executors N executors runs torchrun once, as a node of that rank, and all meet at the host of rank 0. With several
    processes in each, give --nproc-per-node to torchrun. It is found in the PATH of the workers, or of --env.

    If a node fails or is lost, all begin anew: let the script go on from its last checkpoint. Options are those of
    `fairlog submit`; lines of the script do not state them.
    """
    return send_app(session, _named(job, "torchrun"), wait=wait)


@click.command(cls=NodesOfMpi, context_settings={"allow_interspersed_args": False})
@job_options
@range_option(
    "--ranks-per-executor", 1, 1024, default=1, show_default=True, help="Ranks that mpirun starts in each executor."
)
@flag("--wait", "-w", help="Wait until the app ends, and exit with the code of the last program that failed, or 1.")
@on_cluster
def mpirun(session: Session, *, job: AppOptions, ranks_per_executor: int, wait: bool) -> int:
    """Submit a gang whose executors are the hosts of one mpirun.

    CMD is what mpirun, Open MPI's or MPICH's, is given: options of its own, behind a --, then the program with its
    arguments. The executor of rank 0 runs mpirun once, and its output is that of all ranks. mpirun reaches the others
    without ssh: each of --executors N executors runs what mpirun would start on a host. It is found in the PATH of the
    workers, or of --env, and so is python3.

    If a rank fails or an executor is lost, all begin anew: let the program go on from its last checkpoint. Options are
    those of `fairlog submit`; lines of a script do not state them.
    """
    from fairlog.engines.mpi import variables  # noqa: PLC0415 (few need it)

    command: tuple[str, ...] = job.fields["command"]
    own, script = variables()
    secrets = {**job.secrets, **own}
    about = {"script": script, "script_at": 1, "env": tuple(sorted(secrets))}
    words = (*command[:2], str(ranks_per_executor), *command[2:])
    return send_app(session, _named(job, "mpirun", command=words, **about)._replace(secrets=secrets), wait=wait)
