"""The verb about RQ: workers that follow the length of queues."""

from __future__ import annotations

import click

from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import range_option, read_duration, read_text, size_option, text_option
from fairlog.cli.session import Session
from fairlog.cli.verbs.submit import submitter
from fairlog.cli.whose import company_option, user_option


@click.command()
@company_option("Company of the app.  [default: that of the account]")
@user_option("User of the app.  [default: the account that is logged in]")
@text_option("--url", required=True, envvar="RQ_REDIS_URL", show_envvar=True, metavar="URL", help="RQ's Redis.")
@range_option("--max", 1, 10_000, default=8, show_default=True, help="The most workers at once.")
@range_option("--cores", 1, 1_000, default=1, show_default=True, help="Cores of each worker.")
@size_option("--memory", "memory_mb", default="512M", show_default=True, help="Memory of each worker.")
@click.option(
    "--idle",
    "idle_s",
    type=read_duration,
    default="5s",
    show_default=True,
    metavar="TIME",
    help="A worker that found no job for so long ends.",
)
@click.option(
    "--grace",
    "grace_s",
    type=read_duration,
    default="3m",
    show_default=True,
    metavar="TIME",
    help="Time that a worker has for its job when it is told to stop.",
)
@click.argument("queues", nargs=-1, required=True, type=read_text, metavar="QUEUE...")
@on_cluster
def rq(  # noqa: PLR0913 (the options of the verb)
    session: Session,
    *,
    company: str | None,
    user: str | None,
    url: str,
    max: int,  # noqa: A002 (the option's name)
    cores: int,
    memory_mb: int,
    idle_s: int,
    grace_s: int,
    queues: tuple[str, ...],
) -> int:
    """Run RQ workers on executors, as many as queues have jobs.

    Each worker is `rq worker` of this Python, with these queues in this order. From none, workers come as jobs do, as
    far as the company's part and the cluster allow, and go when they find none. The app ends with this verb; if the
    verb dies, it ends within 30 s.
    """
    from fairlog.engines.rq import Workers, serve, submission  # noqa: PLC0415 (few need it)

    who = submitter(session, company, user)
    request = submission(
        who["company"], who["user"], queues, cores=cores, memory_mb=memory_mb, idle_s=idle_s, grace_s=grace_s
    )
    _, api = session.front("RQ's workers reach the cluster through its API; name it with FAIRLOG_API")
    return serve(Workers(request, queues, url, most=max, api=api))
