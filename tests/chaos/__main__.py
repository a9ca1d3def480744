"""`python -m tests.chaos`: run a cluster of real processes under load and faults, then check its promises.

If a promise is broken, the exit code is 1 and the output names the violations and the seed.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from fairlog.cli.render import print_json, print_table
from tests.chaos.checker import Evidence, Violation, check
from tests.chaos.decisions import PROMISES
from tests.chaos.faults import draw
from tests.chaos.rig import Rig
from tests.unit.recorded import exported

_LINE_EVERY_S = 10.0
_SHOWN = 20


def progress_teller() -> Callable[[str], None]:
    """A function that reports progress: one changing line on a terminal, otherwise a line every ten seconds."""
    terminal, said_s = sys.stderr.isatty(), 0.0

    def say(sentence: str) -> None:
        nonlocal said_s
        now = time.monotonic()
        if terminal and now - said_s >= 0.2:
            click.echo(f"\r\x1b[K{sentence}", nl=False, err=True)
            said_s = now
        elif not terminal and now - said_s >= _LINE_EVERY_S:
            click.echo(sentence, err=True)
            said_s = now

    return say


def _report(evidence: Evidence, violations: list[Violation], rig: Rig, run: dict[str, Any]) -> dict[str, Any]:
    lines = evidence.lines
    settled = {phase: {line.id for line in lines if line.phase == phase} for phase in ("ok", "fail")}
    executors = {trace.executor for trace in evidence.traces}
    begun = [(trace.app, trace.task) for trace in evidence.traces if trace.what == "begin"]
    ends = [data["reason"] for _, data in evidence.ends.values()]
    return {
        **run,
        "faults": dict(sorted(rig.inflicted.items())),
        "commands": {
            "sent": len(evidence.sent),
            "acknowledged": len(settled["ok"]),
            "refused": len(settled["fail"]),
            "unknown": len(evidence.sent.keys() - settled["ok"] - settled["fail"]),
        },
        "apps": {reason: ends.count(reason) for reason in ("finished", "failed", "killed", "expired")},
        "tasks": {"begun": len(begun), "begun_again": len(begun) - len(set(begun)), "executors": len(executors)},
        "log": {
            "events": len(evidence.facts),
            "elections": sum(fact.type == "MasterElected" for fact in evidence.facts),
            "workers_lost": sum(data["reason"] == "lost" for _, data in evidence.of_type("WorkerRemoved")),
        },
        "violations": [violation._asdict() for violation in violations],
    }


def _print(report: dict[str, Any]) -> None:
    counts = [
        (what, f"{name}: {count}")
        for what in ("commands", "apps", "tasks", "log")
        for name, count in report[what].items()
    ]
    print_table(["what", "count"], counts, empty="")
    click.echo()
    print_table(["fault", "times"], list(report["faults"].items()), empty="no faults")
    click.echo()
    print_violations(report["violations"], PROMISES)


def print_violations(violations: Sequence[Mapping[str, str]], promises: Iterable[str]) -> None:
    """How often each promise was broken, and by what."""
    broken = dict.fromkeys(promises, 0)
    for violation in violations:
        broken[violation["promise"]] += 1
    print_table(["promise", "broken"], list(broken.items()), empty="")
    for violation in violations[:_SHOWN]:
        click.echo(f"BROKEN: {violation['promise']}: {violation['what']}")
    if len(violations) > _SHOWN:
        click.echo(f"… and {len(violations) - _SHOWN} more")


def exit_if_broken(violations: Sequence[Violation], folder: Path, again: str) -> None:
    """Exit with 1 if there are violations: say what each process of the cluster printed last, and how to run again."""
    if not violations:
        return
    for log in sorted((folder / "logs").iterdir()):
        lines = log.read_text(errors="replace").rstrip().splitlines()
        if lines:
            click.echo(f"{log.stem}: {lines[-1]}", err=True)
    click.echo(f"{len(violations)} violations; histories, traces and logs lie in {folder}; again: {again}", err=True)
    sys.exit(1)


def _keep(evidence: Evidence, folder: Path) -> None:
    """Write the log next to the histories and traces."""
    with (folder / "log.jsonl").open("w") as file:
        file.write(exported(evidence.records))


@click.command()
@click.option("--seconds", type=click.FloatRange(1), default=300, show_default=True, help="How long faults come.")
@click.option("--seed", type=int, help="Draws the faults.  [default: a new one]")
@click.option("--replicated", is_flag=True, help="Three store servers with sentinels instead of the embedded one.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--keep", type=click.Path(path_type=Path), help="A new folder to keep everything in.")
def main(*, seconds: float, seed: int | None, replicated: bool, as_json: bool, keep: Path | None) -> None:
    """Run a cluster of real processes under load, kill and stop them at random, and check every promise afterwards."""
    drawn = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    options = " --replicated" if replicated else ""
    again = f"python -m tests.chaos --seconds {seconds:g} --seed {drawn}{options}"
    click.echo(again, err=True)
    folder = keep or Path(tempfile.mkdtemp(prefix="fairlog-chaos-"))
    folder.mkdir(exist_ok=True)
    faults = draw(drawn, seconds, replicated=replicated)
    progress = progress_teller()
    began_s = time.monotonic()
    with (folder / "faults.log").open("w") as told:

        def tell(sentence: str) -> None:
            told.write(f"{time.time():.3f} {sentence}\n")
            told.flush()

        with Rig(folder, drawn, replicated=replicated, say=tell) as rig:
            rig.run(faults, seconds, progress)
            rig.settle(progress)
            evidence = rig.evidence()
    violations = check(evidence, PROMISES)
    run = {"seed": drawn, "seconds": seconds, "replicated": replicated, "took_s": round(time.monotonic() - began_s, 1)}
    report = _report(evidence, violations, rig, run)
    if sys.stderr.isatty():
        click.echo("\r\x1b[K", nl=False, err=True)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if violations or keep is not None:
        _keep(evidence, folder)
    exit_if_broken(violations, folder, again)
    if keep is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
