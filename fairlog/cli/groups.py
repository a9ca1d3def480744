"""Groups of verbs that say what an unknown verb may have meant."""

from __future__ import annotations

from collections.abc import Callable, Collection
from difflib import get_close_matches
from typing import Any

import click

ELSEWHERE = {
    "ps": "`fairlog apps` lists apps",
    "queue": "`fairlog apps` lists apps",
    "squeue": "`fairlog apps` lists apps",
    "qstat": "`fairlog apps` lists apps",
    "jobs": "`fairlog apps` lists apps",
    "list": "`fairlog apps` lists apps",
    "ls": "`fairlog apps` lists apps",
    "history": "`fairlog apps --ended` lists the apps that have ended",
    "sacct": "`fairlog apps --ended` lists the apps that have ended",
    "seff": "`fairlog app APP` shows what the tasks of an app have used",
    "job": "`fairlog app APP` shows an app",
    "show": "`fairlog app APP` shows an app",
    "describe": "`fairlog app APP` shows an app",
    "inspect": "`fairlog app APP` shows an app",
    "cancel": "`fairlog kill APP` kills an app",
    "scancel": "`fairlog kill APP` kills an app",
    "qdel": "`fairlog kill APP` kills an app",
    "stop": "`fairlog kill APP` kills an app, and `fairlog down` stops the running `up`",
    "delete": "`fairlog kill APP` kills an app",
    "rm": "`fairlog kill APP` kills an app",
    "sbatch": "`fairlog submit SCRIPT` submits a script",
    "qsub": "`fairlog submit SCRIPT` submits a script",
    "batch": "`fairlog submit SCRIPT` submits a script",
    "salloc": "`fairlog run -- CMD` runs a command and prints its output",
    "srun": "`fairlog run -- CMD` runs a command and prints its output",
    "retry": "`fairlog resubmit APP --failed` runs failed tasks again",
    "nodes": "`fairlog workers` lists the workers",
    "node": "`fairlog workers` lists the workers",
    "hosts": "`fairlog workers` lists the workers",
    "sinfo": "`fairlog workers` lists the workers, and `fairlog shares` what companies hold",
    "sdiag": "`fairlog status` says what is wrong with the cluster",
    "smap": "`fairlog top` shows shares, queue and workers live",
    "sview": "`fairlog top` shows shares, queue and workers live, and `fairlog page` opens the page",
    "sattach": "`fairlog logs --follow APP` prints the output of an app as it is written",
    "reservation": "`fairlog window add` keeps workers for maintenance or for a company",
    "maintenance": "`fairlog window add` keeps workers for maintenance",
    "cordon": "`fairlog drain WORKER` stops granting on a worker",
    "uncordon": "`fairlog undrain WORKER` returns a worker to service",
    "resume": "`fairlog release APP` lets an app on hold start; `fairlog undrain WORKER` returns a worker",
    "suspend": "`fairlog hold APP` keeps a pending app from starting",
    "sprio": "`fairlog explain APP` tells why an app waits, and who goes first",
    "sshare": "`fairlog shares` shows what companies and users hold",
    "sreport": "`fairlog statement` reports the use of a month, and `fairlog fairness` how fair it was",
    "scontrol": "`fairlog app APP`, `hold`, `release`, `reprioritize` and `drain` show and change apps and workers",
    "sacctmgr": "`fairlog company`, `limit` and `account` manage companies, limits and accounts",
    "sstat": "`fairlog app APP` shows the tasks of an app",
    "tail": "`fairlog logs --follow APP` prints the output of an app as it is written",
    "attach": "`fairlog logs --follow APP` prints the output of an app as it is written",
    "watch": "`fairlog top` shows shares, queue and workers live",
    "start": "`fairlog up` starts a cluster on this machine",
    "serve": "`fairlog api` serves the HTTP API",
    "config": "`fairlog settings` shows the settings",
    "set": "`fairlog settings set NAME=VALUE` changes settings",
    "users": "`fairlog account list` lists the accounts",
    "user": "`fairlog account` manages accounts",
    "quota": "`fairlog company set NAME --cores N --memory SIZE` sets a quota",
    "quotas": "`fairlog company list` lists the quotas",
    "why": "`fairlog explain APP` tells why an app waits",
    "events": "`fairlog log` prints the log",
    "version": "`fairlog --version` prints the version",
    "info": "`fairlog status` shows masters and workers",
    "output": "`fairlog logs APP` prints the output of an app",
    "outputs": "`fairlog logs APP` prints the output of an app",
    "cat": "`fairlog logs APP` prints the output of an app",
    "get": "`fairlog apps` lists apps, `fairlog app APP` shows one, and `fairlog workers` lists the workers",
    "init": "`fairlog up` starts a cluster on this machine, and `fairlog company add NAME` adds a company",
    "setup": "`fairlog up` starts a cluster on this machine, and `fairlog company add NAME` adds a company",
    "create": "`fairlog submit -- CMD` submits an app, and `fairlog company add NAME` adds a company",
}
"""The verbs that people know from elsewhere, and what answers them here."""


