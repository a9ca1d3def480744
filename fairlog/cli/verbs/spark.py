"""The verbs about Apache Spark: spark-submit, spark env."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import click

from fairlog.api.addresses import TOKEN_VARIABLE, URL_VARIABLE
from fairlog.cli import render
from fairlog.cli.decorators import on_cluster
from fairlog.cli.params import file_option, flag, read_folder, read_text
from fairlog.cli.session import Session
from fairlog.cli.streams import Printer
from fairlog.cli.verbs.submit import submitter
from fairlog.cli.whose import company_option, user_option
from scheduler.service.receipts import write_receipts

_company = company_option("Company of the app.  [default: that of the account]")
_user = user_option("User of the app.  [default: the account that is logged in]")
_BY_API = "a driver reaches the cluster through its API; name it with FAIRLOG_API"


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@_company
@_user
@file_option("--receipt", help="Append the master's signed receipt to this file, for `fairlog audit --receipts`.")
@flag("--wait", help="Wait until the driver ends, print its output if it failed, and exit with its exit code.")
@click.argument("arguments", nargs=-1, required=True, type=read_text, metavar="[OPTION]... APP [ARG]...")
@on_cluster
def spark_submit(
    session: Session,
    *,
    company: str | None,
    user: str | None,
    receipt: Path | None,
    wait: bool,
    arguments: tuple[str, ...],
) -> int:
    """Run a Spark app: its driver and its executors are granted.

    What follows fairlog's own options are spark-submit's, then the app and its arguments. Spark is that of SPARK_HOME,
    else the installed pyspark, at the same path on the workers. The driver's app is printed; it owns a second app, that
    of its executors, which ends with it.
    """
    from fairlog.engines.spark.conf import properties  # noqa: PLC0415 (few need it)
    from fairlog.engines.spark.driver import (  # noqa: PLC0415 (likewise)
        PROPERTIES,
        asked_of,
        driver_size,
        folder_of_conf,
        home_of_spark,
        kept_variables,
        submission,
        without_effect,
    )

    ours = {name for each in click.get_current_context().command.params for name in each.opts}
    asked = asked_of(arguments, ours)
    earlier = asked.earlier(folder_of_conf())
    for sentence in without_effect(earlier):
        render.say(sentence)
    conf = {**properties(earlier), **asked.conf}
    driver_size(conf)
    home = home_of_spark()
    who = submitter(session, company, user)
    app = f"app-{uuid4().hex[:12]}"
    variables = kept_variables() | ({PROPERTIES: earlier} if earlier else {}) | _access(session, app, **who)
    request = submission(arguments, conf, variables, app=app, home=home, folder=read_folder(), **who)
    if receipt is not None:
        write_receipts(receipt, [])  # fails before anything is submitted
    answer = session.submit(request, variables)
    if receipt is not None and answer.signed is not None:
        write_receipts(receipt, [answer.signed])
    click.echo(app)
    if not wait:
        return 0
    from fairlog.cli.waiting import exit_code_of, wait_for  # noqa: PLC0415 (who does not wait need not load RQ)

    end = wait_for(session, app, answer.seq)
    if end.reason == "failed":
        output, printer = session.tasks().tail(app, None), Printer(apart=True, lasting=True)
        printer.tell_missing(None, output.missing())
        printer.write(None, output)
    return exit_code_of(session, app, end)


def _access(session: Session, app: str, company: str, user: str) -> dict[str, str]:
    """The variables by which the app's driver reaches the API from its cell, which shows no socket."""
    client, url = session.front(_BY_API)
    given = client.driver_pass(app, company, user)
    return {URL_VARIABLE: url if session.up is None else session.up.api, TOKEN_VARIABLE: given}


@click.group()
def spark() -> None:
    """Prepare a shell for Spark drivers whose executors fairlog grants."""


@spark.command()
@_company
@_user
@on_cluster
def env(session: Session, *, company: str | None, user: str | None) -> None:
    """Print variables for `eval`: drivers in this shell get executors from fairlog.

    They are for spark-submit in client mode, pyspark, spark-shell and Spark Connect servers. The configuration is in a
    private folder, with a secret drawn now; values of an earlier SPARK_CONF_DIR are kept.
    """
    from fairlog.engines.spark.driver import (  # noqa: PLC0415 (few need it)
        check_java,
        conf_folder,
        defaults,
        defaults_in,
        exports,
        folder_of_conf,
        home_of_spark,
        python_of_spark,
        with_jar,
        without_effect,
    )

    who = submitter(session, company, user)
    session.check_company(who["company"])
    home = home_of_spark()
    check_java(home)
    base = folder_of_conf()
    for sentence in without_effect(defaults_in(base)):
        render.say(sentence)
    folder = conf_folder(defaults(**who, home=home), base, defaults_in(base))
    variables = {"SPARK_HOME": home, "SPARK_CONF_DIR": str(folder), **with_jar(), **python_of_spark()}
    _, url = session.front(_BY_API)
    if session.up is not None:
        variables[URL_VARIABLE] = url
    click.echo(exports(variables))


@spark.command()
def prepare() -> None:
    """Make an archive of Spark's classes, with which its JVMs start faster.

    It is put into Spark's folder, for this Java and these jars. Where workers have a Spark of their own, run it on each
    of their machines. Drivers that are submitted from then on use it, with their executors.
    """
    from fairlog.engines.spark.archives import prepare as make  # noqa: PLC0415 (few need it)
    from fairlog.engines.spark.driver import home_of_spark  # noqa: PLC0415 (likewise)

    made = make(home_of_spark())
    click.echo(f"{made} ({made.stat().st_size >> 20} MiB)")
