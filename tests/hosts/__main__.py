"""`python -m tests.hosts`: run a cluster on several hosts, cut them off, stop and kill them; then check its promises.

If a promise is broken, the exit code is 1 and the output names the violations and the seed.
"""

from __future__ import annotations

import random
import shlex
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from fairlog.cli.render import print_json, print_table
from tests.chaos.__main__ import exit_if_broken, print_violations, progress_teller
from tests.chaos.checker import PROMISES, Violation, check
from tests.hosts.bed import Bed, server_of
from tests.hosts.faults import BY_NAME, FAULTS, inflicted, order
from tests.hosts.network import missing
from tests.hosts.pauses import Span, pauses
from tests.hosts.upgrade import unpacked, upgrade

QUIET_S = 2.0
"""The time between two faults, when everything is well."""
COMPLAINTS = "who watches the cluster finds nothing"


def _suffer(bed: Bed, draw: random.Random, chosen: tuple[str, ...], seconds: float, most_s: float | None) -> list[Span]:
    """Inflict one fault after the other, each once all is well; begin none after so many seconds."""
    spans: list[Span] = []
    began_s = time.monotonic()
    progress = progress_teller()
    for number, fault in enumerate(order(draw, chosen)):
        bed.await_well(time.monotonic())
        if time.monotonic() - began_s >= seconds or (chosen and number >= len(chosen)):
            return spans
        bed.tend(QUIET_S)
        fault_s = time.monotonic()
        hold_s = fault.hold_s if most_s is None else min(fault.hold_s, most_s)
        with inflicted(fault, bed, draw) as victims:
            bed.say(f"{fault.name}: {victims} for {hold_s:g} s")
            progress(f"{fault_s - began_s:.0f} of {seconds:.0f} s, {len(spans)} faults, now {fault.name}")
            bed.tend(hold_s)
        healed_s = time.monotonic()
        bed.say(f"{fault.name}: over")
        bed.await_well(healed_s)
        spans.append(Span(fault.name, fault_s, healed_s, time.monotonic()))
        bed.say(f"{fault.name}: well again")
    return spans


def _lasting(spans: list[Span], bed: Bed) -> list[dict[str, Any]]:
    """The longest pauses of each kind of fault."""
    longest: dict[str, dict[str, Any]] = {}
    for span in spans:
        found = pauses(span, bed.answers)
        kept = longest.setdefault(span.fault, {"fault": span.fault, "times": 0} | dict.fromkeys(found._fields, 0.0))
        kept["times"] += 1
        for name, seconds in found._asdict().items():
            kept[name] = round(max(kept[name], seconds), 1)
    return list(longest.values())


def _print(report: dict[str, Any]) -> None:
    rows = [[str(value) for value in each.values()] for each in report["pauses"]]
    columns = ["fault", "times", "nobody (s)", "one client (s)", "one command (s)"]
    print_table(columns, rows, empty="no faults")
    click.echo()
    print_table(["commands", "count"], list(report["commands"].items()), empty="")
    click.echo()
    print_violations(report["violations"], [*PROMISES, COMPLAINTS])


@click.command()
@click.option("--seconds", type=click.FloatRange(1), default=1200, show_default=True, help="How long faults begin.")
@click.option("--seed", type=int, help="Draws the order of faults, and whom they meet.  [default: a new one]")
@click.option("--fault", "chosen", type=click.Choice(list(BY_NAME)), multiple=True, help="Only these, once each.")
@click.option(
    "--from", "revision", help="Instead of faults: begin with the programs of this revision, and upgrade each."
)
@click.option("--hold", type=click.FloatRange(0), help="The longest time (s) that a fault lasts.  [default: its own]")
@click.option(
    "--server", type=click.Choice(["valkey", "redis"]), default="valkey", show_default=True, help="The stores."
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--keep", type=click.Path(path_type=Path), help="A new folder to keep everything in.")
def main(
    *,
    seconds: float,
    seed: int | None,
    chosen: tuple[str, ...],
    revision: str | None,
    hold: float | None,
    server: str,
    as_json: bool,
    keep: Path | None,
) -> None:
    """Run a cluster on hosts of one machine under load and faults, and check every promise afterwards.

    It says for how long nobody could submit during each fault, nor one of the clients, and how long one command took;
    with --from, while each program was upgraded.
    """
    if why := missing():
        click.echo(f"skipped: {why}", err=True)
        return
    for fault in FAULTS:
        if why := fault.missing():
            click.echo(f"skipped: {fault.name}: {why}", err=True)
    drawn = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    options = "".join(f" --fault {shlex.quote(name)}" for name in chosen)
    options += "" if hold is None else f" --hold {hold:g}"
    options += "" if revision is None else f" --from {shlex.quote(revision)}"
    again = f"python -m tests.hosts --seconds {seconds:g} --seed {drawn} --server {server}{options}"
    click.echo(again, err=True)
    folder = keep or Path(tempfile.mkdtemp(prefix="fairlog-hosts-"))
    folder.mkdir(exist_ok=True)
    began_s = time.monotonic()
    older = None
    if revision is not None:
        try:
            older = unpacked(revision, folder / "older")
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--from") from None
    with (folder / "faults.log").open("w") as told:

        def tell(sentence: str) -> None:
            told.write(f"{time.time():.3f} {sentence}\n")
            told.flush()

        with Bed(folder, drawn, server=server_of(server), say=tell, older=older) as bed:
            if older is not None:
                spans = list(upgrade(bed, progress_teller()))
            else:
                spans = _suffer(bed, random.Random(drawn), chosen, seconds, hold)
            bed.settle(progress_teller())
            evidence = bed.evidence()
            violations = check(evidence, PROMISES)
            violations += [Violation(COMPLAINTS, what) for what in bed.complaints()]
    settled = {phase: {line.id for line in evidence.lines if line.phase == phase} for phase in ("ok", "fail")}
    report = {
        "seed": drawn,
        "seconds": seconds,
        "server": server,
        "took_s": round(time.monotonic() - began_s, 1),
        "pauses": _lasting(spans, bed),
        "commands": {
            "sent": len(evidence.sent),
            "acknowledged": len(settled["ok"]),
            "refused": len(settled["fail"]),
            "unknown": len(evidence.sent.keys() - settled["ok"] - settled["fail"]),
        },
        "violations": [violation._asdict() for violation in violations],
    }
    if as_json:
        print_json(report)
    else:
        _print(report)
    exit_if_broken(violations, folder, again)
    if keep is None:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