OPTIONS_ELSEWHERE = {
    "account": ("--company",),
    "accounts": ("--company",),
    "constraint": ("--require",),
    "cpus-per-task": ("--cores-per-task",),
    "dependency": ("--after",),
    "endtime": ("--until",),
    "format": ("--columns",),
    "Format": ("--columns",),
    "gpus": ("--task-resource",),
    "gpus-per-node": ("--task-resource",),
    "gpus-per-task": ("--task-resource",),
    "gres": ("--task-resource",),
    "iterate": ("--watch",),
    "job-name": ("--name",),
    "jobname": ("--name",),
    "kill-on-bad-exit": ("--keep-going",),
    "label": ("--prefix",),
    "mail-user": ("--notify",),
    "me": ("--user",),
    "mem": ("--memory-per-task",),
    "mem-per-cpu": ("--memory-per-task",),
    "nice": ("--priority",),
    "nodelist": ("--prefer",),
    "noheader": ("--no-header",),
    "ntasks": ("--tasks",),
    "pty": ("--tty",),
    "requeue": ("--retries",),
    "signal": ("--warn",),
    "starttime": ("--since",),
    "state": ("--state",),
    "states": ("--state",),
    "test-only": ("--plan",),
    "time": ("--max-runtime",),
    "uid": ("--user",),
    "users": ("--user",),
}
"""Options of Slurm by their long names, and what verbs call them that have them."""
_ONE_LINE = "an app is one line; `fairlog app APP` shows its tasks"
_BY_SCRIPTS = "scripts read --json"
NOT_HERE = {
    "allocations": _ONE_LINE,
    "allusers": "what you may see is listed of all users; --user NAME chooses",
    "array": _ONE_LINE,
    "array-unique": _ONE_LINE,
    "brief": "-o app,state,reason chooses columns",
    "dead": "all workers are listed with their states",
    "delimiter": _BY_SCRIPTS,
    "exclude": "executors are placed by the setting placement",
    "exclusive": "a task has its cores for itself, and not its worker",
    "full": "`fairlog signal APP SIGNAL --all-processes` sends a signal to all processes",
    "input": "let CMD read the file: `fairlog submit -- sh -c 'CMD < FILE'`",
    "interactive": "a filter asks in any case; --yes answers",
    "jobid": "`fairlog exec APP -- CMD` runs a command beside a running app",
    "jobs": "`fairlog app APP` shows one app",
    "list-reasons": "reasons are below the table in any case",
    "long": "-o COLUMN,... chooses columns, and `fairlog app APP` shows all of one",
    "mail-type": "`--notify` tells how an app ended, however that was",
    "nodes": "an app has as many executors as its tasks need",
    "ntasks-per-node": "tasks are placed by the setting placement; --tasks N says how many there are",
    "parsable": _BY_SCRIPTS,
    "parsable2": _BY_SCRIPTS,
    "partition": "there are no partitions; companies have quotas",
    "qos": "companies have quotas, and users have limits",
    "quiet": "the id alone is printed, and nothing by a verb that has nothing to say",
    "signal": "`fairlog signal APP SIGNAL` sends a signal",
    "start": "`-o app,starts,starts-by` shows when apps may start",
    "test-only": "`fairlog submit --plan` tells whether and where an app would start",
    "unbuffered": "output is printed as it comes",
    "wait": "the end is waited for in any case",
    "wrap": "a command is given as it is: `fairlog submit -- CMD`",
}
"""Options of Slurm, by their long names, for which a verb may have none, and why."""
_LIKE = {
    "submit": ("SBATCH", "SRUN"),
    "run": ("SBATCH", "SRUN"),
    "exec": ("SRUN",),
    "apps": ("SQUEUE", "SACCT"),
    "app": ("SCONTROL", "SACCT"),
    "top": ("SQUEUE",),
    "kill": ("SCANCEL",),
    "signal": ("SCANCEL",),
    "workers": ("SINFO",),
    "shares": ("SSHARE",),
}
"""The verbs, and the commands of Slurm whose tables of options people may have in mind."""

