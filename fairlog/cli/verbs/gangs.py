"""`torchrun`: a gang whose programs are the nodes of one run of PyTorch (semantics G8)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairlog.cli.decorators import on_cluster
from fairlog.cli.job_files import JobCommand
from fairlog.cli.params import flag
from fairlog.cli.verbs.submit import AppOptions, job_options, send_app

if TYPE_CHECKING:
    from fairlog.cli.session import Session

_NODE = (
    'exec torchrun --nnodes "$FAIRLOG_WORLD" --node-rank "$FAIRLOG_RANK" --master-addr "$FAIRLOG_MASTER_ADDR" '
    '--master-port "$FAIRLOG_MASTER_PORT" "$@"'
)
"""What each executor runs; options of torchrun that the submitter gives come later, and are stronger."""


class NodesOfTorchrun(JobCommand):
    """A command that describes a gang whose programs are nodes of torchrun."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As `JobCommand`, of a gang of programs which give CMD to torchrun."""
        if not ctx.resilient_parsing:
            command = self.make_parser(ctx).parse_args(list(args))[0].get("command")
            words = len(command) if isinstance(command, tuple | list) else 0
            begin = len(args) - words
            node = ["--", "sh", "-c", _NODE, "torchrun"] if words else []
            own = args[:begin]
            args = ["--gang", "--executor-program", *(own[:-1] if own[-1:] == ["--"] else own), *node, *args[begin:]]
        return super().parse_args(ctx, args)


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
    name = job.fields["name"]
    return send_app(
        session, job._replace(fields={**job.fields, "name": "torchrun" if name == "sh" else name}), wait=wait
    )
