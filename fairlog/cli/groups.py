"""Groups of verbs that say what an unknown verb may have meant."""

from __future__ import annotations

from difflib import get_close_matches

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
    "requeue": "`fairlog resubmit APP` submits an app again",
    "retry": "`fairlog resubmit APP --failed` runs failed tasks again",
    "nodes": "`fairlog workers` lists the workers",
    "node": "`fairlog workers` lists the workers",
    "hosts": "`fairlog workers` lists the workers",
    "sinfo": "`fairlog workers` lists the workers, and `fairlog shares` what companies hold",
    "sdiag": "`fairlog status` says what is wrong with the cluster",
    "smap": "`fairlog top` shows shares, queue and workers live",
    "sview": "`fairlog top` shows shares, queue and workers live, and `fairlog page` opens the page",
    "sattach": "`fairlog logs --follow APP` prints the output of an app as it is written",
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
    "--account": "--company",
    "-A": "--company",
    "--cpus-per-task": "--cores-per-task",
    "--dependency": "--after",
    "--endtime": "--until",
    "--format": "--columns",
    "--gpus": "--task-resource",
    "-G": "--task-resource",
    "--gres": "--task-resource",
    "--job-name": "--name",
    "--jobname": "--name",
    "--me": "--user",
    "--mem": "--memory-per-task",
    "--mem-per-cpu": "--memory-per-task",
    "--nice": "--priority",
    "--nodelist": "--prefer",
    "-w": "--prefer",
    "--noheader": "--no-header",
    "--ntasks": "--tasks",
    "--requeue": "--retries",
    "--signal": "--warn",
    "--starttime": "--since",
    "--states": "--state",
    "--test-only": "--plan",
    "--time": "--max-runtime",
    "-u": "--user",
}
"""Options of Slurm, and what the verbs that have it call it."""
NOT_HERE = {
    "--constraint": "workers have no features",
    "-C": "workers have no features",
    "--exclude": "executors are placed by the setting placement",
    "-x": "executors are placed by the setting placement",
    "--exclusive": "a task has its cores for itself, and not its worker",
    "--mail-type": "nobody is told by mail; `fairlog submit --wait` in a script tells anybody",
    "--mail-user": "nobody is told by mail; `fairlog submit --wait` in a script tells anybody",
    "--nodes": "an app has as many executors as its tasks need",
    "-N": "an app has as many executors as its tasks need",
    "--partition": "there are no partitions; companies have quotas",
    "--qos": "companies have quotas, and users have limits",
    "--wrap": "a command is given as it is: `fairlog submit -- CMD`",
}
"""Options of Slurm for which no verb has one, and why."""


def option_elsewhere(error: click.NoSuchOption) -> str:
    """What Slurm's option of that name is called by the verb, or why it has none; "" if Slurm has no such option."""
    name = error.option_name
    here = {each for param in error.ctx.command.params for each in param.opts} if error.ctx is not None else set()
    if (ours := OPTIONS_ELSEWHERE.get(name)) in here:
        return f"what Slurm calls {name} is {ours} here"
    return NOT_HERE.get(name, "")


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
        near = get_close_matches(name.lower(), verbs, 1, 0.6) or [verb for verb in verbs if verb.startswith(name)][:1]
        if not near:
            return f"the verbs are {', '.join(verbs)}" if len(verbs) <= 10 else "`fairlog --help` lists the verbs"
        return f"did you mean `{ctx.command_path} {near[0]}`?"