_CORES = ("--cores", "--cores-per-task")
_MEMORY = ("--memory", "--memory-per-task")
_ADDRESSES = ("--resource", "--task-resource")
_FOLDER = ("--chdir", "--data")
_PLACE = ("--api", "--store")
_LISTENS = ("--listen",)
_RUNS_FOR = ("--max-runtime", "--max-max-runtime", "--lifetime")
_OFTEN = ("--tasks", "--instances", "--workers")
SAME_MEANING = {
    "address": (*_LISTENS, *_PLACE),
    "admin": ("--role",),
    "bind": _LISTENS,
    "count": _OFTEN,
    "cpu": _CORES,
    "cpus": _CORES,
    "cwd": _FOLDER,
    "dir": _FOLDER,
    "directory": _FOLDER,
    "environment": ("--env",),
    "expires": ("--lifetime",),
    "expiry": ("--lifetime",),
    "gpu": _ADDRESSES,
    "gpus": _ADDRESSES,
    "instances": _OFTEN,
    "max-cores": _CORES,
    "mem": _MEMORY,
    "memory": _MEMORY,
    "metrics-port": ("--metrics",),
    "name": ("--id",),
    "ncpus": _CORES,
    "nodes": ("--workers",),
    "num-cores": _CORES,
    "num-cpus": _CORES,
    "num-executors": ("--executors",),
    "num-tasks": ("--tasks",),
    "num-workers": ("--workers",),
    "port": _LISTENS,
    "project": ("--company",),
    "queue": ("--company",),
    "ram": _MEMORY,
    "replicas": ("--replicas", *_OFTEN),
    "server": _PLACE,
    "tenant": ("--company",),
    "timeout": _RUNS_FOR,
    "total-executor-cores": _CORES,
    "ttl": ("--lifetime",),
    "url": _PLACE,
    "username": ("--user",),
    "vcpus": _CORES,
    "walltime": _RUNS_FOR,
    "workdir": _FOLDER,
    "working-dir": _FOLDER,
}
"""Names that people try for what verbs call otherwise, of which the first that a verb has is meant."""


def unknown_option(error: click.NoSuchOption) -> str:
    """The sentence that names the option which was meant: by its meaning, then by its name, the nearest first.

    Slurm's own name for one comes before either: it is no guess.
    """
    said = f"No such option '{error.option_name}'"
    if error.ctx is None:
        return said
    if elsewhere := option_elsewhere(error):
        return f"{said}: {elsewhere}"
    shown = [each for each in error.ctx.command.params if isinstance(each, click.Option) and not each.hidden]
    here = [each for option in shown for each in (*option.opts, *option.secondary_opts)]
    near = nearest_options(error.option_name, here)
    return f"{said}. Did you mean {' or '.join(near)}?" if near else said


