"""The command line: one group of thin verbs, each loaded when it is used.

A verb parses, calls and prints. An expected failure is one sentence on stderr. Exit codes: 1 refused or failed, 2 wrong
usage, 130 interrupted.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, cast

import click
from click.shell_completion import CompletionItem

from fairlog.cli.advised import advised
from fairlog.cli.groups import ELSEWHERE, VerbGroup, unknown_option
from fairlog.cli.printed import leave_stdout, only_printable, open_standard_streams, spoken
from fairlog.cli.target import Target, target_options
from fairlog.cli.times import localized
from scheduler.service.program_log import masked

if TYPE_CHECKING:
    from redis.exceptions import RedisError

LONGEST_SENTENCE = 600

VERBS = {
    "up": ("run", "Run a whole cluster on this machine: store, masters and workers."),
    "down": ("run", "Stop the running `up` and its executors."),
    "status": ("status", "Show what is wrong, the active master, the standbys and the workers."),
    "alerts": ("alerts", "Tell a webhook or a command what needs attention, and when it no longer does."),
    "demo": ("run", "Run a guided demonstration on a cluster of its own."),
    "api": ("run", "Serve the HTTP API, through which everybody else reaches the cluster."),
    "master": ("run", "Run a master, active or standby."),
    "worker": ("run", "Offer this machine's cores and memory to the cluster."),
    "pool": ("pool", "Have workers come with demand and go without it."),
    "login": ("login", "Log in with a token or an invitation, which is read from stdin or asked for."),
    "page": ("login", "Print a link that opens the live page in a browser, logged in."),
    "whoami": ("login", "Show in which account and role your commands are sent, and where to."),
    "logout": ("login", "Revoke the token that `fairlog login` has kept, and remove it."),
    "account": ("accounts", "Add, change, remove or list the accounts of people, robots and workers."),
    "token": ("accounts", "Issue, revoke or list the tokens with which accounts prove who they are."),
    "store": ("store", "Prepare the store that masters, API servers and workers use."),
    "keys": ("keys", "Make files of keys, which sign messages, receipts and seals."),
    "company": ("cluster", "Add, change, remove or list companies and their quotas."),
    "limit": ("cluster", "Set or list limits of the cluster, departments, companies and users."),
    "resource": ("cluster", "Register or list kinds of resources beside cores and memory, such as gpu."),
    "settings": ("cluster", "Show or change the cluster's settings."),
    "edition": ("cluster", "Show the edition of the rules of sharing, or go on by the newest one."),
    "submit": ("submit", "Submit an app, which runs CMD one or more times."),
    "run": ("submit", "Submit an app, print its output as it is written, and exit with its code."),
    "mpirun": ("gangs", "Submit a gang whose executors are the hosts of one mpirun."),
    "torchrun": ("gangs", "Submit a gang whose executors are the nodes of one torchrun."),
    "resubmit": ("submit", "Submit an app again as it was submitted, under a new id."),
    "kill": ("changes", "Kill apps, single executors, or a task."),
    "signal": ("changes", "Send a signal to the tasks of an app that run now."),
    "requeue": ("changes", "Put apps back into their queue, under their own id."),
    "scale": ("changes", "Change an app's executor count and preferred hosts."),
    "finish": ("changes", "End apps of executor programs, as their owner."),
    "extend": ("changes", "Let apps run longer than their maximum runtime."),
    "reprioritize": ("changes", "Change an app's priority among its user's apps."),
    "hold": ("changes", "Keep pending apps from starting until they are released."),
    "release": ("changes", "Let apps on hold start."),
    "rq": ("engines", "Run RQ workers on executors, as many as queues have jobs."),
    "spark-submit": ("spark", "Run a Spark app: its driver and its executors are granted."),
    "spark": ("spark", "Prepare a shell for Spark drivers whose executors fairlog grants."),
    "slurm": ("slurm", "Find Slurm's commands, for programs that submit by them."),
    "apps": ("apps", "List the apps that have not ended, or all apps."),
    "app": ("apps", "Show one app with its executors, tasks and links."),
    "top": ("top", "Show shares, queue and workers live in a terminal."),
    "workers": ("cluster", "List the workers with their offered and granted resources."),
    "drain": ("cluster", "Stop granting resources on workers; running executors continue."),
    "decommission": ("cluster", "Stop the executors of workers, and never grant on these workers again."),
    "undrain": ("cluster", "Return drained workers to service."),
    "remove": ("cluster", "Remove workers once they are empty (--force: at once); forget lost ones."),
    "department": ("departments", "Add, change, remove or list departments of companies."),
    "window": ("windows", "Add, list or remove times in which nothing runs on some workers."),
    "shares": ("cluster", "Show what companies and users hold, and each company's share of its quota."),
    "logs": ("logs", "Print the output of apps' tasks, or of the programs of their executors."),
    "exec": ("visit", "Run a command beside the tasks of a running app, and exit with its code."),
    "reads": ("audit", "List who read what is private: outputs and private parts of the log."),
    "log": ("log", "Print the log, one line per event, and verify its chain of digests."),
    "backup": ("backup", "Copy the log to a file while the cluster runs."),
    "restore": ("backup", "Restore a backup into a cluster that has no log."),
    "recover": ("backup", "Go on with a log that is shorter than one that was known."),
    "archive": ("backup", "Move old log entries from the store to compressed files."),
    "import": ("backup", "Import an exported log into a cluster that has no log."),
    "explain": ("explain", "Explain why an app waits, or why it was admitted and placed as it was."),
    "audit": ("audit", "Check every decision in the log against the rules."),
    "checkpoint": ("log", "Print the end of the log as SEQ:DIGEST."),
    "replay": ("replay", "Play the log as a live view: shares, queue, workers and decisions."),
    "fairness": ("figures", "Report how fair the log was to companies, users or departments."),
    "statement": ("figures", "Report a month's resource use of a company, a department or the cluster."),
    "efficiency": ("efficiency", "Report what apps used of what they were granted, and what they wasted."),
    "whatif": ("whatif", "Replay the log's inputs, or a trace, under other rules and compare."),
    "simulate": ("log", "Run a scenario file through the rules, without a store."),
    "help": ("help", "Print the help of fairlog or of a verb."),
}
"""Verb -> (module in `fairlog.cli.verbs`, help in one line)."""


class LazyGroup(VerbGroup):
    """A group that imports its commands when they are used and prints a failure as one sentence."""

    elsewhere = ELSEWHERE

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The verbs, in the order of the help."""
        return list(VERBS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb, imported now; None if the name is unknown."""
        if cmd_name not in VERBS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) or hasattr(builtins, cmd_name) else cmd_name.replace("-", "_")
        command = getattr(import_module(f"fairlog.cli.verbs.{VERBS[cmd_name][0]}"), name)
        return command if isinstance(command, click.Command) else None

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs and their help without importing any of them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The verbs, and the group's own options, that begin with `incomplete`."""
        verbs = [CompletionItem(name, help=text) for name, (_, text) in VERBS.items() if name.startswith(incomplete)]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 (click's signature)
        """The verb's return value. Raises: click.ClickException with one sentence for an expected failure."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError as error:
            leave_stdout(error)
            sys.exit(1)
        except _failures() as error:
            _check_stdout()
            raise click.ClickException(_sentence(error)) from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 (click's signature)
        **extra: Any,  # noqa: ANN401 (likewise)
    ) -> Any:  # noqa: ANN401 (likewise)
        """As click's, but a failure prints one line without the usage, and an interrupt exits with 130.

        Whatever a verb prints is printable: names and texts of tenants do not control the terminal.
        """
        with only_printable():
            return self._main(args, prog_name, complete_var, standalone=standalone_mode, **extra)

    def _main(
        self,
        args: Sequence[str] | None,
        prog_name: str | None,
        complete_var: str | None,
        *,
        standalone: bool,
        **extra: Any,  # noqa: ANN401 (click's)
    ) -> Any:  # noqa: ANN401 (likewise)
        if not standalone:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            _say(error)
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)
        except BrokenPipeError as error:
            leave_stdout(error)
            sys.exit(1)
        except OSError as error:
            click.echo(spoken(leave_stdout(error), error=True), err=True)
            sys.exit(1)
        sys.exit(code if isinstance(code, int) else 0)


def _tell_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:  # noqa: FBT001 - click's order
    if not wanted or ctx.resilient_parsing:
        return
    from importlib.metadata import version  # noqa: PLC0415 (slow to import)
    from importlib.util import find_spec  # noqa: PLC0415 (likewise)

    rules = find_spec("scheduler.rules.state.cluster")
    compiled = rules is not None and not str(rules.origin).endswith(".py")
    click.echo(f"fairlog {version('fairlog')}{' (compiled)' if compiled else ''}")
    ctx.exit()


@click.group(
    "fairlog", cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_tell_version,
    help="Show the version, and whether the rules are compiled, and exit.",
)
@target_options(from_environment=True)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Share a cluster among companies and their users, fairly and provably.

    Start with `fairlog demo`, or with `fairlog up` and `fairlog company add acme`. Verbs use the store that --store or
    FAIRLOG_STORE names, else the API that FAIRLOG_API names or `fairlog login` was given, else the `up` running here.
    """
    ctx.ensure_object(Target)


def main() -> None:
    """Run the command line of this process and exit with its code."""
    open_standard_streams()
    cli.main(prog_name="fairlog")


def _check_stdout() -> None:
    """Raises: click.ClickException if stdout takes nothing more, which is then why a verb has failed."""
    failure = getattr(sys.stdout, "failure", None)
    try:
        sys.stdout.flush()
    except OSError as error:
        failure = error
    if failure is not None:
        raise click.ClickException(leave_stdout(failure))


def _failures() -> tuple[type[Exception], ...]:
    """The expected failures of verbs; imported only after a failure."""
    from redis.exceptions import RedisError  # noqa: PLC0415 (slow to import)

    from scheduler.model.errors import FairlogError  # noqa: PLC0415 (likewise)

    return FairlogError, RedisError, OSError


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, FileNotFoundError) and error.filename is None:
        from scheduler.service.folders import FolderGone, working_folder  # noqa: PLC0415 (as in `_failures`)

        with suppress(FolderGone):
            working_folder()
            return text
        text = str(FolderGone())
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    elif type(error).__module__.startswith("redis."):
        from scheduler.store.transient import in_words  # noqa: PLC0415 (as in `_failures`)

        text = in_words(cast("RedisError", error))
    return _whole(advised(localized(masked(text))))


def _whole(text: str) -> str:
    """The sentence, without its middle if somebody's input made it too long to be read."""
    return text if len(text) <= LONGEST_SENTENCE else f"{text[: LONGEST_SENTENCE - 200]} … {text[-200:]}"


def _say(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    text = unknown_option(error) if isinstance(error, click.NoSuchOption) else error.format_message()
    text = " ".join(text.split())
    if isinstance(error, click.NoSuchOption | click.UsageError) and error.ctx is not None:
        more = f"`{error.ctx.command_path} --help`"
        if text.endswith("?"):
            text = f"{text} {more} lists all"
        elif more not in text:
            text = f"{text.rstrip('.')}; see {more}"
        text = _whole(text)
    click.echo(spoken(text, error=True), err=True)
