"""The command line: one group of thin verbs, each loaded when it is used.

A verb parses, calls and prints. Whatever goes wrong on purpose becomes one sentence on stderr:
exit code 1 if the cluster refused or failed, 2 if the command line was wrong, 130 if interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from keyword import iskeyword
from typing import TYPE_CHECKING, Any, NoReturn, cast

import click
from click.shell_completion import CompletionItem

from fairlog.cli.target import Place, place_options
from scheduler.service.program_log import masked

if TYPE_CHECKING:
    from redis.exceptions import RedisError

LONGEST_SENTENCE = 600

VERBS = {
    "up": ("run", "Run a whole cluster on this machine: store, masters and workers."),
    "down": ("run", "Stop a running `up`, its executors included."),
    "status": ("cluster", "Tell who serves, who stands by and which workers there are."),
    "demo": ("run", "Watch three companies' apps being admitted fairly, on a cluster of its own."),
    "master": ("run", "Run a master: it serves, or stands by while another one does."),
    "worker": ("run", "Offer this machine's cores and memory, and run what is granted on them."),
    "company": ("cluster", "Add, change, remove or list the companies and their quotas."),
    "settings": ("cluster", "Show the settings in force, or change some."),
    "submit": ("apps", "Queue an app: N tasks, each one run of CMD."),
    "kill": ("apps", "End apps, whatever they are doing."),
    "scale": ("apps", "State anew how many executors apps are to have, and where."),
    "apps": ("apps", "List the apps that have not ended, or all of them."),
    "app": ("apps", "Show one app with its executors and tasks."),
    "workers": ("cluster", "List the workers: what they offer and what of it is granted."),
    "drain": ("cluster", "Grant nothing new on workers; what runs there goes on."),
    "decommission": ("cluster", "Have the executors of workers leave, and grant nothing on them any more."),
    "undrain": ("cluster", "Take drained workers back into service."),
    "remove": ("cluster", "Take workers out once they are empty, or at once with --force."),
    "shares": ("cluster", "Show what companies and users hold, and the companies' shares of their quotas."),
    "logs": ("apps", "Print what the tasks of an app have printed."),
    "log": ("log", "Print the log, one line per event, its chain of digests checked."),
    "backup": ("backup", "Copy the log into a file, while the cluster runs."),
    "restore": ("backup", "Make a backup the log of a cluster that has none."),
    "archive": ("backup", "Move old entries of the log out of the store, into compressed files."),
    "import": ("import_log", "Make an exported log the log of a cluster that has none."),
    "explain": ("audit", "Tell why an app waits, and why it was admitted and placed as it was."),
    "audit": ("audit", "Work out every decision anew, and name what deviates from the rules."),
    "replay": ("replay", "Play the log as a live view: shares, queue, workers and decisions."),
    "fairness": ("figures", "Measure how fair a span of the log was to companies and users."),
    "statement": (
        "figures",
        "State what a company's apps held in a month, by user and app.",
    ),
    "whatif": ("whatif", "Run the inputs of the log, or of a trace, under other rules, and compare."),
    "simulate": ("log", "Run a scenario through the rules, without a store."),
}
"""Every verb, the module that holds it, and its help in one line."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for, and whose failures are one sentence each."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        """The verbs, in the order in which a newcomer meets them."""
        return list(VERBS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The verb, imported now; None if there is none of that name."""
        if cmd_name not in VERBS:
            return None
        name = f"{cmd_name}_" if iskeyword(cmd_name) else cmd_name
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
        """What the verb returns. Raises: click.ClickException with one sentence for a failure."""
        try:
            return super().invoke(ctx)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except _failures() as error:
            raise click.ClickException(_sentence(error)) from error

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002 (click's signature)
        **extra: Any,  # noqa: ANN401 (likewise)
    ) -> Any:  # noqa: ANN401 (likewise)
        """As click's, but a failure is one line, without the usage, and an interrupt exits with 130."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            _say(error)
            sys.exit(error.exit_code)
        except (click.Abort, KeyboardInterrupt):
            sys.exit(130)
        except BrokenPipeError:
            _stop_writing()
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    "fairlog",
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="fairlog", message="%(prog)s %(version)s")
@place_options(from_environment=True)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Share a cluster among companies and their users, fairly and provably.

    Start with `fairlog demo`, or with `fairlog up` and `fairlog company add acme`. The cluster is found
    by --store, else FAIRLOG_STORE, else the `up` that runs on this machine.
    """
    ctx.ensure_object(Place)


def main() -> None:
    """Run the command line of this process and exit with its code."""
    cli.main(prog_name="fairlog")


def _failures() -> tuple[type[Exception], ...]:
    """What a verb may fail with on purpose; looked up only once something has failed."""
    from redis.exceptions import RedisError  # noqa: PLC0415 (not needed while all goes well)

    from scheduler.model.errors import FairlogError  # noqa: PLC0415 (likewise)

    return FairlogError, RedisError, OSError


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    elif type(error).__module__.startswith("redis."):
        from scheduler.store.transient import in_words  # noqa: PLC0415 (as in `_failures`)

        text = in_words(cast("RedisError", error))
    text = masked(text)
    return text if len(text) <= LONGEST_SENTENCE else f"{text[: LONGEST_SENTENCE - 200]} … {text[-200:]}"


def _say(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    text = " ".join(error.format_message().split())
    if isinstance(error, click.NoSuchOption | click.UsageError) and error.ctx is not None:
        text = f"{text.rstrip('.')}; see `{error.ctx.command_path} --help`"
    click.echo(f"Error: {text}", err=True)


def _stop_writing() -> NoReturn:
    """Whoever read our output is gone: end quietly, and do not let Python flush into the void."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(1)


if __name__ == "__main__":
    main()