def nearest_options(name: str, here: Collection[str]) -> list[str]:
    """Of the options `here`, the one that means what the name does, or up to three of like names, the nearest first."""
    meant = [each for each in SAME_MEANING.get(name.lstrip("-"), ()) if each in here]
    return meant[:1] or get_close_matches(name, here, 3)


def option_elsewhere(error: click.NoSuchOption) -> str:
    """What Slurm's option of that name is called by the verb, or why it has none; "" if Slurm has no such option."""
    if error.ctx is None:
        return ""
    from fairlog.compat.slurm import tables  # noqa: PLC0415 (few options are wrong)
    from fairlog.compat.slurm.words import ACTS  # noqa: PLC0415 (likewise)

    name, verb = error.option_name, error.ctx.command.name or ""
    here = {each for param in error.ctx.command.params for each in (*param.opts, *param.secondary_opts)}
    meant = [
        option
        for command in _LIKE.get(verb, ("SBATCH", "SQUEUE", "SACCT"))
        for option in getattr(tables, command)
        if name in (f"-{option.letter}", f"--{option.name}")
    ]
    named = [each for option in meant for each in OPTIONS_ELSEWHERE.get(option.name, (f"--{option.name}",))]
    if ours := [each for each in dict.fromkeys(named) if each in here]:
        return f"what Slurm calls {name} is {' or '.join(ours)} here"
    if verb not in _LIKE:
        return ""
    whys = [NOT_HERE.get(option.name) or (option.note if option.effect != ACTS else "") for option in meant]
    return next((why for why in whys if why), "there is nothing like Slurm's option of that name" if meant else "")


def beside_slurm(letter: str, read: Callable[[str], Any]) -> Callable[[str], Any]:
    """What reads a value as `read`, and says of one that Slurm's option of that letter takes what it is called here."""

    def value(text: str) -> Any:  # noqa: ANN401 (as `read`)
        try:
            return read(text)
        except (click.BadParameter, ValueError) as error:
            said = error.message if isinstance(error, click.BadParameter) else f"{text[:40]!r} is not a whole number"
            raise click.BadParameter(f"{said}{_meant_for_slurm(letter, text.strip())}") from None

    value.__name__ = "value"
    return value


def _meant_for_slurm(letter: str, text: str) -> str:
    if letter == "p" and text and not text.strip("-+0123456789."):
        return ""
    if letter == "p":
        return "; -p is --priority here, and there are no partitions"
    if letter == "e" and text and "=" not in text:
        return f"; -e is --env here, and a file for errors is --error {text[:40]}"
    if letter == "a" and "%" in text:
        return "; how many run at once is --cores here"
    kind, colon, jobs = text.partition(":")
    ours = {"afterok": "ok", "afterany": "any", "afternotok": "not-ok", "after": "began"}.get(kind)
    if letter == "d" and colon and ours:
        return f"; what Slurm calls {text[:40]} is {jobs.partition(':')[0][:30]}:{ours} here"
    return ""


class VerbGroup(click.Group):
    """A group that names the verb which an unknown one may have meant."""

    elsewhere: dict[str, str] = {}  # noqa: RUF012 (never changed)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's. Raises: click.UsageError naming the nearest verb, or the one that people know by another name."""
        name = args[0] if args else ""
        if name and not name.startswith("-") and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            ctx.fail(f"no verb is named {name[:40]!r}; {self._meant(ctx, name)}")
        return super().resolve_command(ctx, args)

    def _meant(self, ctx: click.Context, name: str) -> str:
        if name.lower() in self.elsewhere:
            return self.elsewhere[name.lower()]
        verbs = self.list_commands(ctx)
        if name.lower() == "get" and "show" in verbs:  # which is not near it, as "set" is
            name = "show"
        near = get_close_matches(name.lower(), verbs, 1, 0.6) or [verb for verb in verbs if verb.startswith(name)][:1]
        if not near:
            return f"the verbs are {', '.join(verbs)}" if len(verbs) <= 10 else "`fairlog --help` lists the verbs"
        return f"did you mean `{ctx.command_path} {near[0]}`?"
