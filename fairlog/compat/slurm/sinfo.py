"""`sinfo`: lists the nodes by their states."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from fairlog.compat.slurm.jobs import always
from fairlog.compat.slurm.nodes import NO_GRES, SlurmNode, features, hosts_of, list_of, nodes
from fairlog.compat.slurm.road import ApiRoad
from fairlog.compat.slurm.squeue import FormatField, in_order, read_columns, read_fields
from fairlog.compat.slurm.tables import CLUSTER, PARTITION, SINFO, VARIABLES
from fairlog.compat.slurm.words import SlurmError, name_idle, read, with_variables

USUAL = "%9P %.5a %.10l %.6D %.6t %N"
LONG = "%9P %.5a %.10l %.10s %.4r %.8h %.10g %.6D %.11T %N"
BY_NODE = "%9N %.6D %.9P %6t"
BY_NODE_LONG = "%9N %.6D %.9P %.11T %4c %.8z %.6m %.8d %.6w %.8f %20E"
REASONS = "%20E %9u %19H %N"
SUMMARY = "%9P %.5a %.10l %.16F %N"
_WHOLE = {"drng": "draining", "drain": "drained", "mix": "mixed", "alloc": "allocated"}
_COMPLETE = {**_WHOLE, "drng": "mixed+drain", "drain": "idle+drain"}


def _sum(group: list[SlurmNode]) -> str:
    return "/".join(str(sum(each)) for each in zip(*(node.counts for node in group), strict=True))


def _shared(tell: Callable[[SlurmNode], Any]) -> Callable[[list[SlurmNode]], object]:
    """The value that all have, or the least of them and a plus."""

    def shown(group: list[SlurmNode]) -> object:
        values = {tell(node) for node in group}
        return min(values) if len(values) == 1 else f"{min(values)}+" if values else 0

    return shown


def _state(group: list[SlurmNode]) -> str:
    return group[0].state if group else "n/a"


def _states(group: list[SlurmNode]) -> str:
    used = sum(node.state in ("alloc", "mix") for node in group)
    idle = sum(node.state == "idle" for node in group)
    return f"{used}/{idle}/{len(group) - used - idle}/{len(group)}"


_NAMES_OF_STATES = (
    "all unknown down idle alloc allocated mix mixed future futr drain drained drng draining no_respond resv reserved "
    "npc perfctrs cloud comp completing powering_down pow_dn powered_down power_down power_up powering_up pow_up fail "
    "failg failing maint boot reboot err error blocked planned plnd"
)
FIELDS: dict[str, tuple[str, Callable[[list[SlurmNode]], object]]] = {
    "P": ("PARTITION", always(f"{PARTITION}*")),
    "R": ("PARTITION", always(PARTITION)),
    "a": ("AVAIL", always("up")),
    "l": ("TIMELIMIT", always("infinite")),
    "L": ("DEFAULTTIME", always("n/a")),
    "D": ("NODES", len),
    "A": ("NODES(A/I)", lambda group: "/".join(_states(group).split("/")[:2])),
    "F": ("NODES(A/I/O/T)", _states),
    "t": ("STATE", _state),
    "T": ("STATE", lambda group: _WHOLE.get(_state(group), _state(group))),
    "N": ("NODELIST", lambda group: list_of([node.name for node in group])),
    "n": ("HOSTNAMES", lambda group: list_of([node.name for node in group])),
    "o": ("NODE_ADDR", lambda group: list_of([node.worker["host"] for node in group])),
    "c": ("CPUS", _shared(lambda node: node.cores)),
    "m": ("MEMORY", _shared(lambda node: node.memory)),
    "e": ("FREE_MEM", _shared(lambda node: node.memory - node.used_memory)),
    "C": ("CPUS(A/I/O/T)", _sum),
    "G": ("GRES", lambda group: group[0].gres if group else NO_GRES),
    "O": ("CPU_LOAD", _shared(lambda node: node.load)),
    "z": ("S:C:T", lambda group: f"1:{group[0].cores}:1" if group else "0:0:0"),
    "X": ("SOCKETS", always(1)),
    "Y": ("CORES", _shared(lambda node: node.cores)),
    "Z": ("THREADS", always(1)),
    "d": ("TMP_DISK", always(0)),
    "w": ("WEIGHT", always(1)),
    "f": ("AVAIL_FEATURES", features),
    "b": ("ACTIVE_FEATURES", features),
    "E": ("REASON", lambda group: group[0].reason or "none" if group else "none"),
    "u": ("USER", always("root")),
    "U": ("USER", always("root(0)")),
    "H": ("TIMESTAMP", lambda group: _since(group[0]) if group else "Unknown"),
    "s": ("JOB_SIZE", always("1")),
    "S": ("ALLOCNODES", always("all")),
    "r": ("ROOT", always("no")),
    "h": ("OVERSUBSCRIBE", always("NO")),
    "g": ("GROUPS", always("all")),
    "p": ("PRIO_TIER", always(1)),
    "I": ("PRIO_JOB_FACTOR", always(1)),
    "B": ("MAX_CPUS_PER_NODE", always("UNLIMITED")),
    "M": ("PREEMPT_MODE", always("OFF")),
    "V": ("CLUSTER", always(CLUSTER)),
    "v": ("VERSION", always("22.05.8")),
}
"""Letter -> heading, and what a group of nodes has there."""


_WITHOUT_LETTERS: dict[str, tuple[str, Callable[[list[SlurmNode]], object]]] = {
    "AllocMem": ("ALLOCMEM", _shared(lambda node: node.used_memory)),
    "Extra": ("EXTRA", always("(null)")),
    "GresUsed": ("GRES_USED", lambda group: group[0].gres_used if group else NO_GRES),
    "Port": ("PORT", always(0)),
    "StateComplete": ("STATECOMPLETE", lambda group: _COMPLETE.get(_state(group), _state(group))),
}
COLUMNS = FIELDS | _WITHOUT_LETTERS
NAMES = {
    **{name.lower(): name for name in _WITHOUT_LETTERS},
    "allocnodes": "S",
    "available": "a",
    "cluster": "V",
    "comment": "E",
    "cores": "Y",
    "cpus": "c",
    "cpusload": "O",
    "cpusstate": "C",
    "defaulttime": "L",
    "disk": "d",
    "features": "f",
    "features_act": "b",
    "freemem": "e",
    "gres": "G",
    "groups": "g",
    "maxcpuspernode": "B",
    "memory": "m",
    "nodeaddr": "o",
    "nodeai": "A",
    "nodeaiot": "F",
    "nodehost": "n",
    "nodelist": "N",
    "nodes": "D",
    "oversubscribe": "h",
    "partition": "P",
    "partitionname": "R",
    "preemptmode": "M",
    "priorityjobfactor": "I",
    "prioritytier": "p",
    "reason": "E",
    "root": "r",
    "size": "s",
    "socketcorethread": "z",
    "share": "h",
    "sockets": "X",
    "statecompact": "t",
    "statelong": "T",
    "threads": "Z",
    "time": "l",
    "timestamp": "H",
    "user": "u",
    "userlong": "U",
    "version": "v",
    "weight": "w",
}
"""What --Format calls the fields, in small letters -> the letter."""


def _since(node: SlurmNode) -> str:
    from fairlog.compat.slurm import times  # noqa: PLC0415 (few print it)

    return times.moment(node.worker["since"], "Unknown")


_OF_GROUPS = "NnDAFC"
"""Fields by which a group of nodes is not divided: what its nodes are called, and how much of them there is."""
_DIVIDES = (*"tTEHuUfbGo", "AllocMem", "GresUsed", "StateComplete")
"""Fields of which a group of nodes has one value; of others it may have several, unless --exact is asked for."""
_PARTITION: dict[str, Callable[[list[SlurmNode]], object]] = {"#P": always(PARTITION)}
"""How Slurm writes the order of partitions in its configuration."""
_SHAPES = ("format", "Format", "long", "list-reasons", "summarize", "Node", "json")


def run(words: list[str]) -> int:
    """List the nodes that are wanted, those of one state together."""
    given, rest = read(SINFO, words)
    if rest:
        raise SlurmError(f"Unrecognized option: {rest[0][:40]}")
    given = with_variables(SINFO, VARIABLES["sinfo"], given, _SHAPES)
    name_idle("sinfo", given)
    asked = {option.name: value for option, value in given}
    columns, end = read_long(asked["Format"]) if "Format" in asked else read_columns(_format(asked), FIELDS, "node")
    states = states_named(asked.get("states", "all"))
    found = _wanted(nodes(ApiRoad()), asked, states)
    if not {"format", "Format"} & set(asked) and columns[0].letter == "N":
        columns[0].width = max([columns[0].width, *(len(node.name) for node in found)])
    if "json" in asked:
        from fairlog.compat.slurm.as_json import of_node, print_document  # noqa: PLC0415 (few ask for it)

        return print_document("nodes", [of_node(node) for node in found])
    groups: list[list[SlurmNode]] = []
    if "Node" in asked or "list-reasons" in asked or any(each.letter == "n" for each in columns):
        groups = [[node] for node in found]
    elif "summarize" in asked:
        groups = [found]
    else:
        groups = _alike(found, [each.letter for each in columns if "exact" in asked or each.letter in _DIVIDES])
    groups = in_order(groups, asked.get("sort"), {letter: tell for letter, (_, tell) in FIELDS.items()} | _PARTITION)
    if PARTITION not in asked.get("partition", PARTITION).split(","):
        groups = []
    heads = [time.strftime("%a %b %d %H:%M:%S %Y")] if "long" in asked and "format" not in asked else []
    lines = (
        [] if "noheader" in asked else [*heads, "".join(each.shown(COLUMNS[each.letter][0]) for each in columns) + end]
    )
    lines += ["".join(each.shown(COLUMNS[each.letter][1](group)) for each in columns) + end for group in groups]
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _alike(found: list[SlurmNode], letters: list[str]) -> list[list[SlurmNode]]:
    """The nodes together that do not differ in these fields; of none, a group without any.

    Names and numbers of nodes are no differences.
    """
    tells = [COLUMNS[each][1] for each in letters if each in _DIVIDES or each not in _OF_GROUPS]
    groups: dict[tuple[object, ...], list[SlurmNode]] = {}
    for node in found:
        groups.setdefault(tuple(tell([node]) for tell in tells), []).append(node)
    return list(groups.values()) or [[]]


def read_long(text: str) -> tuple[list[FormatField], str]:
    """The fields of a list of names such as `NodeHost:20,CPUs`. Raises: Refused for an unknown name."""
    if text.strip().lower() == "all":
        return read_columns("%all", FIELDS, "node")
    return read_fields(text, NAMES, "node"), ""


def _format(asked: dict[str, str]) -> str:
    if "format" in asked:
        return asked["format"]
    if "list-reasons" in asked:
        return REASONS
    if "summarize" in asked:
        return SUMMARY
    if "Node" in asked:
        return BY_NODE_LONG if "long" in asked else BY_NODE
    return LONG if "long" in asked else USUAL


def states_named(text: str) -> set[str]:
    """The states of nodes in a list, those that no node has here included. Raises: Refused for what is none."""
    found = {each.strip().lower().rstrip("*~#$@^!%") for each in text.split(",")} - {""}
    known = _NAMES_OF_STATES.split()
    for each in sorted(found - set(known)):
        raise SlurmError(f'Bad state string: "{each[:40]}"; valid states: {",".join(known)}')
    return found


def _wanted(found: list[SlurmNode], asked: dict[str, str], states: set[str]) -> list[SlurmNode]:
    if "partition" in asked and PARTITION not in asked["partition"].split(","):
        return []
    names = set(hosts_of(asked.get("nodes", "")))

    def fits(node: SlurmNode) -> bool:
        named = {node.state, _WHOLE.get(node.state, node.state), *(["drain"] if node.state == "drng" else [])}
        return (
            (not names or node.is_among(names))
            and ("all" in states or bool(named & states))
            and ("dead" not in asked or node.state == "down")
            and ("responding" not in asked or node.state != "down")
            and ("list-reasons" not in asked or bool(node.reason))
        )

    return [node for node in found if fits(node)]
